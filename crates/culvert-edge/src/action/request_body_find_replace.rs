//! request-body-find-replace: other text in the request's body.

use super::ActionType;
use crate::policy::replace::{Config, FindReplace};
use crate::policy::{Action, Exchange, Phase, Run};

pub(crate) static TYPE: ActionType = ActionType {
    name: "request-body-find-replace",
    doc: "Replaces parts of the request's body on its way upstream. The body is read whole, at most 1 MiB of it before and after (413). One in gzip, deflate or br is decoded and sent on plain; one in another coding passes as it is.",
    phases: &[Phase::Request],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let find_replace = FindReplace::compile(site, "request_body_find_replace")?;
        Ok(Box::new(RequestBodyFindReplace(find_replace)))
    },
    ..ActionType::PLAIN
};

#[derive(Debug)]
struct RequestBodyFindReplace(FindReplace);

impl Action for RequestBodyFindReplace {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> Run<'a> {
        self.0.run(x)
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.0.slots()
    }
}
