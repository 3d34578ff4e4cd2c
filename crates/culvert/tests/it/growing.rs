//! Collections that grow, and what a full one costs.
//!
//! Every field of a struct that is a map, a set, a queue or a cache is in one of the tables below: those that clients
//! without an account can fill, with their bound and the steps of a lookup or an insertion, and all others. A new
//! field without a row fails the test. The steps are those of the kind of collection; rows whose code loops over
//! entries name the unit test that counts its steps in a full one.

use std::path::Path;

use crate::layers::root;

/// How entries are found.
#[derive(Clone, Copy, Debug)]
enum Access {
    /// At an end, by position, or by hash.
    Direct,
    /// A search tree or a binary search.
    Tree,
    /// All entries are visited, by a test that counts them.
    Counted(u64),
}

impl Access {
    /// The steps of a lookup or an insertion among `entries`.
    fn steps(self, entries: u64) -> u64 {
        match self {
            Self::Direct => 1,
            Self::Tree => 1 + u64::from(entries.checked_ilog2().unwrap_or(0)),
            Self::Counted(most) => most,
        }
    }
}

use Access::{Counted, Direct, Tree};

/// A collection that clients can fill: its field, the constant or setting of its bound, the default of this bound in
/// entries, how entries are found, and a test that counts steps or checks the bound.
type Row = (&'static str, &'static str, u64, Access, &'static str);

/// The most steps that a full collection costs more than an empty one.
const MORE_STEPS_MAX: u64 = 32;

const BY_CLIENTS: &[Row] = &[
    (
        "resources/audit/counted.rs ReadSample.reported",
        "REPORTED_MAX",
        1_000,
        Tree,
        "",
    ),
    (
        "api-http/connection/connection_state.rs State.unsent",
        "STREAMS_MAX",
        100,
        Tree,
        "a_response_of_which_the_peer_takes_nothing_is_late",
    ),
    (
        "delivery/retained_events/body_queue.rs QueuedBodies.waiting",
        "BodyBudget",
        65_536,
        Direct,
        "",
    ),
    (
        "edge/balance/gate.rs Queue.waiting",
        "WAITING_MAX",
        16_384,
        Tree,
        "",
    ),
    (
        "edge/recording/refusals.rs Refusals.collected",
        "COLLECTED_MAX",
        1_024,
        Direct,
        "what_is_collected_is_bounded_and_complete",
    ),
    (
        "http/http2/follow.rs Follower.open",
        "FOLLOWED_STREAMS_MAX",
        4_096,
        Tree,
        "other_protocols_and_too_many_streams_are_not_followed",
    ),
    (
        "http/http2/hpack.rs Decoder.table",
        "TABLE_BYTES_MAX",
        128,
        Direct,
        "",
    ),
    (
        "http/http2/session.rs Session.waiting",
        "streams_max",
        100,
        Direct,
        "",
    ),
    (
        "http/http2/session/recently_reset.rs RecentlyReset.streams",
        "STREAMS_MAX",
        256,
        Counted(11),
        "a_full_table_costs_a_few_comparisons",
    ),
    (
        "http/http2/session/stream.rs Stream.data",
        "STREAM_WINDOW",
        64,
        Direct,
        "",
    ),
    (
        "io/relay/mod.rs Direction.rest",
        "PIECES_MAX",
        16,
        Direct,
        "",
    ),
    (
        "io/relay/splice/linux.rs Pipes.by_source",
        "PIPES_MAX",
        256,
        Tree,
        "a_source_leaves_pipes_to_others",
    ),
    (
        "login/logins/mod.rs Logins.completing",
        "REFRESHES_MAX",
        1_024,
        Direct,
        "",
    ),
    (
        "login/logins/mod.rs Logins.ended",
        "REMEMBERED_MAX",
        100_000,
        Direct,
        "",
    ),
    (
        "login/logins/mod.rs Logins.noted",
        "REMEMBERED_MAX",
        100_000,
        Direct,
        "",
    ),
    (
        "login/logins/mod.rs Logins.refreshed",
        "REFRESHES_MAX",
        1_024,
        Direct,
        "",
    ),
    (
        "login/logins/mod.rs Logins.used",
        "REMEMBERED_MAX",
        100_000,
        Direct,
        "",
    ),
    (
        "login/logins/mod.rs Logins.users",
        "REMEMBERED_MAX",
        100_000,
        Direct,
        "",
    ),
    (
        "mux/chunks.rs Chunks.whole",
        "window_bytes_max",
        64,
        Direct,
        "",
    ),
    (
        "mux/connection.rs Connection.cooling",
        "streams_max",
        512,
        Direct,
        "",
    ),
    (
        "mux/connection.rs Connection.credits",
        "streams_max",
        512,
        Direct,
        "",
    ),
    (
        "mux/connection.rs Connection.events",
        "streams_max",
        512,
        Direct,
        "",
    ),
    (
        "mux/connection.rs Connection.lingering",
        "streams_max",
        512,
        Direct,
        "",
    ),
    (
        "mux/connection.rs Connection.resets",
        "answers_max",
        4_096,
        Direct,
        "",
    ),
    (
        "mux/connection.rs Connection.resting",
        "streams_max",
        512,
        Tree,
        "",
    ),
    (
        "mux/connection.rs Connection.round",
        "streams_max",
        512,
        Direct,
        "",
    ),
    (
        "mux/connection.rs Connection.settling",
        "streams_max",
        512,
        Direct,
        "",
    ),
    (
        "mux/connection.rs Connection.streams",
        "streams_max",
        100_000,
        Tree,
        "",
    ),
    (
        "mux/connection.rs Connection.unaccepted",
        "accept_max",
        1_024,
        Tree,
        "",
    ),
    (
        "mux/connection.rs Connection.waiting",
        "streams_max",
        512,
        Direct,
        "",
    ),
    (
        "mux/outbox.rs Outbox.slices",
        "streams_max",
        512,
        Direct,
        "",
    ),
    (
        "mux/retired.rs Retired.known",
        "REMEMBERED_MAX",
        512,
        Tree,
        "",
    ),
    (
        "mux/retired.rs Retired.order",
        "REMEMBERED_MAX",
        512,
        Direct,
        "",
    ),
    (
        "overload/census.rs Entries.by_source",
        "connections",
        16_384,
        Direct,
        "",
    ),
    (
        "policy/token/documents.rs Table.by_len",
        "DOCUMENTS_MAX",
        256,
        Tree,
        "an_owner_with_many_documents_evicts_only_its_own",
    ),
    (
        "policy/token/documents.rs Table.shares",
        "DOCUMENTS_MAX",
        256,
        Direct,
        "an_owner_with_many_documents_evicts_only_its_own",
    ),
    (
        "policy/rate_limit/fair_table.rs FairTable.by_len",
        "keys_max",
        65_536,
        Tree,
        "a_new_key_visits_few_buckets_of_a_full_table",
    ),
    (
        "policy/rate_limit/fair_table.rs FairTable.places",
        "keys_max",
        65_536,
        Counted(8),
        "a_new_key_visits_few_buckets_of_a_full_table",
    ),
    (
        "policy/rate_limit/fair_table.rs FairTable.sources",
        "keys_max",
        65_536,
        Direct,
        "a_new_key_visits_few_buckets_of_a_full_table",
    ),
    (
        "policy/identity/assertion_keys.rs AssertionKeys.recent",
        "RECENT_MAX",
        256,
        Direct,
        "an_assertion_is_sent_again_for_some_seconds_only",
    ),
    (
        "policy/rate_limit/shared_counts.rs State.buckets",
        "BUCKETS_MAX",
        65_536,
        Counted(8),
        "a_flood_of_keys_is_bounded_on_every_node",
    ),
    (
        "policy/rate_limit/shared_counts.rs State.moved",
        "BUCKETS_MAX",
        65_536,
        Direct,
        "a_flood_of_keys_is_bounded_on_every_node",
    ),
    (
        "resources/audit/repeated.rs Repeated.open",
        "OPEN_MAX",
        1_000,
        Direct,
        "a_flood_has_a_bounded_number_of_reports",
    ),
    (
        "ssh/held.rs Channel.pieces",
        "HELD_BYTES_MAX",
        4_096,
        Direct,
        "",
    ),
    (
        "ssh/held.rs State.channels",
        "HELD_BYTES_MAX",
        512,
        Tree,
        "",
    ),
    (
        "traces/queue.rs Waiting.traces",
        "queue_spans",
        20_000,
        Direct,
        "spans_and_their_memory_are_bounded_and_shared",
    ),
    (
        "tunnel/client/exchanges.rs State.kept",
        "KEPT_MAX",
        500,
        Direct,
        "",
    ),
    (
        "tunnel/client/forward.rs ToSocket.pieces",
        "GATHER_BYTES",
        128,
        Direct,
        "",
    ),
    (
        "tunnel/client/tap.rs Tap.open",
        "PIPELINED_MAX",
        16,
        Direct,
        "",
    ),
    (
        "tunnel/driver/shared.rs State.streams",
        "streams_max",
        100_000,
        Tree,
        "",
    ),
    (
        "tunnel/server/accept.rs SourcePermits.mute",
        "ConnectionLimits",
        16,
        Tree,
        "",
    ),
    (
        "tunnel/server/accept.rs SourcePermits.silent",
        "ConnectionLimits",
        16,
        Tree,
        "",
    ),
    (
        "tunnel/server/accept.rs SourcePermits.spoken",
        "ConnectionLimits",
        16,
        Tree,
        "",
    ),
    (
        "tunnel/server/accept.rs PermitTable.order",
        "ConnectionLimits",
        256,
        Tree,
        "",
    ),
    (
        "tunnel/server/accept.rs PermitTable.sources",
        "ConnectionLimits",
        256,
        Tree,
        "",
    ),
    (
        "upstream/names.rs Shared.running",
        "LOOKUPS_MAX",
        128,
        Direct,
        "who_holds_too_many_lookups_waits_and_others_do_not",
    ),
    (
        "tunnel/server/auth_backoff.rs AuthBackoff.until",
        "SOURCES_MAX",
        4_096,
        Counted(3),
        "no_number_of_sources_makes_it_grow",
    ),
    (
        "tunnel/server/bindings.rs RecentlyLost.at",
        "LOST_MAX",
        10_000,
        Direct,
        "what_was_lost_is_forgotten_a_little_at_a_time",
    ),
    (
        "tunnel/server/bindings.rs RecentlyLost.order",
        "LOST_MAX",
        10_000,
        Counted(2),
        "what_was_lost_is_forgotten_a_little_at_a_time",
    ),
    (
        "site/body.rs SiteBody.parts",
        "RANGES_MAX",
        16,
        Direct,
        "ranges_are_read_as_the_rfc_says",
    ),
];

/// Collections that callers with a credential or a key fill, under limits of their account.
const BY_ACCOUNTS: &[&str] = &[
    "api/event_stream/follow.rs Reader.waiting",
    "api-http/access/limits.rs Rolling.accounts",
    "agents/state.rs Agents.sessions",
    "agents/state.rs Agents.unanswered",
    "agents/state.rs LiveSession.endpoints",
    "access/use_table.rs UseChanges.objects",
    "access/use_table.rs UseTable.by_name",
    "access/use_table.rs UseTable.by_object",
    "access/use_table.rs Uses.grants",
    "access/use_table.rs Uses.live",
    "event-config/replay/replay_limits.rs ReplayLimits.owners",
    "identity/standing.rs Standings.known",
    "delivery/retained_events/event_query.rs AuditSource.rows",
    "delivery/retained_events/event_query.rs TrafficSource.summarized",
    "delivery/plane/meters.rs DroppedOffers.by_account",
    "delivery/tail/followers.rs Waiting.lines",
    "delivery/retained_events/search_turns.rs SearchTurns.owners",
    "delivery/subscription/mod.rs Compiled.barred",
    "delivery/subscription/mod.rs Subscription.barred",
    "tunnel/server/bindings.rs Connected.serves",
    "tunnel/server/bindings.rs State.ended_traffic",
    "tunnel/server/bindings.rs State.endpoints",
    "tunnel/server/bindings.rs State.legs",
    "tunnel/server/session.rs Admitted.serves",
    "tunnel/wire.rs LabelledRequest.labels",
];

/// Collections of configuration, or of one operation of the server: stored objects, settings,
/// compiled policies, nodes, destinations and batches.
const BY_SERVER: &[&str] = &[
    "api-http/openapi/schemas.rs Schemas.components",
    "api-http/openapi/schemas.rs Schemas.inputs",
    "api-http/openapi/schemas.rs Schemas.previews",
    "api-http/openapi/schemas.rs Schemas.views",
    "endpoints/kubernetes_operator/active_operators.rs ActiveOperators.changed_owners",
    "endpoints/kubernetes_operator/active_operators.rs ActiveOperators.operators",
    "access/active_owners.rs ActiveOwners.changed",
    "agents/failure_detector.rs FailureDetector.runs",
    "agents/lib.rs ReconcileState.addresses",
    "agents/lib.rs ReconcileState.credentials",
    "agents/lib.rs ReconcileState.domains",
    "agents/lib.rs ReconcileState.holders",
    "agents/lib.rs ReconcileState.ingresses",
    "agents/lib.rs ReconcileState.issued",
    "agents/lib.rs ReconcileState.keys",
    "agents/lib.rs ReconcileState.to_check",
    "agents/reserved_names.rs ReservedNames.by_expiry",
    "agents/reserved_names.rs ReservedNames.by_owner",
    "agents/reserved_names.rs ReservedNames.grown",
    "agents/reserved_names.rs ReservedNames.names",
    "agents/state.rs AgentCertificates.issued",
    "agents/state.rs Agents.others",
    "agents/state.rs Agents.removed",
    "certificates/authority.rs Authority.made",
    "control/alerting/agents.rs Agents.marks",
    "control/alerting/facts.rs Facts.failing_since",
    "control/alerting/facts.rs Facts.health",
    "control/alerting/facts.rs Facts.key_rules",
    "control/alerting/facts.rs Facts.key_uses",
    "control/alerting/facts.rs Facts.objects",
    "control/alerting/facts.rs Facts.points",
    "control/alerting/facts.rs SignIns.seen",
    "control/alerting/mod.rs Memory.alerts",
    "control/alerting/mod.rs Memory.rules",
    "control/alerting/transition.rs Pending.there",
    "control/alerting/truth.rs Asked.open",
    "control/alerting/truth.rs Truths.unknown",
    "control/audit_hold/retention.rs Seen.filters",
    "control/compile/copied.rs CopySource.ids",
    "control/compile/state.rs Due.endpoints",
    "control/compile/state.rs CompileState.certificates",
    "control/compile/state.rs CompileState.destinations",
    "control/compile/state.rs CompileState.domains",
    "control/compile/state.rs CompileState.elsewhere",
    "control/compile/state.rs CompileState.endpoints",
    "control/compile/state.rs CompileState.ends",
    "control/compile/state.rs CompileState.ingresses",
    "control/compile/state.rs CompileState.opened",
    "control/compile/state.rs CompileState.orders",
    "control/compile/state.rs CompileState.own_certificates",
    "control/compile/state.rs CompileState.parents",
    "control/compile/state.rs CompileState.replays",
    "control/compile/state.rs CompileState.runs",
    "control/compile/state.rs CompileState.subscriptions",
    "control/compile/state.rs DueForDelivery.destinations",
    "server-log/expiry.rs ExpiryMarks.marks",
    "server-log/expiry.rs ExpiryMarks.there",
    "server-log/members.rs Members.seen",
    "server-log/lib.rs ServerLog.unreadable",
    "control/server_watch.rs Seen.dropped",
    "control/compile/state.rs DueForDelivery.subscriptions",
    "control/compile/state.rs UpstreamTlsState.endpoints",
    "identity/console/provider.rs ConsoleSignIn.roles",
    "event-config/destination/operations.rs HealthView.failures",
    "access/use_table.rs UseChanges.owners",
    "access/use_table.rs UseTable.roles",
    "access/use_table.rs Uses.users",
    "access/use_table.rs Uses.bots",
    "resources/access/key_uses.rs Known.shares",
    "resources/access/key_uses.rs Known.uses",
    "resources/stored/informer_cache.rs InformerCache.members",
    "control/operations/node_list.rs NodeFacts.addresses",
    "control/operations/noted_upstreams.rs NotedUpstreams.cut_owners",
    "certificates/acme/renewal.rs Renewals.next",
    "endpoints/traffic_policy/model.rs StoredPolicy.forwards_to",
    "agents/tunnel/model.rs Tunnel.labels",
    "agents/tunnel/model.rs View.labels",
    "access/ip/restrictions.rs Restrictions.agents",
    "access/ip/restrictions.rs Restrictions.api",
    "control/operations/root.rs Root.subresource_uris",
    "certificates/ssh/mod.rs Certificate.critical_options",
    "certificates/ssh/mod.rs Certificate.extensions",
    "event-config/edge_reports/upstream_reports.rs Reports.reported",
    "event-config/statistics/keeper.rs Keeper.waiting",
    "event-config/statistics/query.rs Called.steps",
    "event-config/statistics/query.rs Called.total",
    "event-config/statistics/view.rs CallValues.by_operation",
    "event-config/statistics/view.rs NodeValues.refused_by_reason",
    "event-config/statistics/view.rs TrafficValues.refused_by_reason",
    "endpoints/traffic_policy/mod.rs Compiled.authorities",
    "endpoints/traffic_policy/mod.rs Compiled.ip_policies",
    "endpoints/traffic_policy/mod.rs Compiled.judged",
    "endpoints/traffic_policy/mod.rs Compiled.policies",
    "endpoints/traffic_policy/mod.rs Compiled.secrets",
    "destinations/client/amqp.rs Window.ids",
    "destinations/client/amqp.rs Window.returned",
    "target/settings/aws.rs AwsSettings.endpoints",
    "delivery/queue/buffer.rs State.batches",
    "delivery/plane/cluster.rs Note.failures",
    "delivery/plane/cluster.rs Sharing.noted",
    "delivery/plane/cluster.rs Sharing.others",
    "delivery/plane/cluster.rs Sharing.own",
    "delivery/dispatch/copies.rs Copies.open",
    "delivery/dispatch/copies.rs Copies.sizes",
    "delivery/queue/event_log/jetstream.rs JetStream.empty_at",
    "delivery/queue/event_log/jetstream.rs JetStream.slots",
    "delivery/queue/event_log/jetstream/lease.rs ConsumerLease.settled",
    "delivery/queue/event_log/jetstream/outstanding.rs Saved.lines",
    "delivery/queue/event_log/jetstream/outstanding.rs State.lines",
    "delivery/queue/event_log/jetstream/outstanding.rs State.lost",
    "delivery/queue/event_log/jetstream/outstanding.rs State.settled_early",
    "delivery/health/attempts.rs Attempts.newest",
    "delivery/health/mod.rs AllCounters.by_destination",
    "delivery/recorder/mod.rs Flusher.open",
    "delivery/dispatch/replayer.rs Replayer.done",
    "delivery/retained_events/retained_pieces.rs QueuedPieces.pieces",
    "delivery/queue/spill_writer.rs SpillWriter.buffers",
    "delivery/subscription/mod.rs Compiled.destinations",
    "delivery/subscription/mod.rs Compiled.entitled",
    "delivery/subscription/mod.rs Compiled.private_kinds",
    "delivery/subscription/mod.rs KindPlan.accounts",
    "delivery/subscription/mod.rs TableChange.destinations",
    "delivery/subscription/mod.rs TableChange.private_kinds",
    "delivery/subscription/mod.rs TableChange.subscriptions",
    "delivery/subscription/mod.rs TableCompiler.captures",
    "delivery/subscription/mod.rs TableCompiler.naming",
    "delivery/subscription/mod.rs TableCompiler.sources",
    "destinations/target/kafka.rs Cluster.brokers",
    "destinations/target/kafka.rs Producer.doubts",
    "destinations/target/kafka.rs Producer.next",
    "destinations/target/kafka.rs State.links",
    "destinations/target/loki.rs Config.labels",
    "destinations/target/loki.rs Loki.labels",
    "destinations/target/loki.rs Stream.stream",
    "destinations/target/pagerduty.rs Pagerduty.resolved",
    "delivery/worker/mod.rs Worker.rejected",
    "delivery/worker/worker_notifier.rs WorkerNotifier.asleep",
    "edge/edge/mod.rs Ports.failed",
    "edge/edge/mod.rs Ports.open",
    "edge/snapshot/route.rs Hosts.exact",
    "edge/snapshot/route.rs Hosts.wild",
    "edge/balance/checks.rs Checks.sets",
    "edge/snapshot/compiler.rs SnapshotCompiler.by_id",
    "edge/snapshot/compiler.rs SnapshotCompiler.places",
    "edge/snapshot/compiler.rs SnapshotCompiler.presented",
    "edge/snapshot/compiler.rs SnapshotCompiler.restrictions",
    "edge/snapshot/live_snapshot.rs LiveSnapshot.internal",
    "edge/snapshot/live_snapshot.rs LiveSnapshot.kubernetes",
    "edge/snapshot/live_snapshot.rs LiveSnapshot.tcp",
    "edge/snapshot/operators.rs OperatorTable.by_id",
    "login/action/config.rs Common.authz_url_params",
    "overload/level.rs RunQueue.recent",
    "actions/action/add_headers.rs Config.headers",
    "actions/action/custom_response.rs Config.headers",
    "actions/action/http_request.rs Config.headers",
    "actions/action/log.rs Config.metadata",
    "actions/action/redirect.rs Config.headers",
    "actions/action/set_headers.rs Config.headers",
    "actions/action/set_vars.rs Config.vars",
    "policy/response/error_page/mod.rs ErrorPages.exact",
    "policy/identity/mod.rs ForwardIdentityConfig.headers",
    "ip-data/mmdb.rs Values.known",
    "policy/policy/context.rs Resources.authorities",
    "policy/policy/context.rs Resources.ip_policies",
    "policy/policy/taint.rs Carriers.response",
    "policy/policy/taint.rs Flow.response",
    "policy/policy/taint.rs Flow.results",
    "policy/policy/taint.rs Flow.vars",
    "policy/policy/taint.rs Names.names",
    "policy/policy/taint.rs Reading.secrets",
    "policy/rate_limit/shared_counts.rs Inner.tables",
    "tls/acme/answers.rs ChallengeAnswers.certificates",
    "tls/acme/answers.rs ChallengeAnswers.files",
    "tunnel/client/numbers.rs Numbers.all",
    "tunnel/nodes.rs Nodes.peers",
    "tunnel/nodes.rs Nodes.table",
    "tunnel/nodes.rs EndpointLocations.endpoints",
    "yaml/lib.rs Reader.anchors",
];

/// Crates whose collections a socket can reach.
const CRATES: [&str; 33] = [
    "access",
    "actions",
    "agents",
    "api",
    "api-http",
    "certificates",
    "control",
    "delivery",
    "destinations",
    "edge",
    "edge-config",
    "endpoints",
    "event-config",
    "http",
    "identity",
    "io",
    "ip-data",
    "login",
    "mux",
    "overload",
    "policy",
    "policy-editor",
    "resources",
    "server-log",
    "site",
    "ssh",
    "target",
    "tls",
    "traces",
    "tunnel",
    "upstream",
    "webhooks",
    "yaml",
];

const KINDS: [&str; 9] = [
    "VecDeque<",
    "HashMap<",
    "HashSet<",
    "BTreeMap<",
    "BTreeSet<",
    "Cache<",
    "FairTable<",
    "LimitTable<",
    "PersistentMap<",
];

#[test]
fn every_growing_collection_is_listed_and_costs_are_constant() {
    let mut rows: Vec<&str> = BY_CLIENTS.iter().map(|row| row.0).collect();
    rows.extend(BY_ACCOUNTS);
    rows.extend(BY_SERVER);
    rows.sort_unstable();
    let mut found = Vec::new();
    let mut sources = Vec::new();
    for name in CRATES {
        let mut text = String::new();
        let folder = root().join(format!("crates/culvert-{name}/src"));
        read(name, &folder, &folder, &KINDS, &mut found, &mut text);
        sources.push((name, text));
    }
    found.sort();
    let without: Vec<&String> = found
        .iter()
        .filter(|it| !rows.contains(&it.as_str()))
        .collect();
    assert!(without.is_empty(), "without a row: {without:#?}");
    let gone: Vec<&&str> = rows
        .iter()
        .filter(|row| !found.iter().any(|it| it == **row))
        .collect();
    assert!(gone.is_empty(), "rows of fields that are gone: {gone:#?}");
    assert!(
        rows.windows(2).all(|pair| pair[0] != pair[1]),
        "a row is there twice"
    );

    println!("steps when empty, half full and full");
    for &(field, bound, entries, access, test) in BY_CLIENTS {
        let (name, _) = field.split_once('/').unwrap();
        let (_, source) = sources.iter().find(|(of, _)| *of == name).unwrap();
        let base =
            std::fs::read_to_string(root().join("crates/culvert-base/src/limit/limit_table.rs"));
        let is_there = |what: &str| source.contains(what) || base.as_ref().unwrap().contains(what);
        assert!(is_there(bound), "{field}: no bound `{bound}`");
        assert!(is_there(&format!("fn {test}")), "{field}: no test `{test}`");
        // A bound that is a plain number must be that of the row.
        let constant = source.split(&format!("const {bound}: usize = ")).nth(1);
        let number = constant.and_then(|rest| rest.split(';').next());
        if let Some(Ok(number)) = number.map(|it| it.replace('_', "").parse::<u64>())
            && !bound.contains("BYTES")
        {
            assert_eq!(number, entries, "{field}: the bound has changed");
        }
        let [empty, half, full] = [0, entries / 2, entries].map(|held| access.steps(held));
        println!("{field}: {bound} = {entries}: {empty} {half} {full} {test}");
        assert!(full <= empty + MORE_STEPS_MAX, "{field}: {full} steps");
    }
}

/// Appends the fields of these kinds in the structs of a folder, as `crate/file Struct.field`, and its text.
pub fn read(
    name: &str,
    top: &Path,
    folder: &Path,
    kinds: &[&str],
    found: &mut Vec<String>,
    all: &mut String,
) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if file != "tests" {
                read(name, top, &path, kinds, found, all);
            }
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        all.push_str(&text);
        if ["tests.rs", "fake.rs", "fuzz.rs"].contains(&file) {
            continue;
        }
        let place = path.strip_prefix(top).unwrap().to_str().unwrap();
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
        let mut inside: Option<&str> = None;
        for line in code.lines() {
            if line.starts_with('}') {
                inside = None;
            } else if let Some((_, rest)) = line.split_once("struct ")
                && !line.starts_with([' ', '/'])
            {
                let is_name = |c: char| c.is_alphanumeric() || c == '_';
                inside = rest.split(|c| !is_name(c)).next();
            } else if let (Some(of), Some((field, kind))) = (inside, line.split_once(": "))
                && kinds.iter().any(|known| kind.contains(known))
                && !line.trim_start().starts_with('/')
            {
                let field = field.split_whitespace().last().unwrap_or_default();
                found.push(format!("{name}/{place} {of}.{field}"));
            }
        }
    }
}
