//! log: adds an entry to the event.

use std::collections::BTreeMap;

use culvert_policy::action_type::ActionType;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::template::ValueTemplate;
use culvert_policy::policy::values::to_json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

pub(crate) static TYPE: ActionType = ActionType {
    name: "log",
    doc: "Adds an entry to `traffic_policy.logs` of the request event, or of the connection event in `on_tcp_connect`. An event holds at most 32 entries of 4 KiB each, 16 KiB in total. Values that come from secrets are `[redacted]`.",
    phases: &[Phase::Connect, Phase::Request, Phase::Response],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        let metadata = Value::Object(config.metadata.into_iter().collect());
        Ok(Box::new(Log {
            metadata: site.value("metadata", &metadata)?,
        }))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Log")]
struct Config {
    /// Content of the entry: any object. Strings support `${…}`; a string that is only one `${…}`
    /// keeps the type of its value.
    metadata: BTreeMap<String, Value>,
}

#[derive(Debug)]
struct Log {
    metadata: ValueTemplate,
}

impl Action for Log {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let metadata = self.metadata.render_shown(x);
        let mut entry = to_json(metadata.borrow());
        x.policy.scrub(&mut entry);
        if let Value::Object(entry) = entry {
            x.log(entry);
        }
        let error = x.error();
        x.result("log", vec![("metadata", metadata), error]);
        Flow::Continue.into()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.metadata.slots()
    }
}
