//! add-headers: adds header fields to the forwarded request or response.

use std::collections::BTreeMap;

use culvert_policy::action_type::ActionType;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use http::header::{HOST, HeaderName};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::fields::{self, FieldTemplates};

const HEADERS_MAX: usize = 10;

pub(crate) static TYPE: ActionType = ActionType {
    name: "add-headers",
    doc: "Adds header fields to the request to the upstream or to the response to the client. Fields of the client with the same name stay, and come first; use `set-headers` for values that the upstream relies on. `host` replaces the existing field. Later rules see the original message.",
    phases: &[Phase::Request, Phase::Response],
    takes_secrets: &[("headers", &[Phase::Request])],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        let headers = FieldTemplates::compile(site, "headers", &config.headers, 1..=HEADERS_MAX)?;
        Ok(Box::new(AddHeaders {
            headers: headers.for_edits(site, "added")?,
            phase: site.phase(),
        }))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AddHeaders")]
struct Config {
    /// 1 to 10 names and values. Values support `${…}`. A value with a line break is skipped; in a request, the fields of
    /// that name are then removed.
    headers: BTreeMap<String, String>,
}

#[derive(Debug)]
struct AddHeaders {
    headers: FieldTemplates,
    phase: Phase,
}

impl Action for AddHeaders {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let fields = self.headers.render_each(x);
        self.headers.hide(x);
        if x.wants_results() {
            let added = fields::shown(&fields);
            let error = x.error();
            x.result("add_headers", vec![("headers_added", added), error]);
        }
        for (name, value) in fields {
            match value {
                Some(value) => x.edits.add(name, value),
                None if self.phase != Phase::Request => {}
                // A request needs a host, and must not go to that of the client instead.
                None if name == HOST => return x.fault().into(),
                // The client's own value must not stand where the policy's was to be.
                None => x.edits.remove(name),
            }
        }
        Flow::Continue.into()
    }

    fn adds(&self) -> Vec<&HeaderName> {
        self.headers.names().collect()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.headers.slots().collect()
    }
}
