//! request-body-find-replace: replaces text in the request's body.

use crate::find_replace::{Config, FindReplace};
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::{Action, ActionResult};

pub(crate) static TYPE: ActionType = ActionType {
    name: "request-body-find-replace",
    doc: "Replaces parts of the request body. The edge buffers the body, which may have at most 1 MiB before and after the replacement (otherwise 413). Bodies in gzip, deflate or br are decoded and forwarded uncompressed; requests with bodies in other codings, or not in the coding that they name, get 400.",
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
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        self.0.run(x)
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.0.slots()
    }
}
