//! forward-internal: forwards to an internal endpoint of the account.

use culvert_base::net::HostName;
use culvert_base::{Refusal, code};
use culvert_cel::Value;
use culvert_policy::Scheme;
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::secret::REDACTED;
use culvert_policy::policy::template::Template;
use culvert_policy::policy::values::map;
use culvert_policy::problem::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

/// Maximum number of endpoints after the first.
const HOPS_MAX: usize = 3;

pub(crate) static TYPE: ActionType = ActionType {
    name: "forward-internal",
    doc: "Forwards traffic to an internal endpoint of the same account, whose host ends in `.internal`. In `on_http_request` it forwards requests to endpoints with the scheme http or https; in `on_tcp_connect` it forwards connections to tcp and tls. The policy and the upstream of the internal endpoint apply; its policy sees the request with the changes of this policy and the client's original host. At most 3 forwards in a row. The event belongs to the first endpoint and includes the decisions and logs of all policies.",
    phases: &[Phase::Connect, Phase::Request],
    ends: Ends::Sometimes,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |context| {
        let config: Config = context.config()?;
        let goes_on = match config.on_error.as_deref() {
            None | Some("halt") => false,
            Some("continue") => true,
            Some(_) => {
                return Err(context.refuse(
                    code::POLICY_VALUE_NOT_ALLOWED,
                    "`on_error` must be halt or continue",
                ));
            }
        };
        if context.scheme().is_http() && context.phase() == Phase::Connect {
            let why = "http and https endpoints forward only in `on_http_request`";
            return Err(context.refuse(code::POLICY_ACTION_WRONG_PHASE, why));
        }
        let url = context.template("url", &config.url)?;
        let to = match url.constant() {
            Some(text) => To::Constant(constant(context, text)?, text.to_owned()),
            None => To::Computed(url),
        };
        Ok(Box::new(ForwardInternal { to, goes_on }))
    },
    ..ActionType::PLAIN
};

fn constant(context: &PolicyContext<'_>, text: &str) -> Result<Target, Refusal> {
    let target = Target::parse(text)
        .ok_or("`url` must be a scheme and a host that ends in `.internal`, with an optional port")
        .and_then(|target| {
            if target.scheme.is_http() == context.scheme().is_http() {
                Ok(target)
            } else {
                Err("`url` must name an endpoint of the same kind (http and https, or tcp and tls)")
            }
        });
    target.map_err(|why| context.refuse(code::POLICY_VALUE_INVALID, why))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ForwardInternal")]
struct Config {
    /// Internal endpoint: `scheme://host[:port]`. Supports `${…}`.
    url: String,
    /// Behaviour if the endpoint is offline: `halt` (default) returns 502 or closes the connection;
    /// `continue` runs the next action.
    #[serde(default)]
    on_error: Option<String>,
}

#[derive(Debug)]
struct ForwardInternal {
    to: To,
    goes_on: bool,
}

#[derive(Debug)]
enum To {
    Constant(Target, String),
    /// Computed by an expression.
    Computed(Template),
}

/// The address of an internal endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    scheme: Scheme,
    host: HostName,
    port: u16,
}

impl Target {
    fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok()?;
        let scheme = Scheme::ALL
            .into_iter()
            .find(|scheme| scheme.name() == url.scheme())?;
        let is_bare = url.username().is_empty()
            && url.password().is_none()
            && matches!(url.path(), "" | "/")
            && url.query().is_none()
            && url.fragment().is_none();
        let host = HostName::parse(url.host_str()?).ok()?;
        let port = url.port().or(scheme.port())?;
        let is_one = is_bare && !host.is_wildcard() && host.ends_with(".internal");
        is_one.then_some(Self { scheme, host, port })
    }
}

impl ForwardInternal {
    /// The endpoint to forward to. The error has the address as text.
    fn find(&self, x: &mut Exchange<'_>) -> Result<Flow, (String, Problem)> {
        let computed;
        let (target, text) = match &self.to {
            To::Constant(target, text) => (target, text),
            To::Computed(template) => {
                let text = match template.strict(x) {
                    Ok(text) => text.into_owned(),
                    Err(_) => return Err((String::new(), Problem::Policy)),
                };
                match Target::parse(&text) {
                    Some(target) if target.scheme.is_http() == x.endpoint.scheme.is_http() => {
                        computed = (target, text);
                        (&computed.0, &computed.1)
                    }
                    _ => return Err((text, Problem::NoInternal)),
                }
            }
        };
        if x.memory.hops >= HOPS_MAX {
            return Err((text.clone(), Problem::Hops));
        }
        let (from, host) = (x.endpoint, &*target.host);
        let next = x.conn.host.internal(from, target.scheme, host, target.port);
        let next = next.map_err(|why| (text.clone(), why.problem()))?;
        Ok(Flow::Forward(next))
    }
}

impl Action for ForwardInternal {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let (url, problem) = match self.find(x) {
            Ok(flow) => return flow.into(),
            Err(failed) => failed,
        };
        let is_secret = matches!(&self.to, To::Computed(template) if template.is_secret());
        tracing::debug!(
            endpoint.id = %x.endpoint.id,
            url = if is_secret { REDACTED } else { &url },
            ?problem,
            "forward-internal failed"
        );
        if !self.goes_on {
            return x.refuse(problem).into();
        }
        if x.wants_results() {
            let code = problem.code();
            let error = vec![
                ("code", Value::from(code.as_str())),
                ("message", Value::from(problem.sentence())),
            ];
            let fields = vec![("url", Value::from(url.as_str())), ("error", map(error))];
            x.result("forward_internal", fields);
        }
        Flow::Continue.into()
    }

    fn is_final(&self) -> bool {
        !self.goes_on
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        match &self.to {
            To::Constant(..) => Vec::new(),
            To::Computed(template) => template.slots().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_must_be_internal_urls() {
        for (text, host, port) in [
            ("http://A.internal", "a.internal", 80),
            ("https://a.b.internal/", "a.b.internal", 443),
            ("https://a.internal:8443", "a.internal", 8443),
            ("tls://a.internal", "a.internal", 443),
            ("tcp://a.internal:22", "a.internal", 22),
        ] {
            let target = Target::parse(text).unwrap();
            assert_eq!((&*target.host, target.port), (host, port), "{text}");
        }
        for wrong in [
            "",
            "a.internal",
            "http://internal",
            "http://a.example",
            "http://*.internal",
            "http://a.internal/x",
            "http://u@a.internal",
            "tcp://a.internal",
            "ftp://a.internal",
        ] {
            assert_eq!(Target::parse(wrong), None, "{wrong}");
        }
    }
}
