//! Common parts of SSH host and user certificates: checking and signing requests, and the common fields of
//! the stored form and view (contract: management API 2.11 and 2.12).
//!
//! A certificate is signed once, at its creation, and cannot be revoked. It expires when its validity ends.

use std::net::IpAddr;
use std::time::Duration;

use culvert_base::{Code, Fault, Refusal, Timestamp, code};
use culvert_resources::Error;
use culvert_resources::cx::Cx;
use culvert_tunnel::server::ISSUER;

use crate::ssh::certificate_authority_model::{Issued, Options};
use crate::ssh::{
    BadKey, Certificate, PublicKey, Role, SigningKey, certificate_authority, public_key,
};

/// Limit of principals of one certificate, which is OpenSSH's limit.
pub(crate) const PRINCIPALS_MAX: usize = 256;
/// Limit of critical options, and of extensions.
pub(crate) const OPTIONS_MAX: usize = 64;
/// Longest principal and name of an option, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest value of an option, in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;

/// The value of [`ISSUER`] for a certificate that an admin issued.
pub const ISSUED_BY_ADMIN: &str = "admin";

/// Defines the input of a type of SSH certificate: the fields that both types share, with descriptions that
/// differ, and additional fields of the type. A flattened struct would accept unknown fields.
macro_rules! certificate_input {
    (
        $(#[$create_meta:meta])*
        struct Create {
            $(#[$key_meta:meta])*
            public_key,
            $(#[$principals_meta:meta])*
            principals,
            $(#[$until_meta:meta])*
            valid_until,
            $($(#[$field_meta:meta])* $field:ident: $ty:ty,)*
        }

        $(#[$update_meta:meta])*
        struct Update;
    ) => {
        #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
        #[schemars(extend("required" = ["ssh_certificate_authority_id", "public_key"]), transform = culvert_resources::input::create_schema)]
        $(#[$create_meta])*
        pub struct Create {
            /// Description, at most 255 bytes.
            #[serde(default)]
            #[schemars(with = "String", length(max = 255))]
            description: culvert_base::Description,
            /// Arbitrary metadata, at most 4096 bytes.
            #[serde(default)]
            #[schemars(with = "String", length(max = 4096))]
            metadata: culvert_base::Metadata,
            /// ID of the CA that signs the certificate. Required.
            #[schemars(extend("pattern" = culvert_resources::input::id_pattern(SshCertificateAuthority::PREFIXES)))]
            ssh_certificate_authority_id: String,
            $(#[$key_meta])*
            #[serde(default)]
            #[schemars(length(min = 1, max = 8192))]
            public_key: String,
            $(#[$principals_meta])*
            #[serde(default)]
            #[schemars(extend("maxItems" = $crate::ssh::issue::PRINCIPALS_MAX, "items" = {"type": "string", "minLength": 1, "maxLength": $crate::ssh::issue::NAME_BYTES_MAX}))]
            principals: Vec<String>,
            /// Start of validity, RFC 3339, shown in UTC. Default: now.
            #[serde(default)]
            #[schemars(extend("format" = "date-time"))]
            valid_after: String,
            $(#[$until_meta])*
            #[serde(default)]
            #[schemars(extend("format" = "date-time"))]
            valid_until: String,
            $($(#[$field_meta])* $field: $ty,)*
        }

        #[derive(Debug, Default, serde::Deserialize, schemars::JsonSchema)]
        #[serde(default)]
        #[schemars(transform = culvert_resources::input::update_schema)]
        $(#[$update_meta])*
        pub struct Update {
            /// Description, at most 255 bytes.
            #[schemars(with = "Option<String>", length(max = 255))]
            description: Option<culvert_base::Description>,
            /// Arbitrary metadata, at most 4096 bytes.
            #[schemars(with = "Option<String>", length(max = 4096))]
            metadata: Option<culvert_base::Metadata>,
        }
    };
}

pub(crate) use certificate_input;

/// A request for a certificate.
#[derive(Debug)]
pub struct CertificateRequest<'a> {
    /// User or host.
    pub role: Role,
    /// ID of the resource, which becomes the certificate's key ID.
    pub id: &'a str,
    pub(crate) ssh_certificate_authority_id: String,
    /// The certified key, one line as in OpenSSH's files.
    pub public_key: String,
    pub(crate) principals: Vec<String>,
    /// RFC 3339; empty for now.
    pub(crate) valid_after: &'a str,
    /// RFC 3339; empty for `lifetime` after the start.
    pub valid_until: &'a str,
    pub(crate) lifetime: Duration,
    pub(crate) critical_options: &'a Options,
    /// Extensions by name, with values that are empty for flags.
    pub extensions: &'a Options,
    /// Code for an authority that does not exist.
    pub unknown: Code,
    /// Code for an end that is not after the start.
    pub disordered: Code,
}

/// Checks a request and signs the certificate.
pub async fn issue(cx: &Cx<'_>, asked: CertificateRequest<'_>) -> Result<Issued, Error> {
    if asked.public_key.trim().is_empty() {
        return Err(Refusal::of(code::SSH_CERTIFICATE_KEY_MISSING).into());
    }
    let key = PublicKey::parse(&asked.public_key).map_err(|bad| {
        let code = match bad {
            BadKey::Unreadable => code::SSH_CERTIFICATE_KEY_UNREADABLE,
            BadKey::Kind | BadKey::Size => code::SSH_CERTIFICATE_KEY_UNSUPPORTED,
        };
        Refusal::new(code, bad.to_string())
    })?;
    check_principals(&asked.principals)?;
    check_options("critical_options", asked.critical_options)?;
    check_options("extensions", asked.extensions)?;
    check_values(asked.critical_options)?;
    let valid_after = match asked.valid_after {
        "" => cx.clock.now().whole_seconds(),
        text => time("valid_after", text)?,
    };
    let valid_until = match asked.valid_until {
        "" => valid_after.plus(asked.lifetime).whole_seconds(),
        text => time("valid_until", text)?,
    };
    if valid_until <= valid_after {
        return Err(Refusal::of(asked.disordered).into());
    }
    let authority_id = asked.ssh_certificate_authority_id;
    let authority = certificate_authority::named(cx, &authority_id, asked.unknown).await?;
    if asked.role == Role::User {
        check_login(cx, &authority).await?;
    }
    // Record the issuer: the authority may be registered for another owner, now or later.
    let mut extensions = asked.extensions.clone();
    if asked.role == Role::User {
        let issuer = match cx.caller.role {
            culvert_resources::Role::Admin => ISSUED_BY_ADMIN,
            culvert_resources::Role::Member | culvert_resources::Role::ReadOnly => {
                &cx.caller.owner_id
            }
        };
        extensions.insert(ISSUER.to_owned(), issuer.to_owned());
    }
    let certificate = Certificate {
        role: asked.role,
        key_id: asked.id,
        key: &key,
        principals: &asked.principals,
        valid_after,
        valid_until,
        critical_options: asked.critical_options,
        extensions: &extensions,
    };
    let certificate = certificate.signed(&authority, cx.entropy)?;
    Ok(Issued {
        public_key: asked.public_key,
        algorithm: key.algorithm,
        ssh_certificate_authority_id: authority_id,
        principals: asked.principals,
        valid_after,
        valid_until,
        certificate,
    })
}

/// Refuses a certificate whose holder could sign in as another owner (630), because the authority is
/// registered as an SSH public key of that owner. Admins may issue it.
async fn check_login(cx: &Cx<'_>, authority: &SigningKey) -> Result<(), Error> {
    if cx.caller.role == culvert_resources::Role::Admin {
        return Ok(());
    }
    let line = authority.public_line();
    let key = PublicKey::parse(&line)
        .map_err(|bad| Fault::bare(format!("reading the key of an authority: {bad}")))?;
    let Some(registered) = public_key::find(cx.store, &key.fingerprint, true).await? else {
        return Ok(());
    };
    if public_key::owner_of(&registered)? == cx.caller.owner_id {
        return Ok(());
    }
    let why = "Certificates of this CA authenticate agents as another owner; only that owner and \
               admins may issue them.";
    Err(Refusal::new(code::NOT_ADMIN, why).into())
}

fn time(field: &str, text: &str) -> Result<Timestamp, Refusal> {
    Timestamp::parse(text)
        .map(Timestamp::whole_seconds)
        .filter(|at| at.unix_seconds() >= 0)
        .ok_or_else(|| {
            Refusal::new(
                code::TIME_MALFORMED,
                format!("`{field}` must be an RFC 3339 time from 1970 to 2262."),
            )
        })
}

fn check_principals(principals: &[String]) -> Result<(), Refusal> {
    let is_principal = |text: &String| {
        (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
    };
    if principals.len() <= PRINCIPALS_MAX && principals.iter().all(is_principal) {
        return Ok(());
    }
    Err(Refusal::new(
        code::BODY_FIELD_INVALID,
        format!(
            "`principals` may have at most {PRINCIPALS_MAX} names of 1 to {NAME_BYTES_MAX} bytes."
        ),
    ))
}

fn check_options(field: &str, options: &Options) -> Result<(), Refusal> {
    let is_option = |(name, value): (&String, &String)| {
        (1..=NAME_BYTES_MAX).contains(&name.len())
            && value.len() <= VALUE_BYTES_MAX
            && !name.chars().chain(value.chars()).any(|c| c == '\0')
    };
    if options.len() <= OPTIONS_MAX && options.iter().all(is_option) {
        return Ok(());
    }
    Err(Refusal::new(
        code::BODY_FIELD_INVALID,
        format!(
            "`{field}` may have at most {OPTIONS_MAX} names of 1 to {NAME_BYTES_MAX} bytes, with values of at most {VALUE_BYTES_MAX} bytes."
        ),
    ))
}

/// Checks options whose invalid values make servers refuse the sign-in.
fn check_values(critical: &Options) -> Result<(), Refusal> {
    let addresses = critical.get("source-address");
    if addresses.is_some_and(|text| !text.split(',').all(is_block)) {
        return Err(Refusal::new(
            code::BODY_FIELD_INVALID,
            "`critical_options.source-address` must be a comma-separated list of addresses or CIDR blocks.",
        ));
    }
    if critical.get("force-command").is_some_and(String::is_empty) {
        return Err(Refusal::new(
            code::BODY_FIELD_INVALID,
            "`critical_options.force-command` must be a command.",
        ));
    }
    Ok(())
}

/// Whether `text` is an address or a CIDR block without host bits.
fn is_block(text: &str) -> bool {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return false;
    };
    // Aligns the bits of both families to the upper end of 128 bits, so that one shift works for both.
    let (bits, longest) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let has_no_host_bits = |length: u32| bits.checked_shl(length).unwrap_or(0) == 0;
    prefix.is_none_or(|prefix| {
        let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
        is_number
            && prefix
                .parse::<u32>()
                .is_ok_and(|length| length <= longest && has_no_host_bits(length))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn config_blocks_have_the_form_that_servers_accept() {
        for block in [
            "10.0.0.1",
            "10.0.0.0/8",
            "0.0.0.0/0",
            "::1",
            "2001:db8::/32",
            "::1/128",
        ] {
            assert!(is_block(block), "{block}");
        }
        for block in [
            "",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "::1/64",
            "x",
        ] {
            assert!(!is_block(block), "{block}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9a-f.:/]{0,30}") {
            if is_block(&text) {
                prop_assert!(text.split('/').next().unwrap().parse::<IpAddr>().is_ok());
            }
        }
    }
}
