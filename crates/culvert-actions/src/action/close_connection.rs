//! close-connection: closes the connection without a response.

use culvert_policy::action_type::ActionType;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use serde::Deserialize;

pub(crate) static TYPE: ActionType = ActionType {
    name: "close-connection",
    doc: "Closes the client's connection immediately, without a response. With HTTP/2 this also ends other requests on the connection.",
    phases: &[Phase::Connect, Phase::Request],
    ends: Ends::Always,
    compile: |site| {
        let Config {} = site.config()?;
        Ok(Box::new(CloseConnection))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {}

#[derive(Debug)]
struct CloseConnection;

impl Action for CloseConnection {
    fn run<'a>(&'a self, _: &'a mut Exchange<'_>) -> ActionResult<'a> {
        Flow::Close.into()
    }
}
