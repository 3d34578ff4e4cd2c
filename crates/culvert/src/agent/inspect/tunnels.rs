//! The agent's endpoints in ngrok's agent API: as tunnels, with the fields of version 2 of its configuration format, and
//! as endpoints, with those of version 3.

use culvert_tunnel::client::{
    Endpoint, EndpointStatus, FLAGS, Protocol, Reading, Upstream, UpstreamTrust, Wanted,
};
use serde_json::{Map, Value, json};

/// The fields of a tunnel that have the name of a flag elsewhere, by their path.
const FIELDS: [(&str, &str); 24] = [
    ("request_header.add", "request-header-add"),
    ("request_header.remove", "request-header-remove"),
    ("response_header.add", "response-header-add"),
    ("response_header.remove", "response-header-remove"),
    ("ip_restriction.allow_cidrs", "cidr-allow"),
    ("ip_restriction.deny_cidrs", "cidr-deny"),
    ("user_agent_filter.allow", "ua-filter-allow"),
    ("user_agent_filter.deny", "ua-filter-deny"),
    ("verify_webhook.provider", "verify-webhook"),
    ("verify_webhook.secret", "verify-webhook-secret"),
    ("oauth.provider", "oauth"),
    ("oauth.client_id", "oauth-client-id"),
    ("oauth.client_secret", "oauth-client-secret"),
    ("oauth.allow_emails", "oauth-allow-email"),
    ("oauth.allow_domains", "oauth-allow-domain"),
    ("oauth.scopes", "oauth-scope"),
    ("oidc.issuer_url", "oidc"),
    ("oidc.client_id", "oidc-client-id"),
    ("oidc.client_secret", "oidc-client-secret"),
    ("oidc.allow_emails", "oidc-allow-email"),
    ("oidc.allow_domains", "oidc-allow-domain"),
    ("oidc.scopes", "oidc-scope"),
    ("auth", "basic-auth"),
    ("bindings", "binding"),
];

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

/// The endpoint that `POST /api/tunnels` describes. The error is a sentence without a full stop.
pub(crate) fn requested(body: &Value) -> Result<Endpoint, String> {
    let body = body.as_object().ok_or("the body must be an object")?;
    let proto = text(body, "proto")?.unwrap_or_else(|| "http".into());
    let kind = match &proto[..] {
        "http" | "https" => Protocol::Http,
        "tcp" => Protocol::Tcp,
        "tls" => Protocol::Tls,
        other => return Err(format!("`proto` must be http, tcp or tls, not `{other}`")),
    };
    let address = match body.get("addr") {
        Some(Value::String(address)) => address.clone(),
        Some(Value::Number(port)) => port.to_string(),
        _ => return Err("`addr` must be a port or the URL of a service".into()),
    };
    let mut wanted = Wanted::default();
    let mut is_inspected = true;
    for (name, value) in body {
        match &name[..] {
            "proto" | "addr" | "host_header" => {}
            "inspect" => {
                is_inspected = value.as_bool().ok_or("`inspect` must be true or false")?;
            }
            "schemes" => set(&mut wanted, kind, "schemes", "scheme", &scheme(value)?)?,
            "traffic_policy" | "policy" => {
                let text = match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                set(&mut wanted, kind, name, "traffic-policy-file", &text.into())?;
            }
            _ => field(&mut wanted, kind, name, value)?,
        }
    }
    let http2 = wanted.http2;
    let upstream = Upstream::parse(&address, kind, http2, &UpstreamTrust::System)?;
    if let Some(host) = text(body, "host_header")? {
        wanted.set_host_header(&host, &upstream);
    }
    let mut endpoint = Endpoint::new(kind, wanted, upstream)?;
    endpoint.is_inspected = is_inspected;
    if endpoint.name.is_empty() {
        return Err("`name` is missing".into());
    }
    Ok(endpoint)
}

/// Applies a field, or the fields in it.
fn field(wanted: &mut Wanted, kind: Protocol, path: &str, value: &Value) -> Result<(), String> {
    let listed = FIELDS.iter().find(|(field, _)| *field == path);
    match (listed, value) {
        (_, Value::Null) => Ok(()),
        (Some((_, flag)), _) => set(wanted, kind, path, flag, value),
        (None, Value::Object(fields)) => fields
            .iter()
            .try_for_each(|(name, value)| field(wanted, kind, &format!("{path}.{name}"), value)),
        (None, _) => set(wanted, kind, path, &path.replace('_', "-"), value),
    }
}

/// Applies a flag, once for each value.
fn set(
    wanted: &mut Wanted,
    kind: Protocol,
    path: &str,
    flag: &str,
    value: &Value,
) -> Result<(), String> {
    let flag = FLAGS
        .iter()
        .find(|known| known.name == flag && known.scope.has(kind))
        .ok_or_else(|| format!("a {} tunnel does not support `{path}`", kind.command()))?;
    let values = match value {
        Value::Array(values) if flag.many => &values[..],
        one => std::slice::from_ref(one),
    };
    for value in values {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(value) => value.to_string(),
            _ => return Err(format!("`{path}` has a value of a wrong type")),
        };
        (flag.apply)(wanted, &text).map_err(|why| format!("`{path}`: {why}"))?;
    }
    Ok(())
}

/// `http` if that is the only scheme. With both, the server redirects nothing, so https is the safe choice.
fn scheme(value: &Value) -> Result<Value, String> {
    let wrong = "`schemes` must be a list of http and https";
    let schemes = value.as_array().ok_or(wrong)?;
    let has = |scheme: &str| schemes.iter().any(|it| it == scheme);
    match (has("https"), has("http")) {
        (true, _) => Ok("https".into()),
        (false, true) => Ok("http".into()),
        (false, false) => Err(wrong.into()),
    }
}

fn text(body: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{name}` must be a text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_have_the_fields_of_ngroks_format() {
        let endpoint = requested(&json!({
            "name": "web", "proto": "http", "addr": 8080, "schemes": ["http"], "inspect": false,
            "domain": "app.test", "basic_auth": ["a:long enough"], "compression": true,
            "oauth": {"provider": "google", "allow_domains": ["a.test", "b.test"]},
            "request_header": {"add": ["x: y"], "remove": ["z"]}, "circuit_breaker": 0.5,
            "host_header": "rewrite", "metadata": "m", "traffic_policy": {"on_http_request": []},
        }))
        .unwrap();
        assert_eq!(endpoint.name, "web");
        assert_eq!(endpoint.protocol, Protocol::Http);
        assert_eq!(endpoint.upstream.as_str(), "http://localhost:8080");
        assert!(!endpoint.is_inspected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, why) in [
            (json!([]), "must be an object"),
            (json!({"name": "a"}), "`addr` must be"),
            (json!({"addr": "80"}), "`name` is missing"),
            (
                json!({"name": "a", "addr": "80", "proto": "udp"}),
                "not `udp`",
            ),
            (
                json!({"name": "a", "addr": "80", "colour": "red"}),
                "`colour`",
            ),
            (
                json!({"name": "a", "addr": "22", "proto": "tcp", "basic_auth": ["a:b"]}),
                "`basic_auth`",
            ),
            (
                json!({"name": "a", "addr": "80", "schemes": "http"}),
                "`schemes`",
            ),
            (
                json!({"name": "a", "addr": "80", "oauth": {"colour": "red"}}),
                "`oauth.colour`",
            ),
            (json!({"name": 1, "addr": "80", "domain": {}}), ""),
        ] {
            let said = requested(&body);
            match why {
                "" => drop(said),
                why => assert!(said.unwrap_err().contains(why), "{body}"),
            }
        }
    }
}
