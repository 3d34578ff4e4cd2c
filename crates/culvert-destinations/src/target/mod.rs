//! Targets: one file per remote system, each exporting one `static TYPE`.
//!
//! A target sends one batch and returns the result. It never delays and never stores anything: the worker retries,
//! splits and gives up. A `TYPE` tells other modules the limits and fields of a target, and how a configuration is
//! checked, merged, redacted and opened.

mod aws_resource;
pub mod azure_logs_ingestion;
pub mod clickhouse;
pub mod cloudwatch_logs;
pub(crate) mod context;
pub mod datadog;
pub mod debug;
pub mod discord;
pub mod elasticsearch;
pub(crate) mod envelope;
pub mod eventbridge;
pub mod file;
pub mod firehose;
mod formatted;
mod http_intake;
pub mod kafka;
pub mod kinesis;
pub mod loki;
mod message;
mod message_pieces;
pub mod nats;
pub mod ntfy;
pub mod otlp;
pub mod pagerduty;
pub mod postgres;
pub mod pubsub;
pub mod rabbitmq;
mod record_stream;
pub mod s3;
pub(crate) mod settings;
pub mod slack;
pub mod smtp;
pub mod splunk_hec;
pub mod sqs;
pub mod syslog;
pub(crate) mod target_type;
mod troubles;
mod unopened;
pub(crate) mod verdict;
pub mod webhook;

pub use crate::config::Checked;
pub use crate::config::destination_ids::DestinationIds;
pub use crate::failure::{FAILURE_TEXT_MAX, Failure};
pub use context::TargetContext;
pub use formatted::formatted;
pub use settings::TargetSettings;
pub use target_type::{Gathers, Open, Run, Target, TargetType};
pub use unopened::unopened;
pub use verdict::{Outcome, Verdict};

/// Every target, sorted by name.
pub static ALL: &[&TargetType] = &[
    &azure_logs_ingestion::TYPE,
    &clickhouse::TYPE,
    &cloudwatch_logs::TYPE,
    &datadog::TYPE,
    &debug::TYPE,
    &discord::TYPE,
    &elasticsearch::TYPE,
    &eventbridge::TYPE,
    &file::TYPE,
    &firehose::TYPE,
    &kafka::TYPE,
    &kinesis::TYPE,
    &loki::TYPE,
    &nats::TYPE,
    &ntfy::TYPE,
    &otlp::TYPE,
    &pagerduty::TYPE,
    &postgres::TYPE,
    &pubsub::TYPE,
    &rabbitmq::TYPE,
    &s3::TYPE,
    &slack::TYPE,
    &smtp::TYPE,
    &splunk_hec::TYPE,
    &sqs::TYPE,
    &syslog::TYPE,
    &webhook::TYPE,
];

/// The target of that name.
pub fn find(name: &str) -> Option<&'static TargetType> {
    ALL.iter().copied().find(|ty| ty.name == name)
}

#[cfg(test)]
mod tests;
