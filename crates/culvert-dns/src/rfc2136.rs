//! Dynamic updates of a name server (RFC 2136), signed with a shared key (TSIG, RFC 8945).
//!
//! Updates go over TCP. The response must be signed with the same key.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::Secret;
use hickory_proto::op::{Message, OpCode, Query, ResponseCode, UpdateMessage};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::rdata::tsig::TsigAlgorithm;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType, TSigner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::Api;
use crate::change::{Change, TTL};
use crate::error::DnsError;
use crate::lookup::Lookup;

/// Time limit of an update.
const UPDATE_WITHIN: Duration = Duration::from_secs(15);
/// Accepted difference between the two clocks, in seconds.
const FUDGE: u16 = 300;

/// Names of the algorithms of keys.
pub const ALGORITHMS: [&str; 3] = ["hmac-sha256", "hmac-sha384", "hmac-sha512"];

/// A name server that accepts dynamic updates.
pub struct Rfc2136 {
    server: SocketAddr,
    /// The zone; looked up at the server if there is none.
    zone: Option<String>,
    signer: TSigner,
}

impl std::fmt::Debug for Rfc2136 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rfc2136")
            .field("server", &self.server)
            .field("zone", &self.zone)
            .finish_non_exhaustive()
    }
}

impl Rfc2136 {
    /// A server with its key.
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn new(
        server: SocketAddr,
        zone: Option<String>,
        key_name: &str,
        algorithm: &str,
        secret: &Secret,
    ) -> Result<Self, DnsError> {
        let algorithm = match algorithm {
            "hmac-sha256" => TsigAlgorithm::HmacSha256,
            "hmac-sha384" => TsigAlgorithm::HmacSha384,
            "hmac-sha512" => TsigAlgorithm::HmacSha512,
            other => {
                return Err(DnsError::new(format_args!(
                    "`{other}` is not an algorithm; valid values are {}",
                    ALGORITHMS.join(", ")
                )));
            }
        };
        let key = STANDARD
            .decode(secret.reveal().trim())
            .ok()
            .filter(|key| !key.is_empty())
            .ok_or_else(|| DnsError::new("the secret of the key is not base64"))?;
        let signer = TSigner::new(key, algorithm, name_of(key_name)?, FUDGE)
            .map_err(|error| DnsError::new(format_args!("the key cannot be used: {error}")))?;
        Ok(Self {
            server,
            zone,
            signer,
        })
    }

    pub(crate) async fn change(
        &self,
        name: &str,
        value: &str,
        change: Change,
        api: &Api,
        lookup: &Lookup,
    ) -> Result<(), DnsError> {
        let text = RData::TXT(TXT::new(vec![value.to_owned()]));
        let mut record = Record::from_rdata(name_of(name)?, TTL, text);
        if change == Change::Remove {
            // Deletes this one record (RFC 2136 2.5.4).
            record.dns_class = DNSClass::NONE;
            record.ttl = 0;
        }
        let zone = self.zone_of(name, lookup).await?;
        self.update(&zone, Some(record), api).await
    }

    /// Sends an update without a change, which the server authenticates.
    pub(crate) async fn check(
        &self,
        name: &str,
        api: &Api,
        lookup: &Lookup,
    ) -> Result<String, DnsError> {
        let zone = self.zone_of(name, lookup).await?;
        self.update(&zone, None, api).await?;
        Ok(format!("{} accepts updates of `{zone}`", self.server))
    }

    async fn zone_of(&self, name: &str, lookup: &Lookup) -> Result<String, DnsError> {
        match &self.zone {
            Some(zone) if name == zone || name.ends_with(&format!(".{zone}")) => Ok(zone.clone()),
            Some(zone) => Err(DnsError::new(format_args!(
                "the name is not in the zone `{zone}`"
            ))),
            None => lookup.zone_at(self.server, name).await,
        }
    }

    async fn update(&self, zone: &str, record: Option<Record>, api: &Api) -> Result<(), DnsError> {
        let failed = |why: &dyn std::fmt::Display| {
            DnsError::new(format_args!("update at {}: {why}", self.server))
        };
        let mut query = Query::new();
        query
            .set_name(name_of(zone)?)
            .set_query_class(DNSClass::IN)
            .set_query_type(RecordType::SOA);
        let mut message = Message::query();
        message.metadata.op_code = OpCode::Update;
        message.metadata.recursion_desired = false;
        message.add_zone(query);
        if let Some(record) = record {
            message.add_update(record);
        }
        let id = message.metadata.id;
        let now = u64::try_from(api.now().unix_seconds()).unwrap_or(0);
        let verifier = message
            .finalize(&self.signer, now)
            .map_err(|error| failed(&error))?;
        let sent = message.to_vec().map_err(|error| failed(&error))?;
        let answer = tokio::time::timeout(UPDATE_WITHIN, self.exchange(&sent)).await;
        let answer = answer
            .map_err(|_| failed(&"timed out"))?
            .map_err(|error| failed(&error))?;
        // A refusal of the key itself is not signed.
        let plain = Message::from_vec(&answer).map_err(|error| failed(&error))?;
        if plain.metadata.id != id {
            return Err(failed(&"the response belongs to another request"));
        }
        if plain.metadata.response_code != ResponseCode::NoError {
            return Err(failed(&said(plain.metadata.response_code)));
        }
        let mut verifier = verifier.ok_or_else(|| failed(&"the request was not signed"))?;
        match verifier.verify(&answer) {
            Ok(_) => Ok(()),
            Err(error) => Err(failed(&format_args!(
                "the signature of the response is not valid: {error}"
            ))),
        }
    }

    /// Sends a message over TCP, and reads the response.
    async fn exchange(&self, message: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.server).await?;
        let length = u16::try_from(message.len()).map_err(std::io::Error::other)?;
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(message);
        stream.write_all(&framed).await?;
        let length = stream.read_u16().await?;
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }
}

/// A response code, with what to check.
fn said(code: ResponseCode) -> String {
    let advice = match code {
        ResponseCode::Refused => "the update policy of the zone does not permit it",
        ResponseCode::NotAuth | ResponseCode::BADKEY | ResponseCode::BADSIG => {
            "check name, algorithm and secret of the key, and both clocks"
        }
        ResponseCode::NotZone => "the server does not have the zone",
        _ => "see the log of the name server",
    };
    format!("{code} ({advice})")
}

fn name_of(text: &str) -> Result<Name, DnsError> {
    let text = format!("{}.", text.trim_end_matches('.'));
    Name::from_ascii(&text)
        .map_err(|error| DnsError::new(format_args!("`{text}` is not a DNS name: {error}")))
}
