//! `GET /endpoints/{id}/upstreams`: the health of the upstreams of an endpoint, as the node that responds sees it, and whether
//! the others see it so.

use culvert_base::{Refusal, Timestamp};
use culvert_edge_config::{CheckReport, UpstreamStatus};
use culvert_endpoints::endpoint;
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::Trace;
use culvert_resources::operation::{Call, Method, Reply, ResponseSpec, Status};
use culvert_resources::resource::{Extra, Running};
use culvert_resources::{service, stored};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;

use crate::Error;
use crate::control::Control;
use crate::operations::noted_upstreams::Noted;

/// The operation of an endpoint.
pub(crate) const OPERATIONS: &[Extra<Control>] = &[Extra {
    name: "list_upstreams",
    method: Method::Get,
    suffix: "/upstreams",
    doc: "Shows the health of the upstreams of an endpoint with `upstreams`, as the node sees it that responds: each node judges by \
          its own requests and health checks. `nodes` has the states that the others see. The list is empty for other endpoints.",
    body: None,
    response: ResponseSpec {
        status: Status::Ok,
        schema: Some(SchemaGenerator::subschema_for::<View>),
    },
    query: &[],
    access: Access::See,
    trace: Trace::Nothing,
    run: run_list,
}];

/// The upstreams of an endpoint.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndpointUpstreamHealthList")]
struct View {
    /// The upstreams in the order of the endpoint's list.
    upstreams: Vec<UpstreamView>,
    /// The node that sees them so.
    node: String,
    /// URI of the list.
    uri: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndpointUpstreamState")]
struct UpstreamView {
    /// URL of the upstream.
    url: String,
    /// `healthy`: as far as is known. `unhealthy`: it failed health checks or was ejected, and has not responded since.
    #[schemars(extend("enum" = ["healthy", "unhealthy"]))]
    state: &'static str,
    /// Whether it gets traffic. One that is not healthy does while too few others are left.
    used: bool,
    /// Why it is unhealthy; empty if it is healthy.
    reason: String,
    /// For how many seconds it is still ejected; null if it is not.
    ejected_for_seconds: Option<u64>,
    /// Requests and connections that it serves now.
    open_requests: u32,
    /// Failures of requests in a row.
    failures: u32,
    /// The last health check; null if there was none.
    last_check: Option<CheckView>,
    /// What the other nodes see, as of some seconds ago.
    nodes: Vec<NodeView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndpointUpstreamNode")]
struct NodeView {
    /// Name of the node.
    node: String,
    /// `unknown` if more upstreams of the owner are unhealthy than a node tells the others.
    #[schemars(extend("enum" = ["healthy", "unhealthy", "unknown"]))]
    state: &'static str,
    /// Why it is unhealthy there; empty if it is not.
    reason: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndpointUpstreamCheck")]
struct CheckView {
    /// When it ended.
    #[schemars(with = "String", extend("format" = "date-time"))]
    at: Timestamp,
    /// Whether it passed.
    passed: bool,
    /// Why it did not pass; empty if it did.
    failure: String,
    /// How long it took, in milliseconds.
    duration_ms: u64,
}

fn run_list(control: &Control, call: Call) -> Running<'_> {
    Box::pin(async move { list(control, &call).await })
}

async fn list(control: &Control, call: &Call) -> Result<Reply, Error> {
    let cx = control.kernel.cx(&call.caller, &call.base);
    let document = service::named(&cx, &endpoint::TYPE, call)
        .await?
        .ok_or_else(Refusal::not_found)?;
    let id = &document.head.id;
    let edge = control.edge.as_ref();
    let statuses = edge.and_then(|edge| edge.upstream_statuses(id));
    let others = control.upstreams_of_others().await?;
    let owner_id = endpoint::TYPE.owner_of(&document)?.unwrap_or_default();
    let upstreams = statuses.unwrap_or_default().into_iter().map(|status| {
        let nodes = others
            .iter()
            .map(|(node, noted)| NodeView::of(node.clone(), noted.get(id, &owner_id, &status.url)));
        UpstreamView::of(nodes.collect(), status)
    });
    Ok(Reply::Ok(stored::write(&View {
        upstreams: upstreams.collect(),
        node: control.events.statistics.node().to_owned(),
        uri: format!("{}/endpoints/{id}/upstreams", call.base),
    })?))
}

impl UpstreamView {
    fn of(nodes: Vec<NodeView>, status: UpstreamStatus) -> Self {
        Self {
            nodes,
            url: status.url,
            state: match status.is_healthy {
                true => "healthy",
                false => "unhealthy",
            },
            used: status.is_used,
            reason: status.reason,
            // A part of a second counts as one.
            ejected_for_seconds: status
                .ejected_for
                .map(|left| left.as_millis().div_ceil(1_000))
                .and_then(|seconds| seconds.try_into().ok()),
            open_requests: status.open_requests,
            failures: status.failures,
            last_check: status.last_check.map(CheckView::of),
        }
    }
}

impl NodeView {
    fn of(node: String, noted: Noted<'_>) -> Self {
        let (state, reason) = match noted {
            Noted::Healthy => ("healthy", ""),
            Noted::Unhealthy(reason) => ("unhealthy", reason),
            Noted::Unknown => ("unknown", ""),
        };
        Self {
            node,
            state,
            reason: reason.to_owned(),
        }
    }
}

impl CheckView {
    fn of(report: CheckReport) -> Self {
        Self {
            at: report.at,
            passed: report.failure.is_empty(),
            failure: report.failure,
            duration_ms: u64::try_from(report.duration.as_millis()).unwrap_or(u64::MAX),
        }
    }
}
