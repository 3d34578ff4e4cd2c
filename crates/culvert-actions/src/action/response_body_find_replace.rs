//! response-body-find-replace: replaces text in the response's body.

use crate::find_replace::{Config, FindReplace};
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::{Action, ActionResult};

pub(crate) static TYPE: ActionType = ActionType {
    name: "response-body-find-replace",
    doc: "Replaces parts of the response body before compression. The edge buffers the body, which may have at most 1 MiB before and after the replacement (otherwise 502). Bodies in gzip, deflate or br are decoded; bodies in other codings, partial bodies (206) and event streams are unchanged. To prevent these, remove `accept-encoding` and `range` from the request with remove-headers.",
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
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        self.0.run(x)
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.0.slots()
    }
}
