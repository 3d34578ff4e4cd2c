//! set-headers: sets header fields of the forwarded request or response, whatever the message had.

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
    name: "set-headers",
    doc: "Sets header fields of the request to the upstream or of the response to the client. Each replaces all fields of its name, in a request also those of names that servers confuse with it, such as `x_user` for `x-user`. So the upstream can rely on the value. If an expression fails, or a value has a line break, the fields of the name are removed. Later rules see the original message.",
    phases: &[Phase::Request, Phase::Response],
    takes_secrets: &[("headers", &[Phase::Request])],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        let headers = FieldTemplates::compile(site, "headers", &config.headers, 1..=HEADERS_MAX)?;
        Ok(Box::new(SetHeaders {
            headers: headers.for_edits(site, "set")?,
        }))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SetHeaders")]
struct Config {
    /// 1 to 10 names and values. Values support `${…}`.
    headers: BTreeMap<String, String>,
}

#[derive(Debug)]
struct SetHeaders {
    headers: FieldTemplates,
}

impl Action for SetHeaders {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let fields = self.headers.render_strictly(x);
        self.headers.hide(x);
        if x.wants_results() {
            let set = fields::shown(&fields);
            let error = x.error();
            x.result("set_headers", vec![("headers_set", set), error]);
        }
        for (name, value) in fields {
            // A request needs a host, and must not go to that of the client instead.
            if value.is_none() && name == HOST && x.phase == Phase::Request {
                return x.fault().into();
            }
            x.edits.set(name, value);
        }
        Flow::Continue.into()
    }

    fn replaces(&self) -> Vec<&HeaderName> {
        self.headers.names().collect()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.headers.slots().collect()
    }
}
