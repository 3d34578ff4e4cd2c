//! SSH host certificate: a server's key with its names, which clients trust because an authority
//! signed it (contract: management API 2.11).
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

pub(crate) static TYPE: ResourceType = ResourceType::of::<SshHostCertificate>();

/// How long a certificate is valid unless it is said: a year.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SshHostCertificate {
    format: Format<1>,
    description: Description,
    metadata: Metadata,
    issued: Issued,
}

/// A new SSH host certificate.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "SshHostCertificateCreate", extend("required" = ["ssh_certificate_authority_id", "public_key"]), transform = input::create_schema)]
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
    /// Host key: one line of an OpenSSH `.pub` file with an RSA, ECDSA or Ed25519 key. Required.
    #[serde(default)]
    #[schemars(length(min = 1, max = 8192))]
    public_key: String,
    /// Host names; empty for all hosts.
    #[serde(default)]
    #[schemars(extend("maxItems" = ssh_issue::PRINCIPALS_MAX, "items" = {"type": "string", "minLength": 1, "maxLength": ssh_issue::NAME_BYTES_MAX}))]
    principals: Vec<String>,
    /// Start of validity, RFC 3339. Default: now.
    #[serde(default)]
    #[schemars(extend("format" = "date-time"))]
    valid_after: String,
    /// End of validity, RFC 3339. Default: one year later.
    #[serde(default)]
    #[schemars(extend("format" = "date-time"))]
    valid_until: String,
}

/// Changes to an SSH host certificate.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "SshHostCertificateUpdate", transform = input::update_schema)]
pub(crate) struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
}

/// An SSH host certificate as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SshHostCertificate")]
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
    /// Host names; empty for all hosts.
    principals: &'a [String],
    #[schemars(with = "String", extend("format" = "date-time"))]
    valid_after: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    valid_until: Timestamp,
    /// The certificate as one line of an OpenSSH `-cert.pub` file.
    certificate: &'a str,
}

impl Resource for SshHostCertificate {
    const NAME: &'static str = "ssh_host_certificate";
    const COLLECTION: &'static str = "ssh_host_certificates";
    const LIST_FIELD: &'static str = "ssh_host_certificates";
    const ID_PREFIX: &'static str = "shcrt";
    const DOC: &'static str =
        "SSH host certificates: certificates that authenticate servers to clients.";
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        (
            "description",
            code::SSH_HOST_CERTIFICATE_DESCRIPTION_TOO_LONG,
        ),
        ("metadata", code::SSH_HOST_CERTIFICATE_METADATA_TOO_LONG),
    ];
    const UNKNOWN: Option<Code> = Some(code::SSH_HOST_CERTIFICATE_CA_UNKNOWN);
    const CREATE_NEEDS_BODY: bool = true;

    type Create = Create;
    type Update = Update;
    type View<'a> = View<'a>;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let nothing = Options::new();
        let asked = Asked {
            role: Role::Host,
            id: &format!("{}_{id}", Self::ID_PREFIX),
            ssh_certificate_authority_id: input.ssh_certificate_authority_id,
            public_key: input.public_key,
            principals: input.principals,
            valid_after: &input.valid_after,
            valid_until: &input.valid_until,
            lifetime: LIFETIME,
            critical_options: &nothing,
            extensions: &nothing,
            unknown: code::SSH_HOST_CERTIFICATE_CA_UNKNOWN,
            disordered: code::SSH_HOST_CERTIFICATE_VALIDITY_EMPTY,
        };
        let issued = ssh_issue::issue(cx, asked).await?;
        Ok(Draft::of(Self {
            format: Format,
            description: input.description,
            metadata: input.metadata,
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
