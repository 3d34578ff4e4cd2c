//! close-connection: closes the connection without a response.

use serde::Deserialize;

use crate::action::action_type::ActionType;
use crate::policy::exchange::Exchange;
use crate::policy::phase::{Ends, Phase};
use crate::policy::run::{Action, ActionResult, Flow};

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
