//! The metrics of each part, as rows of `/metrics`.

use culvert_control::Control;
use culvert_delivery::{Delivery, DestinationState, Health as DestinationHealth};
use culvert_edge::Edge;
use culvert_events::Reason;
use culvert_policy::SharedCounts;
use culvert_store::BatchClass;
use culvert_tunnel::nodes::Nodes;
use culvert_tunnel::server::Server;

use crate::{Sample, Value};

/// A metric without labels whose number only increases.
pub fn counter(name: &'static str, help: &'static str, value: u64) -> Sample {
    Sample {
        name,
        help,
        labels: Vec::new(),
        value: Value::Counter(value),
    }
}

/// A metric without labels whose number changes.
pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Sample {
    Sample {
        name,
        help,
        labels: Vec::new(),
        value: Value::Gauge(value),
    }
}

/// The edge.
pub fn edge(edge: &Edge) -> Vec<Sample> {
    let m = edge.meters();
    let mut samples = vec![
        gauge("edge_connections", "Open connections", m.connections.get()),
        counter("edge_accepted", "Connections accepted", m.accepted.get()),
        counter(
            "edge_refused_full",
            "Connections closed at accept: connection limit",
            m.refused_full.get(),
        ),
        counter(
            "edge_refused_source",
            "Connections closed at accept: connection limit per source",
            m.refused_source.get(),
        ),
        counter(
            "edge_refused_announcements",
            "Connections closed because the PROXY header was missing or malformed",
            m.refused_announcements.get(),
        ),
        counter(
            "edge_unknown_names",
            "TLS connections for an unknown name",
            m.unknown_names.get(),
        ),
        counter(
            "edge_handshakes_failed",
            "TLS handshakes that failed or timed out",
            m.handshakes_failed.get(),
        ),
        counter(
            "edge_refused_bindings",
            "Connections of Kubernetes operators refused after the handshake",
            m.refused_bindings.get(),
        ),
    ];
    samples.extend(requests(edge));
    samples.extend(upstreams(edge));
    samples.extend(refused(edge));
    samples.extend(overload(edge));
    samples.extend(traces(edge));
    samples
}

/// Refused traffic by reason.
fn refused(edge: &Edge) -> Vec<Sample> {
    let m = edge.meters();
    let by_reason = Reason::ALL.iter().zip(&m.refused);
    let mut samples: Vec<Sample> = by_reason
        .map(|(reason, count)| Sample {
            name: "edge_refused",
            help: "Requests and connections that the edge refused, by reason",
            labels: vec![("reason", reason.name().to_owned())],
            value: Value::Counter(count.get()),
        })
        .collect();
    samples.push(counter(
        "edge_refused_sampled",
        "Refused requests and connections without an event of their own, because others of their network stand for them",
        m.refusals_sampled.get(),
    ));
    samples
}

fn requests(edge: &Edge) -> Vec<Sample> {
    let m = edge.meters();
    let documents = edge.documents();
    vec![
        counter(
            "edge_requests",
            "Requests with a valid head",
            m.requests.get(),
        ),
        counter(
            "edge_requests_refused",
            "Requests rejected as malformed",
            m.requests_refused.get(),
        ),
        counter(
            "edge_unknown_hosts",
            "Requests for a host without an endpoint",
            m.unknown_hosts.get(),
        ),
        counter(
            "edge_challenges_answered",
            "Challenge requests of certificate authorities that were answered",
            m.challenges_answered.get(),
        ),
        counter(
            "edge_policy_failures",
            "Expressions of traffic policies that failed",
            m.policy.failures.get(),
        ),
        counter(
            "edge_policy_refusals",
            "Requests and connections rejected because a traffic policy could not decide",
            m.policy.refusals.get(),
        ),
        gauge(
            "edge_documents",
            "Key sets and other documents that policies use",
            documents.documents,
        ),
        gauge(
            "edge_documents_stale",
            "Of these, documents that are older than usual because they cannot be fetched",
            documents.stale,
        ),
        gauge(
            "edge_documents_missing",
            "Documents that policies need and that cannot be fetched",
            documents.missing,
        ),
        counter(
            "edge_document_failures",
            "Fetches of documents for policies that failed",
            documents.failures,
        ),
        counter("edge_logins", "Completed sign-ins", m.policy.logins.get()),
        counter(
            "edge_ports_failed",
            "TCP ports that could not be opened",
            m.ports_failed.get(),
        ),
        counter(
            "edge_bytes_in",
            "Bytes received from clients",
            m.bytes_in.get(),
        ),
        counter("edge_bytes_out", "Bytes sent to clients", m.bytes_out.get()),
        counter("edge_snapshots", "Snapshots applied", m.snapshots.get()),
        gauge(
            "edge_configuration_age_seconds",
            "Time since the configuration was known to be current; grows while the database is unreachable",
            m.configuration_age.get(),
        ),
        counter(
            "edge_outdated_refused",
            "Requests and connections refused because the configuration is older than `edge.copy_age_max`",
            m.outdated_refused.get(),
        ),
        gauge(
            "edge_overload_level",
            "Overload: 0 none, 1 busy, 2 tight, 3 full",
            m.overload_level.get(),
        ),
        counter(
            "edge_http2_errors",
            "HTTP/2 connections closed because of a client error",
            m.http2_errors.get(),
        ),
        counter(
            "edge_slow_readers",
            "Connections and streams closed because the client read too slowly",
            m.slow_readers.get(),
        ),
    ]
}

/// Connections to upstreams, and what the edge does if one fails.
fn upstreams(edge: &Edge) -> Vec<Sample> {
    let m = edge.meters();
    vec![
        counter(
            "edge_upstream_connects",
            "Connections made to upstreams",
            m.upstream_connects.get(),
        ),
        counter(
            "edge_upstream_connects_failed",
            "Connections to upstreams that failed",
            m.upstream_connects_failed.get(),
        ),
        counter(
            "edge_upstream_reused",
            "Requests on a reused upstream connection",
            m.upstream_reused.get(),
        ),
        counter(
            "edge_upstream_retries",
            "Requests retried on a new connection",
            m.upstream_retries.get(),
        ),
        counter(
            "edge_upstream_moves",
            "Requests and connections that went to another upstream of their endpoint",
            m.upstream_moves.get(),
        ),
        counter(
            "edge_upstream_moves_refused",
            "Requests that were not sent to another upstream because the budget for that was spent",
            m.upstream_moves_refused.get(),
        ),
        counter(
            "edge_upstreams_ejected",
            "Upstreams ejected after failures in a row",
            m.upstreams_ejected.get(),
        ),
        counter(
            "edge_upstreams_returned",
            "Upstreams used again after they were ejected",
            m.upstreams_returned.get(),
        ),
        counter(
            "edge_upstream_checks",
            "Health checks of upstreams",
            m.upstream_checks.get(),
        ),
        counter(
            "edge_upstream_checks_failed",
            "Health checks of upstreams that did not pass",
            m.upstream_checks_failed.get(),
        ),
        gauge(
            "edge_upstream_waiting",
            "Requests and connections that wait for a place at an upstream",
            m.upstream_waiting.get(),
        ),
        counter(
            "edge_upstream_waits",
            "Requests and connections that waited for a place at an upstream",
            m.upstream_waits.get(),
        ),
        counter(
            "edge_upstream_waits_refused",
            "Requests and connections that got no place at an upstream",
            m.upstream_waits_refused.get(),
        ),
        counter(
            "edge_upstream_failed",
            "Invalid upstream responses",
            m.upstream_failed.get(),
        ),
    ]
}

/// The traces of requests; none if they are not traced.
fn traces(edge: &Edge) -> Vec<Sample> {
    let Some(tracer) = edge.tracer() else {
        return Vec::new();
    };
    let m = tracer.meters();
    let waiting = u64::try_from(tracer.waiting()).unwrap_or(u64::MAX);
    let mut samples = vec![
        counter(
            "edge_traces_recorded",
            "Requests whose spans were recorded",
            m.recorded.get(),
        ),
        counter(
            "edge_trace_parents_refused",
            "Requests not recorded although their callers asked for it: limit per second",
            m.parents_refused.get(),
        ),
        counter(
            "edge_traces_undecided",
            "Requests not recorded because the expression of `tracing.sample` failed",
            m.undecided.get(),
        ),
        gauge("edge_spans_waiting", "Spans that wait to be sent", waiting),
        counter(
            "edge_spans_exported",
            "Spans that the receiver took",
            m.exported.get(),
        ),
        counter(
            "edge_span_export_retries",
            "Requests to the receiver of spans that failed and were repeated",
            m.retries.get(),
        ),
    ];
    let lost = [
        ("queue_full", &m.dropped),
        ("not_sent", &m.failed),
        ("rejected", &m.rejected),
    ];
    samples.extend(lost.map(|(reason, meter)| Sample {
        name: "edge_spans_lost",
        help: "Spans that were dropped, could not be sent, or were rejected by the receiver",
        labels: vec![("reason", reason.to_owned())],
        value: Value::Counter(meter.get()),
    }));
    samples
}

/// What the edge sheds, why, and the floods that it ends.
fn overload(edge: &Edge) -> Vec<Sample> {
    let m = edge.meters();
    let mut samples = Vec::new();
    let shed = [
        ("connections", &m.shed_connections),
        ("requests", &m.shed_requests),
        ("idle", &m.shed_idle),
        ("handshakes", &m.shed_handshakes),
        ("agents", &m.held_agents),
        ("event_fields", &m.events_trimmed),
        ("events", &m.shed_events),
        ("exchanges", &m.shed_exchanges),
    ];
    samples.extend(shed.map(|(what, meter)| Sample {
        name: "edge_shed",
        help: "Connections and requests rejected, delayed or ended because of overload",
        labels: vec![("what", what.to_owned())],
        value: Value::Counter(meter.get()),
    }));
    let pressure = [
        ("memory", &m.pressure.memory),
        ("files", &m.pressure.files),
        ("run_queue", &m.pressure.run_queue),
        ("store", &m.pressure.store),
    ];
    samples.extend(pressure.map(|(of, meter)| Sample {
        name: "edge_pressure_percent",
        help: "Usage of each resource; the highest sets the overload level",
        labels: vec![("of", of.to_owned())],
        value: Value::Gauge(meter.get()),
    }));
    let floods = [
        ("resets", &m.floods_resets),
        ("idle_frames", &m.floods_idle_frames),
        ("continuations", &m.floods_continuations),
    ];
    samples.extend(floods.map(|(reason, meter)| Sample {
        name: "edge_http2_floods",
        help: "HTTP/2 connections closed because of a flood",
        labels: vec![("reason", reason.to_owned())],
        value: Value::Counter(meter.get()),
    }));
    samples
}

/// The sessions and connections of agents.
pub fn agent(server: &Server, control: &Control) -> Vec<Sample> {
    let m = server.meters();
    let traffic = control.agents.agent_traffic();
    let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    vec![
        gauge(
            "agent_sessions",
            "Agent sessions, including disconnected ones that may resume",
            number(control.agents.agent_sessions()),
        ),
        gauge(
            "agent_connections",
            "Authenticated agent connections",
            number(server.bindings().connections()),
        ),
        gauge(
            "agent_endpoints",
            "Online agent endpoints",
            number(server.bindings().endpoints()),
        ),
        counter(
            "agent_accepted",
            "Connections accepted from agents",
            m.accepted.get(),
        ),
        counter(
            "agent_turned_away",
            "Accepted agent connections that displaced an unauthenticated one",
            m.turned_away.get(),
        ),
        counter(
            "agent_handshakes_failed",
            "TLS handshakes of agents that failed or timed out",
            m.handshakes_failed.get(),
        ),
        counter(
            "agent_admitted",
            "Accepted agents, including reconnects",
            m.admitted.get(),
        ),
        counter("agent_refused", "Rejected agents", m.refused.get()),
        counter(
            "agent_bound",
            "Endpoints bound by agents, including reconnects",
            m.bound.get(),
        ),
        counter(
            "agent_streams",
            "Streams opened to agents, up to the last 10 seconds",
            traffic.opened,
        ),
        counter(
            "agent_bytes_received",
            "Bytes received from agents, up to the last 10 seconds",
            traffic.received,
        ),
        counter(
            "agent_bytes_sent",
            "Bytes sent to agents, up to the last 10 seconds",
            traffic.sent,
        ),
        counter(
            "agent_calls_refused",
            "Rejected agent requests",
            m.calls_refused.get(),
        ),
    ]
}

/// Managed certificates.
pub fn certificate(control: &Control) -> Vec<Sample> {
    let m = control.certificates.certificate_meters();
    vec![
        counter(
            "certificates_issued",
            "Managed certificates issued, including renewals",
            m.issued.get(),
        ),
        counter(
            "certificate_failures",
            "Failed requests for managed certificates",
            m.failed.get(),
        ),
    ]
}

/// The recorder, the queue and the destinations.
pub fn delivery(delivery: &Delivery) -> Vec<Sample> {
    let m = delivery.meters();
    let mut samples = vec![
        counter("events_offered", "Deliveries considered", m.offered.get()),
        counter(
            "events_recovered",
            "Deliveries found in the queue at start",
            m.recovered.get(),
        ),
        counter(
            "events_filtered",
            "Deliveries skipped by a filter",
            m.filtered.get(),
        ),
        counter(
            "event_filter_errors",
            "Deliveries skipped because the filter failed",
            m.filter_errors.get(),
        ),
        counter(
            "events_queued",
            "Deliveries written to the queue",
            m.queued.get(),
        ),
        counter(
            "events_delivered",
            "Deliveries acknowledged",
            m.delivered.get(),
        ),
        counter(
            "events_dead_lettered",
            "Deliveries abandoned",
            m.dead_lettered.get(),
        ),
        counter(
            "events_dead_letters_forgotten",
            "Events of dead letters replaced by newer ones of the same destination and class",
            delivery.forgotten(BatchClass::Audit) + delivery.forgotten(BatchClass::Traffic),
        ),
        gauge(
            "events_waiting",
            "Pending deliveries, in the queue of all nodes or in this node's memory",
            delivery.waiting(),
        ),
        counter(
            "events_lost",
            "Deliveries lost in a crash before they were queued",
            m.lost.get(),
        ),
        counter(
            "events_maybe_lost",
            "Deliveries besides that a power cut may have taken before they were counted, at most",
            m.maybe_lost.get(),
        ),
        gauge(
            "event_files_set_aside",
            "Damaged files of events that starts of the server set aside and that are still there",
            u64::try_from(delivery.files_set_aside()).unwrap_or(u64::MAX),
        ),
        gauge(
            "event_log_up",
            "Whether the event log in NATS is available, 1 or 0; 0 if not configured",
            m.log_up.get(),
        ),
        counter(
            "event_log_fallbacks",
            "Deliveries written to the database because the event log was unavailable",
            m.log_fallbacks.get(),
        ),
        counter("event_flushes", "Appends to the queue", m.flushes.get()),
        counter(
            "event_flush_errors",
            "Appends that failed and were retried",
            m.flush_errors.get(),
        ),
    ];
    samples.extend(logs(delivery));
    let by = |name, help, label, values: Vec<(&'static str, u64)>| {
        values.into_iter().map(move |(value, number)| Sample {
            name,
            help,
            labels: vec![(label, value.to_owned())],
            value: Value::Counter(number),
        })
    };
    samples.extend(by(
        "events_dropped",
        "Deliveries lost",
        "reason",
        m.dropped.each().collect(),
    ));
    let truncated = vec![
        ("headers", m.truncated_headers.get()),
        ("logs", m.truncated_logs.get()),
        ("url", m.truncated_url.get()),
    ];
    samples.extend(by(
        "events_truncated",
        "Events truncated to the size limit",
        "reason",
        truncated,
    ));
    let refused = delivery.net().refused().collect();
    samples.extend(by(
        "guard_refused",
        "Outgoing connections denied by the address guard",
        "rule",
        refused,
    ));
    samples.extend(destination_samples(delivery));
    samples
}

/// The audit log, the traffic log, captures, and sends.
fn logs(delivery: &Delivery) -> Vec<Sample> {
    let m = delivery.meters();
    vec![
        counter(
            "outbox_copied",
            "Audit events copied from the outbox",
            m.outbox_copied.get(),
        ),
        gauge(
            "audit_events",
            "Events in the audit log",
            m.audit_events.get(),
        ),
        gauge(
            "audit_head",
            "Position of the last event of the audit log",
            m.audit_head.get(),
        ),
        gauge(
            "audit_held_from",
            "Position of the oldest audit event that a hold keeps beyond the retention, 0 for none",
            m.audit_held_from.get(),
        ),
        counter(
            "audit_pruned",
            "Audit events deleted after the retention period",
            m.audit_pruned.get(),
        ),
        counter(
            "events_replayed",
            "Events queued by replays",
            m.replayed.get(),
        ),
        counter(
            "events_kept",
            "Traffic events retained for searches and replays",
            m.retained.get(),
        ),
        counter(
            "events_unkept",
            "Traffic events that could not be retained",
            m.not_retained.get(),
        ),
        gauge(
            "events_kept_bytes",
            "Bytes of retained traffic events",
            m.retained_bytes.get(),
        ),
        counter(
            "captures_kept",
            "Traffic events whose captured messages were stored",
            m.bodies_kept.get(),
        ),
        counter(
            "captures_lost",
            "Traffic events whose captured messages could not be stored",
            m.bodies_lost.get(),
        ),
        counter(
            "captures_skipped",
            "Captured messages and bodies omitted because the memory for captures was used up",
            delivery.bodies_skipped(),
        ),
        gauge(
            "captures_kept_bytes",
            "Bytes of stored captured messages",
            m.bodies_bytes.get(),
        ),
        counter("event_sends", "Sends, including retries", m.sends.get()),
        counter(
            "event_repeated_sends",
            "Sends that may be duplicates",
            m.repeated_sends.get(),
        ),
        counter(
            "event_leases_lost",
            "Settlements rejected because the lease expired",
            m.leases_lost.get(),
        ),
        counter(
            "event_tail_lost",
            "Events that a slow live tail missed",
            m.tail_lost.get(),
        ),
    ]
}

/// The health of each destination, as known to this node.
fn destination_samples(delivery: &Delivery) -> Vec<Sample> {
    type Read = fn(&DestinationHealth) -> u64;
    let seconds = |at: Option<culvert_base::Timestamp>| {
        at.and_then(|at| u64::try_from(at.unix_seconds()).ok())
            .unwrap_or(0)
    };
    let healths = delivery.healths();
    let each = |name, help, counter, read: &dyn Fn(&DestinationHealth) -> u64| -> Vec<Sample> {
        let sample = |(id, health): &(String, DestinationHealth)| Sample {
            name,
            help,
            labels: vec![("destination", id.clone())],
            value: match counter {
                true => Value::Counter(read(health)),
                false => Value::Gauge(read(health)),
            },
        };
        healths.iter().map(sample).collect()
    };
    let counters: [(_, _, Read); 5] = [
        (
            "destination_sent",
            "Events accepted by a destination",
            |health| health.sent,
        ),
        (
            "destination_bytes",
            "Bytes of events accepted by a destination",
            |health| health.bytes,
        ),
        (
            "destination_batches",
            "Sends to a destination, including retries",
            |health| health.batches,
        ),
        (
            "destination_dropped",
            "Events lost for a destination",
            |health| health.dropped,
        ),
        (
            "destination_failures",
            "Failed sends to a destination",
            |health| health.failures.iter().map(|(_, count)| count).sum(),
        ),
    ];
    let gauges: [(_, _, Read); 3] = [
        (
            "destination_queued",
            "Pending events for a destination",
            |health| health.queued,
        ),
        (
            "destination_dead_letters",
            "Dead letters of a destination",
            |health| health.dead_lettered,
        ),
        (
            "destination_state",
            "0 ok, 1 retrying, 2 unhealthy",
            |health| match health.state {
                DestinationState::Ok => 0,
                DestinationState::Retrying => 1,
                DestinationState::Unhealthy => 2,
            },
        ),
    ];
    let mut samples = Vec::new();
    for (name, help, read) in counters {
        samples.extend(each(name, help, true, &read));
    }
    for (name, help, read) in gauges {
        samples.extend(each(name, help, false, &read));
    }
    samples.extend(each(
        "destination_last_success_seconds",
        "Unix time when a destination last accepted a batch",
        false,
        &|health| seconds(health.last_success_at),
    ));
    samples
}

/// The connections to other nodes.
pub fn nodes(nodes: &Nodes, control: &Control) -> Vec<Sample> {
    let m = nodes.meters();
    vec![
        gauge(
            "node_connections",
            "Open connections to other nodes",
            u64::try_from(nodes.connections()).unwrap_or(u64::MAX),
        ),
        gauge(
            "node_helpers",
            "Other nodes that this node can ask to write its heartbeat when it loses the database",
            u64::try_from(control.agents.helpers()).unwrap_or(u64::MAX),
        ),
        counter(
            "node_carried",
            "Connections forwarded to agents of other nodes",
            m.carried.get(),
        ),
        counter(
            "node_carry_failures",
            "Connections for agents of another node that failed",
            m.failed.get(),
        ),
        counter(
            "node_brought",
            "Connections from other nodes for agents of this node",
            m.brought.get(),
        ),
    ]
}

/// The exchange of the counts of rate limits.
pub fn rate_limits(counts: &SharedCounts) -> Vec<Sample> {
    let m = counts.meters();
    vec![
        gauge(
            "rate_limit_exchange",
            "1 while this node exchanges the counts of cluster rate limits, otherwise 0",
            m.is_up.get(),
        ),
        counter(
            "rate_limit_counts_sent",
            "Rate limit counts sent to other nodes",
            m.sent.get(),
        ),
        counter(
            "rate_limit_counts_received",
            "Rate limit counts received from other nodes",
            m.heard.get(),
        ),
        counter(
            "rate_limit_counts_refused",
            "Counts of other nodes that were not understood, late, or had no room",
            m.refused.get(),
        ),
    ]
}
