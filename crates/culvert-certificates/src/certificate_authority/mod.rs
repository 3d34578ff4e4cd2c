//! Certificate authority: a certificate whose issued certificates are trusted (contract: management API 2.2).
//!
//! It is stored and shown as sent; the other fields come from the certificate. An expired one is accepted. It
//! cannot be deleted while the action terminate-tls of a traffic policy refers to it.

pub mod model;

use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Refusal, code};
use culvert_resources::Error;
use culvert_resources::cx::Cx;
use culvert_resources::input;
use culvert_resources::list::listfilter::{self, Field, Shape, field};
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_store::Head;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::certificate::{self, CERTIFICATE, Summary};
use crate::certificate_authority::model::CertificateAuthority;

/// The row of certificate authorities in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<CertificateAuthority>();

/// Longest accepted certificate, PEM, in bytes.
const PEM_BYTES_MAX: usize = 16 * 1024;

/// A new certificate authority.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "CertificateAuthorityCreate", extend("required" = ["ca_pem"]), transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Exactly one X.509 CA certificate in PEM, at most 16 KiB. Required.
    #[schemars(length(min = 1, max = 16384))]
    ca_pem: String,
}

/// Changes to a certificate authority.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "CertificateAuthorityUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
}

impl Resource for CertificateAuthority {
    const DOC: &'static str =
        "Certificate authorities: CA certificates that verify client certificates.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("subject_common_name", Shape::Within("summary")),
        field("not_before", Shape::Time),
        field("not_after", Shape::Time),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::CA_DESCRIPTION_TOO_LONG),
        ("metadata", code::CA_METADATA_TOO_LONG),
    ];
    const IN_USE: Option<Code> = Some(code::CERTIFICATE_AUTHORITY_IN_USE);
    const CREATE_NEEDS_BODY: bool = true;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let summary = check(&input.ca_pem)?;
        Ok(Draft::of(Self {
            format: Format,
            owner_id: cx.caller.owner_id.clone(),
            description: input.description,
            metadata: input.metadata,
            ca_pem: input.ca_pem,
            summary,
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

impl CertificateAuthority {
    /// The parsed PEM of the certificate.
    pub fn certificate(&self) -> Result<CertificateDer<'static>, Fault> {
        CertificateDer::from_pem_slice(self.ca_pem.as_bytes())
            .map_err(|error| Fault::new("reading a stored certificate authority", error))
    }
}

fn check(pem: &str) -> Result<Summary, Refusal> {
    if pem.is_empty() {
        return Err(Refusal::of(code::CA_PEM_MISSING));
    }
    if pem.len() > PEM_BYTES_MAX {
        return Err(Refusal::new(
            code::PEM_TOO_LONG,
            format!("`ca_pem` is longer than {PEM_BYTES_MAX} bytes."),
        ));
    }
    // Check this for malformed sections too: no part of a key may be stored and shown.
    if certificate::names_a_key(pem) {
        return Err(Refusal::of(code::PEM_NOT_CERTIFICATE));
    }
    let sections = certificate::sections(pem).ok_or_else(|| Refusal::of(code::CA_PEM_MALFORMED))?;
    if sections.is_empty() {
        return Err(Refusal::of(code::CA_PEM_MALFORMED));
    }
    if sections.iter().any(|one| one.label != CERTIFICATE) {
        return Err(Refusal::of(code::PEM_NOT_CERTIFICATE));
    }
    let [section] = sections.as_slice() else {
        return Err(Refusal::of(code::CA_PEM_SEVERAL_CERTIFICATES));
    };
    if section.has_headers {
        return Err(Refusal::of(code::PEM_HEADERS));
    }
    let parsed = certificate::parse(&section.der)?;
    let summary = Summary::of(&parsed)?;
    if !certificate::is_authority(&parsed)? {
        return Err(Refusal::of(code::CERTIFICATE_NOT_CA));
    }
    Ok(summary)
}
