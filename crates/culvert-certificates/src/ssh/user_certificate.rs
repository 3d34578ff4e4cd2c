//! SSH user certificate: a user's key and permissions, which servers trust because an authority signed them
//! (contract: management API 2.12).
//!
//! Removing the object does not revoke the certificate, which stays valid until it expires.

use std::time::Duration;

use culvert_base::{Code, Ksuid, code};
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter::Field;
use culvert_resources::list::page;
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_resources::{Error, Parameter};
use culvert_store::Head;

use crate::ssh::Role;
use crate::ssh::certificate_authority_model::{Options, SshCertificateAuthority};
use crate::ssh::issue::{self, CertificateRequest};
use crate::ssh::user_certificate_model::SshUserCertificate;

/// The row of SSH user certificates in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<SshUserCertificate>();

/// Default validity of a certificate: a day.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Default extensions of a certificate.
const DEFAULT_EXTENSIONS: [&str; 2] = ["permit-pty", "permit-user-rc"];

issue::certificate_input! {
    /// A new SSH user certificate.
    #[schemars(rename = "SshUserCertificateCreate")]
    struct Create {
        /// User key: one line of an OpenSSH `.pub` file with an RSA, ECDSA or Ed25519 key. Required.
        public_key,
        /// User names that the certificate is valid for; empty for all users.
        principals,
        /// End of validity, RFC 3339, shown in UTC. Default: 24 hours later.
        valid_until,
        /// Critical options of the certificate with their values, such as `force-command` and
        /// `source-address`.
        #[serde(default)]
        #[schemars(extend("maxProperties" = issue::OPTIONS_MAX, "propertyNames" = {"minLength": 1, "maxLength": issue::NAME_BYTES_MAX}, "additionalProperties" = {"type": "string", "maxLength": issue::VALUE_BYTES_MAX}))]
        critical_options: Options,
        /// Extensions of the certificate: names with `""` or a value. Default: `permit-pty` and
        /// `permit-user-rc`.
        #[serde(default)]
        #[schemars(extend("maxProperties" = issue::OPTIONS_MAX, "propertyNames" = {"minLength": 1, "maxLength": issue::NAME_BYTES_MAX}, "additionalProperties" = {"type": "string", "maxLength": issue::VALUE_BYTES_MAX}))]
        extensions: Options,
    }

    /// Changes to an SSH user certificate.
    #[schemars(rename = "SshUserCertificateUpdate")]
    struct Update;
}

impl Resource for SshUserCertificate {
    const DOC: &'static str =
        "SSH user certificates: certificates that authenticate users to servers.";
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        (
            "description",
            code::SSH_USER_CERTIFICATE_DESCRIPTION_TOO_LONG,
        ),
        ("metadata", code::SSH_USER_CERTIFICATE_METADATA_TOO_LONG),
    ];
    const UNKNOWN: Option<Code> = Some(code::SSH_USER_CERTIFICATE_CA_UNKNOWN);
    const CREATE_NEEDS_BODY: bool = true;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        cx.caller.may_make_credentials()?;
        let extensions = if input.extensions.is_empty() {
            DEFAULT_EXTENSIONS
                .map(|name| (name.to_owned(), String::new()))
                .into()
        } else {
            input.extensions
        };
        let asked = CertificateRequest {
            role: Role::User,
            id: &format!("{}_{id}", Self::ID_PREFIX),
            ssh_certificate_authority_id: input.ssh_certificate_authority_id,
            public_key: input.public_key,
            principals: input.principals,
            valid_after: &input.valid_after,
            valid_until: &input.valid_until,
            lifetime: LIFETIME,
            critical_options: &input.critical_options,
            extensions: &extensions,
            unknown: code::SSH_USER_CERTIFICATE_CA_UNKNOWN,
            disordered: code::SSH_USER_CERTIFICATE_VALIDITY_EMPTY,
        };
        let issued = issue::issue(cx, asked).await?;
        Ok(Draft::of(Self {
            format: Format,
            owner_id: cx.caller.owner_id.clone(),
            description: input.description,
            metadata: input.metadata,
            critical_options: input.critical_options,
            extensions,
            issued,
        }))
    }

    async fn update(
        mut self,
        _cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        Ok(Draft::of(self))
    }
}
