//! SSH user certificate: a user's key with what it may do, which servers trust because an authority
//! signed it (contract: management API 2.12).
//!
//! Removing the object forgets it; the certificate stays valid until it ends.

use std::time::Duration;

use culvert_base::{Code, Description, Ksuid, Metadata, Timestamp, code};
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Draft, Links, Resource, ResourceType, Uri, ssh_certificate_authority};
use crate::base::Base;
use crate::cx::Cx;
use crate::input;
use crate::listfilter::Field;
use crate::page;
use crate::ssh::Role;
use crate::ssh_issue::{self, Asked, Issued, Options};
use crate::stored::Format;
use crate::{Error, Parameter};

pub(crate) static TYPE: ResourceType = ResourceType::of::<SshUserCertificate>();

/// How long a certificate is valid unless it is said: a day.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// What a certificate allows unless it is said.
const DEFAULT_EXTENSIONS: [&str; 2] = ["permit-pty", "permit-user-rc"];

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SshUserCertificate {
    format: Format<1>,
    description: Description,
    metadata: Metadata,
    critical_options: Options,
    extensions: Options,
    issued: Issued,
}

/// A new SSH user certificate.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "SshUserCertificateCreate", extend("required" = ["ssh_certificate_authority_id", "public_key"]), transform = input::create_schema)]
pub(crate) struct Create {
    /// Description, at most 255 bytes.
    #[serde(default)]
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[serde(default)]
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// ID of the CA that signs the certificate. Required.
    #[schemars(extend("pattern" = input::id_pattern(ssh_certificate_authority::TYPE.prefixes)))]
    ssh_certificate_authority_id: String,
    /// User key: one line of an OpenSSH `.pub` file with an RSA, ECDSA or Ed25519 key. Required.
    #[serde(default)]
    #[schemars(length(min = 1, max = 8192))]
    public_key: String,
    /// User names that the certificate is valid for; empty for all users.
    #[serde(default)]
    #[schemars(extend("maxItems" = ssh_issue::PRINCIPALS_MAX, "items" = {"type": "string", "minLength": 1, "maxLength": ssh_issue::NAME_BYTES_MAX}))]
    principals: Vec<String>,
    /// Critical options of the certificate with their values, such as `force-command` and
    /// `source-address`.
    #[serde(default)]
    #[schemars(extend("maxProperties" = ssh_issue::OPTIONS_MAX, "propertyNames" = {"minLength": 1, "maxLength": ssh_issue::NAME_BYTES_MAX}, "additionalProperties" = {"type": "string", "maxLength": ssh_issue::VALUE_BYTES_MAX}))]
    critical_options: Options,
    /// Extensions of the certificate: names with `""` or a value. Default: `permit-pty` and
    /// `permit-user-rc`.
    #[serde(default)]
    #[schemars(extend("maxProperties" = ssh_issue::OPTIONS_MAX, "propertyNames" = {"minLength": 1, "maxLength": ssh_issue::NAME_BYTES_MAX}, "additionalProperties" = {"type": "string", "maxLength": ssh_issue::VALUE_BYTES_MAX}))]
    extensions: Options,
    /// Start of validity, RFC 3339. Default: now.
    #[serde(default)]
    #[schemars(extend("format" = "date-time"))]
    valid_after: String,
    /// End of validity, RFC 3339. Default: 24 hours later.
    #[serde(default)]
    #[schemars(extend("format" = "date-time"))]
    valid_until: String,
}

/// Changes to an SSH user certificate.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "SshUserCertificateUpdate", transform = input::update_schema)]
pub(crate) struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
}

/// An SSH user certificate as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SshUserCertificate")]
pub(crate) struct View<'a> {
    id: &'a str,
    #[schemars(with = "String")]
    uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    description: &'a str,
    metadata: &'a str,
    /// Value as sent, including the comment.
    public_key: &'a str,
    /// `rsa`, `ecdsa` or `ed25519`.
    #[schemars(extend("enum" = ssh_certificate_authority::KEY_TYPES))]
    key_type: &'static str,
    /// Issuer.
    ssh_certificate_authority_id: &'a str,
    /// User names that the certificate is valid for; empty for all users.
    principals: &'a [String],
    /// Critical options of the certificate.
    critical_options: &'a Options,
    /// Extensions of the certificate.
    extensions: &'a Options,
    #[schemars(with = "String", extend("format" = "date-time"))]
    valid_after: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    valid_until: Timestamp,
    /// The certificate as one line of an OpenSSH `-cert.pub` file.
    certificate: &'a str,
}

impl Resource for SshUserCertificate {
    const NAME: &'static str = "ssh_user_certificate";
    const COLLECTION: &'static str = "ssh_user_certificates";
    const LIST_FIELD: &'static str = "ssh_user_certificates";
    const ID_PREFIX: &'static str = "sucrt";
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
    type View<'a> = View<'a>;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let extensions = if input.extensions.is_empty() {
            DEFAULT_EXTENSIONS
                .map(|name| (name.to_owned(), String::new()))
                .into()
        } else {
            input.extensions
        };
        let asked = Asked {
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
        let issued = ssh_issue::issue(cx, asked).await?;
        Ok(Draft::of(Self {
            format: Format,
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

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let issued = &self.issued;
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            description: &self.description,
            metadata: &self.metadata,
            public_key: &issued.public_key,
            key_type: issued.algorithm.key_type(),
            ssh_certificate_authority_id: &issued.ssh_certificate_authority_id,
            principals: &issued.principals,
            critical_options: &self.critical_options,
            extensions: &self.extensions,
            valid_after: issued.valid_after,
            valid_until: issued.valid_until,
            certificate: &issued.certificate,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        let authority = &self.issued.ssh_certificate_authority_id;
        Links {
            refs: vec![Ref::new(
                "ssh_certificate_authority_id",
                authority,
                OnDelete::Block,
            )],
            ..Links::default()
        }
    }
}
