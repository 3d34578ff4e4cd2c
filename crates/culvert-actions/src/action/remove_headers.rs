//! remove-headers: removes header fields from the forwarded request or response.

use culvert_base::code;
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::values::texts;
use culvert_policy::problem::is_edge_controlled;
use http::header::{HOST, HeaderName, USER_AGENT};
use schemars::JsonSchema;
use serde::Deserialize;

const HEADERS_MAX: usize = 10;

pub(crate) static TYPE: ActionType = ActionType {
    name: "remove-headers",
    doc: "Removes header fields from the request to the upstream or from the response to the client. Later rules see the original message.",
    phases: &[Phase::Request, Phase::Response],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        site.count("headers", config.headers.len(), HEADERS_MAX)?;
        let mut names = Vec::with_capacity(config.headers.len());
        for name in &config.headers {
            let shown: String = name.chars().take(64).collect();
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                site.refuse(
                    code::POLICY_VALUE_INVALID,
                    &format!("`{shown}` is not a header name"),
                )
            })?;
            if name == USER_AGENT || name == HOST || is_edge_controlled(&name) {
                let why = format!("`{shown}` cannot be removed: the edge controls this header");
                return Err(site.refuse(code::POLICY_VALUE_INVALID, &why));
            }
            names.push(name);
        }
        Ok(Box::new(RemoveHeaders { names }))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RemoveHeaders")]
struct Config {
    /// Names, 1 to 10.
    headers: Vec<String>,
}

#[derive(Debug)]
struct RemoveHeaders {
    names: Vec<HeaderName>,
}

impl Action for RemoveHeaders {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        for name in &self.names {
            x.edits.remove(name.clone());
        }
        if x.wants_results() {
            let removed = texts(self.names.iter().map(HeaderName::as_str));
            x.result("remove_headers", vec![("headers_removed", removed)]);
        }
        Flow::Continue.into()
    }

    fn replaces(&self) -> Vec<&HeaderName> {
        self.names.iter().collect()
    }
}
