//! redirect: redirects the client to another URL.

use std::collections::BTreeMap;

use bytes::Bytes;
use culvert_base::code;
use culvert_cel::Value;
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::values::texts;
use http::header::{CONTENT_LENGTH, HeaderValue, LOCATION};
use http::{Response, StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::fields::{Field, FieldTemplates};
use crate::rewrite::{self, Matches, Rewrite};

const HEADERS_MAX: usize = 10;
const STATUSES: [u16; 5] = [301, 302, 303, 307, 308];

pub(crate) static TYPE: ActionType = ActionType {
    name: "redirect",
    doc: "Redirects the client to the request URL with the first match of `from` replaced by `to`, or to `to` without a `from`. If nothing matches or changes, the next rules run.",
    phases: &[Phase::Request],
    ends: Ends::Sometimes,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        let status = config.status_code.unwrap_or(302);
        if !STATUSES.contains(&status) {
            let why = "`status_code` must be one of 301, 302, 303, 307 and 308";
            return Err(site.refuse(code::POLICY_VALUE_NOT_ALLOWED, why));
        }
        Ok(Box::new(Redirect {
            rewrite: Rewrite::compile(site, config.from.as_deref(), &config.to)?,
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND),
            headers: FieldTemplates::compile(site, "headers", &config.headers, 0..=HEADERS_MAX)?
                .for_response(),
        }))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Redirect")]
struct Config {
    /// Regular expression (RE2) to replace in the full URL. Supports `${…}`.
    #[serde(default)]
    from: Option<String>,
    /// Replacement; `$1` is the first group. Supports `${…}`.
    to: String,
    /// 301, 302 (default), 303, 307 or 308.
    #[serde(default)]
    status_code: Option<u16>,
    /// Additional header fields, at most 10. Values support `${…}`. Fields that the edge controls, such as `content-length`, `transfer-encoding` and `connection`, are ignored.
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Redirect {
    rewrite: Rewrite,
    status: StatusCode,
    headers: FieldTemplates,
}

impl Action for Redirect {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let before = x.sent_url().unwrap_or_default();
        let made = match self.rewrite.of(&before, Matches::First, x) {
            Ok(Some(made)) => made,
            Ok(None) => return Flow::Continue.into(),
            Err(_) => return x.fault().into(),
        };
        let Ok(url) = rewrite::normalised(&made.url) else {
            return x.fault().into();
        };
        let error = x.error();
        x.result(
            "redirect",
            vec![
                ("matches", texts(made.matches.iter().map(String::as_str))),
                ("url", Value::from(url.as_str())),
                error,
            ],
        );
        if url == before {
            return Flow::Continue.into();
        }
        let Ok(location) = HeaderValue::from_str(&url) else {
            return x.fault().into();
        };
        let secret = self
            .headers
            .secret()
            .chain(self.rewrite.is_secret().then_some(&LOCATION));
        for name in secret {
            x.hide(|hidden| hidden.response_fields.push(name.clone()));
        }
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = self.status;
        let fields = self.headers.render(x);
        let headers = response.headers_mut();
        for Field { name, value } in fields {
            headers.append(name, value);
        }
        headers.insert(LOCATION, location);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        Flow::Reply(Box::new(response)).into()
    }

    fn handles(&self) -> bool {
        self.rewrite.is_total()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.rewrite
            .slots()
            .into_iter()
            .chain(self.headers.slots())
            .collect()
    }
}
