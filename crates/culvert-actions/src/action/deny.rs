//! deny: rejects the request or the connection.

use culvert_policy::action_type::ActionType;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::reply::Rejection;
use http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) static TYPE: ActionType = ActionType {
    name: "deny",
    doc: "Rejects a request with a status and an empty body, or with a page if the client prefers HTML; closes a connection.",
    phases: &[Phase::Connect, Phase::Request],
    ends: Ends::Always,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        let status = config.status_code.unwrap_or(403);
        site.within("status_code", status, 400..=599)?;
        Ok(Box::new(Deny {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN),
        }))
    },
    guards: true,
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Deny")]
struct Config {
    /// 400 to 599; default 403. Ignored for connections.
    #[serde(default)]
    #[schemars(range(min = 400, max = 599))]
    status_code: Option<u16>,
}

#[derive(Debug)]
struct Deny {
    status: StatusCode,
}

const REJECTION: Rejection = Rejection {
    text: "",
    message: "The traffic policy of this site rejects the request.",
    advice: "If you need access, ask the owner of this site.",
    owner_help: "A rule with `deny` in the traffic policy of the endpoint applies to this request.",
};

impl Action for Deny {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        if x.phase == Phase::Connect {
            return Flow::Close.into();
        }
        x.reject(self.status, &REJECTION).into()
    }
}
