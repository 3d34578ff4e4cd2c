//! response-body-find-replace: other text in the response's body.

use super::ActionType;
use crate::policy::replace::{Config, FindReplace};
use crate::policy::{Action, Exchange, Phase, Run};

pub(crate) static TYPE: ActionType = ActionType {
    name: "response-body-find-replace",
    doc: "Replaces parts of the response's body, before anything compresses it. The body is read whole, at most 1 MiB of it before and after (502). One in gzip, deflate or br is decoded; one in another coding, a part of one (206) and a stream of events pass as they are. Where that must not be, take `accept-encoding` and `range` from the request with remove-headers.",
    phases: &[Phase::Response],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let find_replace = FindReplace::compile(site, "response_body_find_replace")?;
        Ok(Box::new(ResponseBodyFindReplace(find_replace)))
    },
    ..ActionType::PLAIN
};

#[derive(Debug)]
struct ResponseBodyFindReplace(FindReplace);

impl Action for ResponseBodyFindReplace {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> Run<'a> {
        self.0.run(x)
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.0.slots()
    }
}
