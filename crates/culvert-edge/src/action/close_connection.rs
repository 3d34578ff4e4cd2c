//! close-connection: nothing more, not even an answer.

use serde::Deserialize;

use super::{ActionType, Ends};
use crate::policy::{Action, Exchange, Flow, Phase, Run};

pub(crate) static TYPE: ActionType = ActionType {
    name: "close-connection",
    doc: "Closes the client's connection at once, without an answer. On HTTP/2 other requests of the connection end too.",
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
    fn run<'a>(&'a self, _: &'a mut Exchange<'_>) -> Run<'a> {
        Flow::Close.into()
    }
}
