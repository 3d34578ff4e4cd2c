//! The producer's side of Kafka's protocol: requests over one connection to one broker.
//!
//! It uses five requests, in fixed versions that every broker from 0.11 to 4.0 supports, as
//! described in the protocol guide of Apache Kafka. The published clients connect to any address
//! that a broker names, and allocate memory by the sizes it sends. Here every address goes through
//! the guard, a response is at most [`ANSWER_BYTES_MAX`] long, and no length is trusted beyond the
//! bytes received.
//!
//! Not here: the choice of partitions, and what a failure means (`target::kafka`).

pub(crate) mod errors;
pub(crate) mod records;
mod scram;
pub(crate) mod wire;

use std::time::Duration;

use culvert_base::{Entropy, Secret};
use culvert_target::failure::{Failure, FailureClass, scrub};
use culvert_target::net::Net;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::tls_client::{Duplex, Peer};
use scram::Scram;
use wire::{Cut, In, Out};

/// Maximum size of a response in bytes. The metadata of a topic with ten thousand partitions takes
/// half of it.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Time limit of a request. After it, the connection is closed.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// How long a broker waits for its replicas, in milliseconds.
const REPLICAS_MS: i32 = 8_000;
const CLIENT: &str = "culvert";

/// An API key and the version in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Api(pub(crate) i16, pub(crate) i16);

pub(crate) const PRODUCE: Api = Api(0, 3);
pub(crate) const METADATA: Api = Api(3, 4);
pub(crate) const SASL_HANDSHAKE: Api = Api(17, 1);
pub(crate) const INIT_PRODUCER_ID: Api = Api(22, 0);
pub(crate) const SASL_AUTHENTICATE: Api = Api(36, 0);

/// Authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "KafkaSaslMechanism")]
pub(crate) enum Mechanism {
    /// User name and password in plain text.
    Plain,
    /// A proof of the password, by SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// A proof of the password, by SHA-512.
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

impl Mechanism {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// User name, password and mechanism.
#[derive(Debug)]
pub(crate) struct Login {
    pub(crate) mechanism: Mechanism,
    pub(crate) user: String,
    pub(crate) password: Secret,
}

/// A connection to one broker.
pub(crate) struct Link {
    stream: Box<dyn Duplex>,
    correlation: i32,
}

/// The cluster's brokers and the metadata of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    /// ID, host and port of each broker.
    pub(crate) brokers: Vec<(i32, String, i32)>,
    /// The error code of the topic; 0 if none.
    pub(crate) error: i16,
    /// ID and leader of each partition, sorted by ID. A negative leader means none.
    pub(crate) partitions: Vec<(i32, i32)>,
}

/// A producer ID and its epoch, by which brokers recognise repeated batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProducerId {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

impl Link {
    /// Connects to a broker through the guard, and signs in.
    pub(crate) async fn open(
        peer: &Peer,
        login: Option<&Login>,
        net: &Net,
    ) -> Result<Self, Failure> {
        let mut link = Self {
            stream: peer.connect(net).await?,
            correlation: 0,
        };
        if let Some(login) = login {
            link.log_in(login, net.entropy()).await?;
        }
        Ok(link)
    }

    async fn log_in(&mut self, login: &Login, entropy: &dyn Entropy) -> Result<(), Failure> {
        let name = login.mechanism.name();
        let mut out = Out::default();
        out.text(name);
        let answer = self.ask(SASL_HANDSHAKE, out).await?;
        let error = In::new(&answer).i16()?;
        errors::check(error)?;
        let password = login.password.reveal();
        if login.mechanism == Mechanism::Plain {
            let said = format!("\0{}\0{password}", login.user);
            return self.authenticate(said.as_bytes(), password).await.map(drop);
        }
        let nonce = entropy.text(
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
            24,
        );
        let scram = Scram::new(login.mechanism, &login.user, &nonce);
        let first = self
            .authenticate(scram.first().as_bytes(), password)
            .await?;
        let proof = scram.answer(&first, password).map_err(no_scram)?;
        let last = self.authenticate(proof.last.as_bytes(), password).await?;
        proof.check(&last).map_err(no_scram)
    }

    async fn authenticate(&mut self, said: &[u8], password: &str) -> Result<Vec<u8>, Failure> {
        let mut out = Out::default();
        out.bytes(said);
        let answer = self.ask(SASL_AUTHENTICATE, out).await?;
        let mut answer = In::new(&answer);
        let (error, message) = (answer.i16()?, answer.text()?.to_owned());
        errors::check(error).map_err(|failure| match message.is_empty() {
            true => failure,
            false => Failure {
                text: scrub(&message, &[password]),
                ..failure
            },
        })?;
        Ok(answer.bytes()?.to_vec())
    }

    /// Reads the metadata of a topic. Does not create the topic.
    pub(crate) async fn metadata(&mut self, topic: &str) -> Result<Metadata, Failure> {
        let mut out = Out::default();
        out.i32(1).text(topic).i8(0);
        let answer = self.ask(METADATA, out).await?;
        let mut answer = In::new(&answer);
        answer.i32()?;
        let mut metadata = Metadata::default();
        for _ in 0..answer.count()? {
            let (id, host, port) = (answer.i32()?, answer.text()?.to_owned(), answer.i32()?);
            answer.text()?;
            metadata.brokers.push((id, host, port));
        }
        answer.text()?;
        answer.i32()?;
        for _ in 0..answer.count()? {
            let (error, name) = (answer.i16()?, answer.text()?);
            if name == topic {
                metadata.error = error;
            }
            let is_ours = name == topic;
            answer.i8()?;
            for _ in 0..answer.count()? {
                let (_error, index, leader) = (answer.i16()?, answer.i32()?, answer.i32()?);
                for _replicas_and_those_in_sync in 0..2 {
                    for _ in 0..answer.count()? {
                        answer.i32()?;
                    }
                }
                if is_ours {
                    metadata.partitions.push((index, leader));
                }
            }
        }
        metadata.partitions.sort_unstable();
        Ok(metadata)
    }

    /// Requests a new producer ID.
    pub(crate) async fn producer_id(&mut self) -> Result<ProducerId, Failure> {
        let mut out = Out::default();
        out.i16(-1).i32(i32::MAX);
        let answer = self.ask(INIT_PRODUCER_ID, out).await?;
        let mut answer = In::new(&answer);
        answer.i32()?;
        errors::check(answer.i16()?)?;
        Ok(ProducerId {
            id: answer.i64()?,
            epoch: answer.i16()?,
        })
    }

    /// Appends a batch of records to each of these partitions of a topic, acknowledged by all
    /// in-sync replicas. Returns the error code of each partition that the broker reported.
    pub(crate) async fn produce(
        &mut self,
        topic: &str,
        batches: &[(i32, Vec<u8>)],
    ) -> Result<Vec<(i32, i16)>, Failure> {
        const ALL: i16 = -1;
        let mut out = Out::default();
        out.i16(-1).i16(ALL).i32(REPLICAS_MS);
        out.i32(1).text(topic).count(batches.len());
        for (partition, records) in batches {
            out.i32(*partition).bytes(records);
        }
        let answer = self.ask(PRODUCE, out).await?;
        let mut answer = In::new(&answer);
        let mut outcomes = Vec::new();
        for _ in 0..answer.count()? {
            let is_ours = answer.text()? == topic;
            for _ in 0..answer.count()? {
                let (partition, error) = (answer.i32()?, answer.i16()?);
                let _offset_and_time = (answer.i64()?, answer.i64()?);
                if is_ours {
                    outcomes.push((partition, error));
                }
            }
        }
        Ok(outcomes)
    }

    /// Sends a request and returns the body of its response. Only a failure to write the request
    /// means that the broker did not receive it.
    async fn ask(&mut self, Api(key, version): Api, body: Out) -> Result<Vec<u8>, Failure> {
        self.correlation = self.correlation.wrapping_add(1);
        let mut head = Out::default();
        head.i16(key)
            .i16(version)
            .i32(self.correlation)
            .text(CLIENT);
        let request = head.framed(body);
        let exchange = async {
            let broke = |_| Failure::new(FailureClass::Unknown, "connection", BROKE);
            self.stream.write_all(&request).await.map_err(broke)?;
            self.stream.flush().await.map_err(broke)?;
            let length = self.stream.read_i32().await.map_err(broke)?;
            let length = usize::try_from(length)
                .ok()
                .filter(|length| (4..=ANSWER_BYTES_MAX).contains(length))
                .ok_or(Cut)?;
            let mut answer = vec![0; length];
            self.stream.read_exact(&mut answer).await.map_err(broke)?;
            let mut start = In::new(&answer);
            if start.i32()? != self.correlation {
                return Err(Failure::from(Cut));
            }
            answer.drain(..4);
            Ok(answer)
        };
        tokio::time::timeout(REQUEST_DEADLINE, exchange)
            .await
            .map_err(|_| {
                let text = "the broker did not respond in time";
                Failure::new(FailureClass::Unknown, "timeout", text)
            })?
    }
}

const BROKE: &str = "the connection to the broker failed";

fn no_scram(what: &'static str) -> Failure {
    Failure::new(FailureClass::Auth, "sasl", what)
}

impl From<Cut> for Failure {
    fn from(_: Cut) -> Self {
        Self::new(
            FailureClass::Config,
            "protocol",
            "the broker's response is invalid",
        )
    }
}
