//! What each part counted, as rows of `/metrics`.

use culvert_control::Control;
use culvert_delivery::{Delivery, Health as DestinationHealth, State};
use culvert_edge::Edge;
use culvert_store::BatchClass;

use super::Sample;

pub(crate) fn counter(name: &'static str, help: &'static str, value: u64) -> Sample {
    Sample {
        name,
        help,
        label: None,
        counter: true,
        value,
    }
}

pub(crate) fn gauge(name: &'static str, help: &'static str, value: u64) -> Sample {
    Sample {
        name,
        help,
        label: None,
        counter: false,
        value,
    }
}

pub(crate) fn edge(edge: &Edge) -> Vec<Sample> {
    let m = edge.meters();
    let mut samples = vec![
        gauge(
            "edge_connections",
            "Connections open now",
            m.connections.get(),
        ),
        counter("edge_accepted", "Connections accepted", m.accepted.get()),
        counter(
            "edge_refused_full",
            "Connections closed at accept: as many as are taken",
            m.refused_full.get(),
        ),
        counter(
            "edge_refused_source",
            "Connections closed at accept: too many from one source",
            m.refused_source.get(),
        ),
        counter(
            "edge_refused_announcements",
            "Connections closed because the PROXY header was missing or malformed",
            m.refused_announcements.get(),
        ),
        counter(
            "edge_unknown_names",
            "TLS connections for a name nobody has here",
            m.unknown_names.get(),
        ),
        counter(
            "edge_handshakes_failed",
            "TLS handshakes that failed or took too long",
            m.handshakes_failed.get(),
        ),
        counter(
            "edge_requests",
            "Requests whose head was believed",
            m.requests.get(),
        ),
        counter(
            "edge_requests_refused",
            "Requests refused for what is on the wire",
            m.requests_refused.get(),
        ),
        counter(
            "edge_unknown_hosts",
            "Requests for a host without an endpoint",
            m.unknown_hosts.get(),
        ),
        counter(
            "edge_challenges_answered",
            "Looks of a certificate authority that were answered",
            m.challenges_answered.get(),
        ),
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
            "Requests on an upstream connection used before",
            m.upstream_reused.get(),
        ),
        counter(
            "edge_upstream_retries",
            "Requests sent again on a fresh connection",
            m.upstream_retries.get(),
        ),
        counter(
            "edge_upstream_failed",
            "Upstream answers that could not be taken",
            m.upstream_failed.get(),
        ),
        counter(
            "edge_policy_failures",
            "Expressions of traffic policies that failed",
            m.policy_failures.get(),
        ),
        counter("edge_logins", "Users who logged in", m.logins.get()),
        counter(
            "edge_ports_failed",
            "TCP ports that could not be listened on",
            m.ports_failed.get(),
        ),
        counter(
            "edge_bytes_in",
            "Bytes received from clients",
            m.bytes_in.get(),
        ),
        counter("edge_bytes_out", "Bytes sent to clients", m.bytes_out.get()),
        counter(
            "edge_snapshots",
            "Snapshots taken into use",
            m.snapshots.get(),
        ),
        gauge(
            "edge_overload_level",
            "Overload: 0 none, 1 busy, 2 tight, 3 full",
            m.overload_level.get(),
        ),
        counter(
            "edge_http2_errors",
            "HTTP/2 connections ended for an error of the client",
            m.http2_errors.get(),
        ),
        counter(
            "edge_slow_readers",
            "Connections and streams cut because the client took too little of what waited for it",
            m.slow_readers.get(),
        ),
    ];
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
        help: "What was turned away, held up or ended early for overload",
        label: Some(("what", what.to_owned())),
        counter: true,
        value: meter.get(),
    }));
    let pressure = [
        ("memory", &m.pressure.memory),
        ("files", &m.pressure.files),
        ("run_queue", &m.pressure.run_queue),
        ("store", &m.pressure.store),
    ];
    samples.extend(pressure.map(|(of, meter)| Sample {
        name: "edge_pressure_percent",
        help: "What is used of what may be; the largest makes the level of overload",
        label: Some(("of", of.to_owned())),
        counter: false,
        value: meter.get(),
    }));
    let floods = [
        ("resets", &m.floods_resets),
        ("idle_frames", &m.floods_idle_frames),
        ("continuations", &m.floods_continuations),
    ];
    samples.extend(floods.map(|(reason, meter)| Sample {
        name: "edge_http2_floods",
        help: "HTTP/2 connections cut because their client flooded",
        label: Some(("reason", reason.to_owned())),
        counter: true,
        value: meter.get(),
    }));
    samples
}

pub(crate) fn agent(server: &culvert_tunnel::server::Server, control: &Control) -> Vec<Sample> {
    let m = server.meters();
    let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    vec![
        gauge(
            "agent_sessions",
            "Sessions of agents, those that may come back in a moment among them",
            number(control.agent_sessions()),
        ),
        gauge(
            "agent_connections",
            "Connections of agents that were let in",
            number(server.bindings().connections()),
        ),
        gauge(
            "agent_endpoints",
            "Endpoints that agents serve",
            number(server.bindings().endpoints()),
        ),
        counter(
            "agent_accepted",
            "Connections accepted from agents",
            m.accepted.get(),
        ),
        counter(
            "agent_turned_away",
            "Of them, those for which another that had not said who it is was closed",
            m.turned_away.get(),
        ),
        counter(
            "agent_handshakes_failed",
            "TLS handshakes of agents that failed or took too long",
            m.handshakes_failed.get(),
        ),
        counter(
            "agent_admitted",
            "Agents that were let in, returning ones among them",
            m.admitted.get(),
        ),
        counter(
            "agent_refused",
            "Agents that were not let in",
            m.refused.get(),
        ),
        counter(
            "agent_bound",
            "Endpoints granted to agents, returning ones among them",
            m.bound.get(),
        ),
        counter(
            "agent_calls_refused",
            "Requests of agents that were refused",
            m.calls_refused.get(),
        ),
    ]
}

pub(crate) fn certificate(control: &Control) -> Vec<Sample> {
    let m = control.certificate_meters();
    vec![
        counter(
            "certificates_issued",
            "Managed certificates issued, first ones and renewals",
            m.issued.get(),
        ),
        counter(
            "certificate_failures",
            "Attempts to get a managed certificate that failed",
            m.failed.get(),
        ),
    ]
}

pub(crate) fn delivery(delivery: &Delivery) -> Vec<Sample> {
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
            "Deliveries a filter kept back",
            m.filtered.get(),
        ),
        counter(
            "event_filter_errors",
            "Of them, kept back because the filter failed",
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
            "Deliveries given up",
            m.dead_lettered.get(),
        ),
        counter(
            "events_dead_letters_forgotten",
            "Events of dead letters that made room for newer ones of the same destination and class",
            delivery.forgotten(BatchClass::Audit) + delivery.forgotten(BatchClass::Traffic),
        ),
        gauge(
            "events_waiting",
            "Deliveries waiting now, in the queue of all nodes or in the memory of this one",
            delivery.waiting(),
        ),
        counter(
            "events_lost",
            "Deliveries a crash took before they were queued",
            m.lost.get(),
        ),
        counter(
            "events_maybe_lost",
            "Deliveries besides that a power cut may have taken before they were counted, at most",
            m.maybe_lost.get(),
        ),
        gauge(
            "event_log_up",
            "Whether the event log in NATS can be used, 1 or 0; 0 too where there is none",
            m.log_up.get(),
        ),
        counter(
            "event_log_fallbacks",
            "Deliveries that went to the database because the event log did not take them",
            m.log_fallbacks.get(),
        ),
        counter("event_flushes", "Appends to the queue", m.flushes.get()),
        counter(
            "event_flush_errors",
            "Appends that failed and were tried again",
            m.flush_errors.get(),
        ),
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
        counter(
            "audit_pruned",
            "Audit events that were older than the retention",
            m.audit_pruned.get(),
        ),
        counter(
            "events_replayed",
            "Events put in line once more by replays",
            m.replayed.get(),
        ),
        counter(
            "events_kept",
            "Traffic events written down for replays",
            m.kept.get(),
        ),
        counter(
            "events_unkept",
            "Traffic events that could not be written down for replays",
            m.unkept.get(),
        ),
        gauge(
            "events_kept_bytes",
            "Bytes of traffic events kept for replays",
            m.kept_bytes.get(),
        ),
        counter("event_sends", "Sends, first and repeated", m.sends.get()),
        counter(
            "event_repeated_sends",
            "Sends that receivers may have seen before",
            m.repeated_sends.get(),
        ),
        counter(
            "event_leases_lost",
            "Settlements refused because the lease had passed on",
            m.leases_lost.get(),
        ),
        counter(
            "event_tail_lost",
            "Lines a slow live tail missed",
            m.tail_lost.get(),
        ),
    ];
    let by = |name, help, label, values: Vec<(&'static str, u64)>| {
        values.into_iter().map(move |(value, number)| Sample {
            name,
            help,
            label: Some((label, value.to_owned())),
            counter: true,
            value: number,
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
        "Events shortened to their size limit",
        "reason",
        truncated,
    ));
    let refused = delivery.net().refused().collect();
    samples.extend(by(
        "guard_refused",
        "Outgoing connections the address guard refused",
        "rule",
        refused,
    ));
    samples.extend(destination_samples(delivery));
    samples
}

/// How each destination is doing, as far as this node knows.
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
            label: Some(("destination", id.clone())),
            counter,
            value: read(health),
        };
        healths.iter().map(sample).collect()
    };
    let counters: [(_, _, Read); 5] = [
        (
            "destination_sent",
            "Events that a destination took",
            |health| health.sent,
        ),
        (
            "destination_bytes",
            "Bytes of events that a destination took",
            |health| health.bytes,
        ),
        (
            "destination_batches",
            "Sends to a destination, repeated ones too",
            |health| health.batches,
        ),
        (
            "destination_dropped",
            "Events for a destination that were lost",
            |health| health.dropped,
        ),
        (
            "destination_failures",
            "Sends to a destination that failed",
            |health| health.failures.iter().map(|(_, count)| count).sum(),
        ),
    ];
    let gauges: [(_, _, Read); 3] = [
        (
            "destination_queued",
            "Events waiting for a destination",
            |health| health.queued,
        ),
        (
            "destination_dead_letters",
            "Dead letters kept of a destination",
            |health| health.dead_lettered,
        ),
        (
            "destination_state",
            "0 ok, 1 retrying, 2 unhealthy",
            |health| match health.state {
                State::Ok => 0,
                State::Retrying => 1,
                State::Unhealthy => 2,
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
        "When a destination last took a batch, in seconds since 1970",
        false,
        &|health| seconds(health.last_success_at),
    ));
    samples
}

pub(crate) fn api(m: &culvert_api::Meters) -> Vec<Sample> {
    use std::sync::atomic::Ordering::Relaxed;
    vec![
        counter(
            "api_requests",
            "Requests answered",
            m.requests.load(Relaxed),
        ),
        counter(
            "api_refused",
            "Answered with a refusal",
            m.refused.load(Relaxed),
        ),
        counter(
            "api_failed",
            "Answered with a failure of ours",
            m.failed.load(Relaxed),
        ),
        counter(
            "api_unauthenticated",
            "Refused for their credential",
            m.unauthenticated.load(Relaxed),
        ),
        counter(
            "api_shed",
            "Answered 503 for want of room",
            m.shed.load(Relaxed),
        ),
        gauge(
            "api_connections",
            "Open connections",
            m.connections.load(Relaxed),
        ),
        gauge("api_tails", "Open live tails", m.tails.load(Relaxed)),
    ]
}
