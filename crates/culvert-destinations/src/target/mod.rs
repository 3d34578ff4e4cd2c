//! Targets: one file per remote system, each exporting one `static TYPE`.
//!
//! A target sends one batch and returns the result. It never delays and never stores anything: the worker retries,
//! splits and gives up. A `TYPE` tells other modules the limits and fields of a target, and how a configuration is
//! checked, merged, redacted and opened.

mod aws_resource;
pub mod azure_logs_ingestion;
pub mod clickhouse;
pub mod cloudwatch_logs;
pub mod datadog;
pub mod debug;
pub mod discord;
pub mod elasticsearch;
pub(crate) mod envelope;
pub mod eventbridge;
pub mod file;
pub mod firehose;
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
pub mod slack;
pub mod smtp;
pub mod splunk_hec;
pub mod sqs;
pub mod syslog;
mod troubles;
pub(crate) mod verdict;
pub mod webhook;

use culvert_target::{TargetType, TargetTypes};

/// The table of the targets.
pub static TYPES: TargetTypes = TargetTypes::new(ALL);

/// Every target, sorted by name.
static ALL: &[&TargetType] = &[
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

#[cfg(test)]
mod tests;
