//! TLS from the edge to the upstream of an endpoint: the stored form, its checks, and the input of the edge.
//!
//! A client certificate is an identity, so only the owner of the certificate and admins may have an endpoint present it,
//! at the write and when the configuration is compiled. While an object that the options name is missing, or may not be
//! used, the edge does not connect.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_access::use_table::UseTable;
use culvert_base::{Fault, Refusal, Timestamp, code, id};
use culvert_certificates::certificate;
use culvert_certificates::certificate_authority::model::CertificateAuthority;
use culvert_certificates::tls_certificate::model::TlsCertificate;
use culvert_edge_config::upstream_tls::{
    ClientCertificate, PINS_MAX, Pin, UpstreamTls, Verification, server_name,
};
use culvert_edge_config::{TlsOptions, TlsWithheld};
use culvert_resources::access::{self, Referrer};
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_resources::stored::seal::Seal;
use culvert_resources::{Error, stored};
use culvert_store::{Changes, Document, Head, OnDelete, Ref, Store};
use culvert_tls::tls_policy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::error;

/// Maximum number of entries of `ca`.
const AUTHORITIES_MAX: usize = 16;
/// Maximum size of all entries of `ca`, in bytes.
const AUTHORITY_BYTES_MAX: usize = 64 << 10;

/// What the API shows for an upstream whose certificate is not verified.
const UNVERIFIED: &str = "`upstream_tls.verify` is `false`: others on the network can read and change the traffic. `pins` accept a self-signed certificate and no other.";

/// TLS to an `https` upstream. Absent, `null` or empty values use the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EndpointUpstreamTls", extend("additionalProperties" = false))]
pub struct UpstreamTlsOptions {
    /// Whether the certificate of the upstream is verified. Default: `true`. With `false`, others on the
    /// network can read and change the traffic.
    verify: Option<bool>,
    /// Certificate authorities of the upstream instead of those that the server trusts: PEM certificates that have not
    /// expired, or IDs of certificate authorities. At most 16.
    #[schemars(length(max = 16))]
    ca: Option<Vec<String>>,
    /// Name to ask for and to verify. Default: the host of the upstream.
    #[schemars(length(max = 253))]
    server_name: Option<String>,
    /// SHA-256 of the certificate or of its public key: 64 hexadecimal digits, or `sha256//` and Base64. One of them must
    /// match. Without `ca`, they replace the verification of issuer, names and dates, so self-signed certificates work.
    /// At most 16.
    #[schemars(length(max = 16))]
    pins: Option<Vec<String>>,
    /// ID of the TLS certificate to present to the upstream. Only its owner and admins may use it.
    client_certificate_id: Option<String>,
}

impl UpstreamTlsOptions {
    /// The warnings for the owner of the endpoint.
    pub(crate) fn warnings(&self) -> &'static [&'static str] {
        match self.verify {
            Some(false) => &[UNVERIFIED],
            Some(true) | None => &[],
        }
    }

    /// The references that keep the objects it names from being deleted.
    pub(crate) fn refs(&self) -> impl Iterator<Item = Ref> {
        let ids = self.authority_ids().chain(self.client_certificate_id());
        ids.map(|id| Ref::new("upstream_tls", id, OnDelete::Block))
    }

    /// Whether it names other objects.
    pub fn has_references(&self) -> bool {
        self.refs().next().is_some()
    }

    fn authority_ids(&self) -> impl Iterator<Item = &str> {
        let all = self.ca.iter().flatten().map(String::as_str);
        all.filter(|entry| is_authority_id(entry))
    }

    fn client_certificate_id(&self) -> Option<&str> {
        self.client_certificate_id.as_deref()
    }

    /// Checks the options of an endpoint; `before` are its previous ones. `None` for the defaults. Also returns the
    /// conditions under which the owner of the endpoint may use the objects at the commit.
    ///
    /// # Errors
    ///
    /// 18014 with the field and the reason, 650 for a client certificate of another owner.
    pub(crate) async fn check(
        mut self,
        cx: &Cx<'_>,
        referrer: Referrer<'_>,
        has_tls: bool,
        before: Option<&Self>,
    ) -> Result<(Option<Self>, Changes), Error> {
        self.tidy();
        if self == Self::default() {
            return Ok((None, Changes::default()));
        }
        if !has_tls {
            return Err(invalid("", "applies only to an `https://` upstream").into());
        }
        self.plain().map_err(|(field, why)| invalid(field, &why))?;
        let known = before.and_then(|before| before.ca.as_deref());
        self.settle_authorities(known.unwrap_or_default(), cx.clock.now())
            .map_err(|why| invalid("ca", &why))?;
        for id in self.authority_ids() {
            if cx.own(CertificateAuthority::KIND, id).await?.is_none() {
                let why = format!("names `{}`, which does not exist", cut(id));
                return Err(invalid("ca", &why).into());
            }
        }
        let mut held = Changes::default();
        if let Some(id) = self.client_certificate_id() {
            let is_known = before.and_then(Self::client_certificate_id) == Some(id);
            held = may_present(cx, referrer, id, is_known).await?;
        }
        Ok((Some(self), held))
    }

    /// Removes empty values and defaults.
    fn tidy(&mut self) {
        let Self {
            verify,
            ca,
            server_name,
            pins,
            client_certificate_id,
        } = self;
        *verify = verify.filter(|verify| !verify);
        for list in [ca, pins] {
            *list = list.take().filter(|list| !list.is_empty());
        }
        for text in [server_name, client_certificate_id] {
            *text = text.take().filter(|text| !text.is_empty());
        }
    }

    /// Checks the certificates of `ca`, except for those that the endpoint had before, and drops the text around them: everything
    /// stored is shown.
    fn settle_authorities(&mut self, known: &[String], now: Timestamp) -> Result<(), String> {
        for entry in self.ca.iter_mut().flatten() {
            if is_authority_id(entry) {
                continue;
            }
            let certificates = tls_policy::certificates(entry).unwrap_or_default();
            if !known.contains(entry) {
                for certificate in &certificates {
                    check_authority(certificate, now)?;
                }
            }
            *entry = certificates.iter().map(|der| pem(der)).collect();
        }
        Ok(())
    }

    /// The options without the objects that they name, or the field that is invalid and why.
    fn plain(&self) -> Result<UpstreamTls, (&'static str, String)> {
        let entries = self.ca.as_deref().unwrap_or_default();
        let pins = self.pins.as_deref().unwrap_or_default();
        let bytes: usize = entries.iter().map(String::len).sum();
        if entries.len() > AUTHORITIES_MAX || bytes > AUTHORITY_BYTES_MAX {
            let why =
                format!("has more than {AUTHORITIES_MAX} entries or {AUTHORITY_BYTES_MAX} bytes");
            return Err(("ca", why));
        }
        if pins.len() > PINS_MAX {
            return Err(("pins", format!("has more than {PINS_MAX} entries")));
        }
        if self.verify == Some(false) && !(entries.is_empty() && pins.is_empty()) {
            let why = "is `false`, which contradicts `ca` and `pins`: they verify".to_owned();
            return Err(("verify", why));
        }
        let mut authorities = Vec::new();
        for pem in entries.iter().filter(|entry| !is_authority_id(entry)) {
            // No part of a key may be stored and shown.
            if pem.contains("PRIVATE KEY") {
                return Err(("ca", "must not contain a private key".to_owned()));
            }
            let read = tls_policy::certificates(pem);
            authorities.extend(read.ok_or_else(|| {
                let why = "has an entry that is neither PEM certificates nor the ID of a certificate authority";
                ("ca", why.to_owned())
            })?);
        }
        let pins: Vec<Pin> = pins
            .iter()
            .map(|pin| Pin::parse(pin))
            .collect::<Result<_, _>>()
            .map_err(|error| ("pins", format!("has an invalid entry: {error}")))?;
        let server_name = match &self.server_name {
            None => None,
            Some(text) => {
                let why = || "is neither a host name nor an address".to_owned();
                let name = server_name(text).ok_or_else(|| ("server_name", why()))?;
                Some(name)
            }
        };
        let verification = match (entries.is_empty(), pins.is_empty()) {
            _ if self.verify == Some(false) => Verification::Off,
            (true, true) => Verification::System,
            (true, false) => Verification::Pins(pins),
            (false, _) => Verification::Authorities(authorities, pins),
        };
        Ok(UpstreamTls {
            verification,
            server_name,
            client: None,
        })
    }

    /// The options for the edge before the objects that they name were read. Until then the edge does not connect.
    pub(crate) fn compile(&self) -> TlsOptions {
        TlsOptions::new(match (self.has_references(), self.plain()) {
            (false, Ok(options)) => Ok(options),
            (true, Ok(_)) => Err(TlsWithheld::Unread),
            (_, Err(_)) => Err(TlsWithheld::Invalid),
        })
    }

    /// The options for the edge, with the objects that they name, if the owner of the endpoint may use them now.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn resolve(
        &self,
        store: &Store,
        seal: &Seal,
        table: &UseTable,
        (head, owner_id): (&Head, &str),
    ) -> Result<TlsOptions, Fault> {
        let resolved = self.with_objects(store, seal, table, (head, owner_id));
        Ok(TlsOptions::new(resolved.await?))
    }

    async fn with_objects(
        &self,
        store: &Store,
        seal: &Seal,
        table: &UseTable,
        (head, owner_id): (&Head, &str),
    ) -> Result<Result<UpstreamTls, TlsWithheld>, Fault> {
        let own = |document: &Document| document.head.account == head.account;
        // An object that cannot be read withholds this upstream and no other.
        let unreadable = |fault: Fault| {
            error!(endpoint.id = %head.id, cause = %fault.chain(), "an object of `upstream_tls` cannot be read");
            TlsWithheld::Invalid
        };
        let Ok(mut options) = self.plain() else {
            return Ok(Err(TlsWithheld::Invalid));
        };
        for id in self.authority_ids() {
            let found = store.get(CertificateAuthority::KIND, id).await?;
            let Some(document) = found.filter(own) else {
                return Ok(Err(TlsWithheld::Authority));
            };
            let read = stored::read::<CertificateAuthority>(&document);
            match read.and_then(|authority| authority.certificate()) {
                Ok(certificate) => {
                    if let Verification::Authorities(authorities, _) = &mut options.verification {
                        authorities.push(certificate);
                    }
                }
                Err(fault) => return Ok(Err(unreadable(fault))),
            }
        }
        let Some(id) = self.client_certificate_id() else {
            return Ok(Ok(options));
        };
        let found = store.get(TlsCertificate::KIND, id).await?;
        let Some(document) = found.filter(own) else {
            return Ok(Err(TlsWithheld::Client));
        };
        let certificate = match stored::read::<TlsCertificate>(&document) {
            Ok(certificate) => certificate,
            Err(fault) => return Ok(Err(unreadable(fault))),
        };
        let referrer = Referrer {
            owner_id,
            id: &head.id,
        };
        let role = table.role(owner_id);
        let owner = certificate_owner(&certificate);
        if !access::is_user(referrer, role, owner, std::iter::empty()) {
            return Ok(Err(TlsWithheld::Client));
        }
        Ok(match certificate.certified_key(seal, &document.head) {
            Ok(key) => {
                options.client = Some(ClientCertificate::new(key));
                Ok(options)
            }
            Err(fault) => Err(unreadable(fault)),
        })
    }
}

/// Refuses to present a certificate of another owner (650). Returns the condition under which this holds at the commit.
async fn may_present(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    id: &str,
    is_known: bool,
) -> Result<Changes, Error> {
    let Some(document) = cx.own(TlsCertificate::KIND, id).await? else {
        let why = format!("names `{}`, which does not exist", cut(id));
        return Err(invalid("client_certificate_id", &why).into());
    };
    let certificate: TlsCertificate = stored::read(&document)?;
    let owner = certificate_owner(&certificate);
    let role = access::role_of(cx, referrer.owner_id, is_known).await?;
    if access::is_user(referrer, role, owner, std::iter::empty()) {
        return Ok(Changes::while_at(&document.head));
    }
    let what = format!("TLS certificate `{id}` as a client certificate");
    Err(access::not_used(cx, referrer, &what, id, owner, false).await?)
}

/// The owner of a certificate; `None` for the admins.
fn certificate_owner(certificate: &TlsCertificate) -> Option<&str> {
    let owner_id = certificate.owner_id.as_str();
    (!owner_id.is_empty()).then_some(owner_id)
}

/// Refuses a certificate that cannot be the issuer of another and is not its own issuer: it would verify nothing. Also one that
/// has expired.
fn check_authority(der: &[u8], now: Timestamp) -> Result<(), String> {
    let certificate = certificate::parse(der).map_err(|refusal| {
        let why = refusal.message.trim_end_matches('.');
        format!("has an entry that cannot be used: {why}")
    })?;
    let is_own = certificate.issuer().as_raw() == certificate.subject().as_raw();
    if !certificate.is_ca() && !is_own {
        return Err("has a certificate that is not one of an authority, so it verifies nothing. Pin it instead: give its SHA-256 in `pins`".to_owned());
    }
    let end = certificate.validity().not_after;
    if end.timestamp() < now.unix_seconds() {
        let end = end.to_datetime();
        let (year, month, day) = (end.year(), u8::from(end.month()), end.day());
        return Err(format!(
            "has a certificate that expired on {year:04}-{month:02}-{day:02}"
        ));
    }
    Ok(())
}

/// A certificate in PEM.
fn pem(der: &[u8]) -> String {
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in STANDARD.encode(der).as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

fn is_authority_id(entry: &str) -> bool {
    id::split(entry).is_some_and(|(prefix, _)| prefix == CertificateAuthority::ID_PREFIX)
}

/// The beginning of a text, for a message.
fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

fn invalid(field: &str, why: &str) -> Refusal {
    let dot = if field.is_empty() { "" } else { "." };
    Refusal::new(
        code::ENDPOINT_FIELD_INVALID,
        format!("`upstream_tls{dot}{field}` {why}."),
    )
}
