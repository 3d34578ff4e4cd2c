//! TLS certificate: a server certificate with its chain and key, uploaded or issued for a reserved domain
//! (contract: management API 2.15).
//!
//! The key is encrypted and never shown. The edge presents the certificate for the reserved domains that
//! refer to it. It cannot be deleted while one does. An expired certificate is accepted.

pub mod model;

use std::sync::Arc;

use culvert_base::{
    Code, Description, Entropy, Fault, Ksuid, Metadata, Refusal, Secret, Timestamp, code,
};
use culvert_resources::Error;
use culvert_resources::cx::Cx;
use culvert_resources::input;
use culvert_resources::list::listfilter::{self, Field, Shape, field};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_resources::stored::seal::Seal;
use culvert_store::{Changes, Head};
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::certificate::{self, CERTIFICATE, Names, Summary};
use crate::management::{AGENT_INGRESS, DOMAIN};
use crate::tls_certificate::model::TlsCertificate;

/// The row of TLS certificates in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<TlsCertificate>();

/// Longest accepted chain, PEM, in bytes.
const PEM_BYTES_MAX: usize = certificate::TEXT_BYTES_MAX;

/// A new TLS certificate.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "TlsCertificateCreate", extend("required" = ["certificate_pem", "private_key_pem"]), transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// PEM certificate chain, starting with the server certificate; at most 64 KiB. Required.
    #[schemars(length(min = 1, max = 65536))]
    certificate_pem: String,
    /// Unencrypted PEM private key of the first certificate: RSA, ECDSA or Ed25519. Required,
    /// write-only.
    #[schemars(with = "String", length(min = 1, max = 16384))]
    private_key_pem: Secret,
}

/// Changes to a TLS certificate.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "TlsCertificateUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
}

impl Resource for TlsCertificate {
    const DOC: &'static str =
        "TLS certificates: certificates that the edge presents for reserved domains.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("subject_common_name", Shape::Within("summary")),
        field("not_after", Shape::Time),
        field("not_before", Shape::Time),
        field("serial_number", Shape::Within("names")),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::TLS_CERTIFICATE_DESCRIPTION_TOO_LONG),
        ("metadata", code::TLS_CERTIFICATE_METADATA_TOO_LONG),
    ];
    const IN_USE: Option<Code> = Some(code::TLS_CERTIFICATE_IN_USE);
    const CREATE_NEEDS_BODY: bool = true;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let document_id = format!("{}_{id}", Self::ID_PREFIX);
        let mut certificate = Self::read(
            cx.seal,
            cx.entropy,
            &document_id,
            input.certificate_pem,
            &input.private_key_pem,
        )?;
        certificate.owner_id.clone_from(&cx.caller.owner_id);
        certificate.description = input.description;
        certificate.metadata = input.metadata;
        Ok(Draft::of(certificate))
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

    /// Refuses to remove a certificate that a domain or ingress refers to. A managed certificate stays while
    /// it is managed.
    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        let domains = cx.referring(DOMAIN, head).await?;
        let ingresses = cx.referring(AGENT_INGRESS, head).await?;
        match domains.iter().chain(&ingresses).next() {
            None => Ok(Changes::default()),
            Some(by) => Err(Refusal::new(
                code::TLS_CERTIFICATE_IN_USE,
                format!(
                    "`{}` uses the certificate; attach another certificate or delete the certificate management policy.",
                    by.head.id
                ),
            )
            .into()),
        }
    }
}

impl TlsCertificate {
    /// Whether it is valid for a name by the rules of clients (RFC 6125 6.4): by its alternative names, or by
    /// its common name if it has none. `*` matches one label. A wildcard name needs that wildcard in the
    /// certificate.
    pub fn covers(&self, name: &str) -> bool {
        let (dns_names, common) = (&self.names.dns_names, &self.summary.subject_common_name);
        let is_for = |given: &str| {
            let given = given
                .strip_suffix('.')
                .unwrap_or(given)
                .to_ascii_lowercase();
            let above = name.split_once('.').map(|(_, above)| above);
            given == name
                || given
                    .strip_prefix("*.")
                    .is_some_and(|base| above == Some(base) && !name.starts_with("*."))
        };
        match dns_names.as_slice() {
            [] => is_for(common),
            names => names.iter().any(|given| is_for(given)),
        }
    }

    /// Reads a chain and its key, PEM. Refused if they do not belong together.
    fn read(
        seal: &Seal,
        entropy: &dyn Entropy,
        id: &str,
        certificate_pem: String,
        private_key_pem: &Secret,
    ) -> Result<Self, Error> {
        let chain = chain(&certificate_pem)?;
        let mut parsed = Vec::with_capacity(chain.len());
        for der in &chain {
            parsed.push(certificate::parse(der)?);
        }
        for pair in parsed.windows(2) {
            if let [one, above] = pair
                && one.issuer().as_raw() != above.subject().as_raw()
            {
                return Err(Refusal::of(code::CERTIFICATE_CHAIN_OUT_OF_ORDER).into());
            }
        }
        let leaf = parsed.first().ok_or_else(none)?;
        let (summary, names) = (Summary::of(leaf)?, Names::of(leaf)?);
        let key = certificate::private_key(private_key_pem.reveal())?;
        let key_type =
            certificate::key_type(&*key).ok_or_else(|| Refusal::of(code::PRIVATE_KEY_MISSING))?;
        if !certificate::is_for(leaf, &*key) {
            return Err(Refusal::of(code::PRIVATE_KEY_MISMATCH).into());
        }
        Ok(Self {
            format: Format,
            owner_id: String::new(),
            description: Description::default(),
            metadata: Metadata::default(),
            sealed_key: seal.seal(entropy, id, private_key_pem.reveal())?,
            private_key_type: key_type.to_owned(),
            summary,
            names,
            certificate_pem,
            issued_at: None,
        })
    }

    /// A chain that an authority issued for `names` at `now`, for storage under `id`.
    pub fn issued(
        seal: &Seal,
        entropy: &dyn Entropy,
        id: &str,
        certificate_pem: String,
        private_key_pem: &Secret,
        names: &[&str],
        now: Timestamp,
    ) -> Result<Self, Error> {
        let mut issued = Self::read(seal, entropy, id, certificate_pem, private_key_pem)?;
        let covered = &issued.names.dns_names;
        if !names
            .iter()
            .all(|name| covered.iter().any(|one| one == name))
        {
            return Err(certificate::unreadable("it does not cover the domain").into());
        }
        issued.issued_at = Some(now.whole_seconds());
        Ok(issued)
    }

    /// When two thirds of its lifetime have passed.
    pub(crate) fn renews_at(&self) -> Timestamp {
        // A time outside the range of timestamps counts as never.
        let read = |text, otherwise: i64| {
            Timestamp::parse(text).unwrap_or(Timestamp::from_unix_nanos(otherwise))
        };
        let not_before = read(&self.summary.not_before, 0);
        let not_after = read(&self.summary.not_after, i64::MAX);
        not_before.plus(not_after.since(not_before) / 3 * 2)
    }

    /// The chain with its key, for serving.
    pub fn certified_key(&self, seal: &Seal, head: &Head) -> Result<Arc<CertifiedKey>, Fault> {
        let unusable =
            |refusal| Fault::new(format!("using the TLS certificate {}", head.id), refusal);
        let chain = chain(&self.certificate_pem).map_err(unusable)?;
        let pem = seal.open(&head.id, &self.sealed_key)?;
        let key = certificate::private_key(pem.reveal()).map_err(unusable)?;
        Ok(Arc::new(CertifiedKey::new(chain, key)))
    }
}

/// The certificates of a PEM text, the server certificate first.
fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, Refusal> {
    if pem.len() > PEM_BYTES_MAX {
        return Err(Refusal::new(
            code::PEM_TOO_LONG,
            format!("`certificate_pem` is longer than {PEM_BYTES_MAX} bytes."),
        ));
    }
    // Check this for malformed sections too: no part of a key may be stored and shown.
    if certificate::names_a_key(pem) {
        return Err(Refusal::of(code::CERTIFICATE_PEM_WITH_KEY));
    }
    let sections = certificate::sections(pem)
        .ok_or_else(|| certificate::unreadable("its PEM has no end line or is not Base64"))?;
    if sections.is_empty() {
        return Err(none());
    }
    if sections.iter().any(|one| one.label != CERTIFICATE) {
        return Err(Refusal::of(code::PEM_NOT_CERTIFICATE));
    }
    if sections.iter().any(|one| one.has_headers) {
        return Err(Refusal::of(code::PEM_HEADERS));
    }
    let der = sections
        .iter()
        .map(|section| CertificateDer::from(section.der.to_vec()));
    Ok(der.collect())
}

fn none() -> Refusal {
    Refusal::of(code::CERTIFICATE_PEM_WITHOUT_CERTIFICATE)
}
