//! SSH host certificate: a server's key and names, which clients trust because an authority signed them
//! (contract: management API 2.11).
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
use crate::ssh::host_certificate_model::SshHostCertificate;
use crate::ssh::issue::{self, CertificateRequest};

/// The row of SSH host certificates in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<SshHostCertificate>();

/// Default validity of a certificate: a year.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

issue::certificate_input! {
    /// A new SSH host certificate.
    #[schemars(rename = "SshHostCertificateCreate")]
    struct Create {
        /// Host key: one line of an OpenSSH `.pub` file with an RSA, ECDSA or Ed25519 key. Required.
        public_key,
        /// Host names; empty for all hosts.
        principals,
        /// End of validity, RFC 3339, shown in UTC. Default: one year later.
        valid_until,
    }

    /// Changes to an SSH host certificate.
    #[schemars(rename = "SshHostCertificateUpdate")]
    struct Update;
}

impl Resource for SshHostCertificate {
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

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        cx.caller.may_make_credentials()?;
        let nothing = Options::new();
        let asked = CertificateRequest {
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
        let issued = issue::issue(cx, asked).await?;
        Ok(Draft::of(Self {
            format: Format,
            owner_id: cx.caller.owner_id.clone(),
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
}
