//! add-headers: adds header fields to the forwarded request or response.

use std::collections::BTreeMap;

use culvert_base::code;
use http::header::USER_AGENT;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::action_type::ActionType;
use crate::fields::{self, Field, FieldTemplates};
use crate::policy::exchange::Exchange;
use crate::policy::phase::Phase;
use crate::policy::run::{Action, ActionResult, Flow};
use crate::policy::values::map;

const HEADERS_MAX: usize = 10;

pub(crate) static TYPE: ActionType = ActionType {
    name: "add-headers",
    doc: "Adds header fields to the request to the upstream or to the response to the client. `host` replaces the existing field. Later rules see the original message.",
    phases: &[Phase::Request, Phase::Response],
    takes_secrets: &[("headers", &[Phase::Request])],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        let headers = FieldTemplates::compile(site, "headers", &config.headers, 1..=HEADERS_MAX)?;
        if let Some(name) = headers
            .names()
            .find(|name| **name == USER_AGENT || fields::is_framing(name))
        {
            let why = format!("`{name}` cannot be added: the edge controls this header");
            return Err(site.refuse(code::POLICY_VALUE_INVALID, &why));
        }
        Ok(Box::new(AddHeaders { headers }))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AddHeaders")]
struct Config {
    /// 1 to 10 names and values. Values support `${…}`; a value with a line break is skipped.
    headers: BTreeMap<String, String>,
}

#[derive(Debug)]
struct AddHeaders {
    headers: FieldTemplates,
}

impl Action for AddHeaders {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let fields = self.headers.render(x);
        self.headers.hide(x);
        if x.wants_results() {
            let added = fields
                .iter()
                .map(|field| (field.name.as_str(), field.text()));
            let added = map(added.collect());
            let error = x.error();
            x.result("add_headers", vec![("headers_added", added), error]);
        }
        for Field { name, value } in fields {
            x.edits.add(name, value);
        }
        Flow::Continue.into()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.headers.slots().collect()
    }
}
