//! The agent's endpoints in ngrok's agent API: as tunnels, with the fields of version 2 of its configuration format, and
//! as endpoints, with those of version 3.

use culvert_tunnel::client::{EndpointStatus, Reading};
use serde_json::{Value, json};

/// A tunnel, as `GET /api/tunnels/<name>` returns it.
pub(crate) fn tunnel(it: &EndpointStatus) -> Value {
    json!({
        "name": it.name,
        "ID": it.id,
        "uri": format!("/api/tunnels/{}", in_path(&it.name)),
        "public_url": it.url,
        "proto": it.protocol,
        "config": {"addr": it.upstream, "inspect": it.is_inspected},
        "metrics": metrics(it),
    })
}

/// An endpoint, as `GET /api/endpoints/<name>` returns it.
pub(crate) fn endpoint(it: &EndpointStatus) -> Value {
    json!({
        "name": it.name,
        "id": it.id,
        "uri": format!("/api/endpoints/{}", in_path(&it.name)),
        "url": it.url,
        "proto": it.protocol,
        "upstream": {"url": it.upstream},
        "inspect": it.is_inspected,
        "metrics": metrics(it),
    })
}

/// The name in a path.
fn in_path(name: &str) -> String {
    url::form_urlencoded::byte_serialize(name.as_bytes())
        .collect::<String>()
        .replace('+', "%20")
}

fn metrics(it: &EndpointStatus) -> Value {
    let connections = it.meters.connections.read();
    let mut of_connections = timer(&connections);
    of_connections["gauge"] = connections.open.into();
    json!({
        "conns": of_connections,
        "http": timer(&it.meters.requests.read()),
    })
}

/// Rates are events per second; percentiles are nanoseconds.
fn timer(reading: &Reading) -> Value {
    let [rate1, rate5, rate15] = reading.rates;
    let [p50, p90, p95, p99] = reading
        .percentiles
        .map(|took| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    json!({
        "count": reading.count,
        "rate1": rate1, "rate5": rate5, "rate15": rate15,
        "p50": p50, "p90": p90, "p95": p95, "p99": p99,
    })
}
