//! custom-response: returns a response that the policy contains.

use std::collections::BTreeMap;

use bytes::Bytes;
use culvert_base::code;
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::template::Template;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::fields::{Field, FieldTemplates};

const BODY_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 10;

pub(crate) static TYPE: ActionType = ActionType {
    name: "custom-response",
    doc: "Returns a response with a custom status, headers and body. The content type is detected from the text of `body` as written, before `${…}` is replaced, unless `headers` sets it.",
    phases: &[Phase::Request, Phase::Response],
    ends: Ends::Always,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        let status = config.status_code.unwrap_or(200);
        site.within("status_code", status, 200..=599)?;
        let status = StatusCode::from_u16(status).unwrap_or_default();
        let body = config.body.unwrap_or_default();
        site.length("body", &body, BODY_BYTES_MAX)?;
        let has_none = [
            StatusCode::NO_CONTENT,
            StatusCode::RESET_CONTENT,
            StatusCode::NOT_MODIFIED,
        ];
        if has_none.contains(&status) && !body.is_empty() {
            let why = format!(
                "a response with the status {} cannot have a `body`",
                status.as_u16()
            );
            return Err(site.refuse(code::POLICY_VALUE_INVALID, &why));
        }
        let body = site.template("body", &body)?;
        Ok(Box::new(CustomResponse {
            status,
            media: HeaderValue::from_static(content_type(&body)),
            body,
            headers: FieldTemplates::compile(site, "headers", &config.headers, 0..=HEADERS_MAX)?
                .for_response(),
        }))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CustomResponse")]
struct Config {
    /// 200 to 599; default 200.
    #[serde(default)]
    #[schemars(range(min = 200, max = 599))]
    status_code: Option<u16>,
    /// Body, at most 64 KiB. Supports `${…}`.
    #[serde(default)]
    body: Option<String>,
    /// Header fields, at most 10. Values support `${…}`. Fields that the edge controls, such as `content-length`, `transfer-encoding` and `connection`, are ignored.
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

#[derive(Debug)]
struct CustomResponse {
    status: StatusCode,
    body: Template,
    /// The content type of the body, if no field sets it.
    media: HeaderValue,
    headers: FieldTemplates,
}

impl Action for CustomResponse {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let body = self.body.render(x).into_owned();
        if self.body.is_secret() {
            x.hide(|hidden| hidden.has_response_body = true);
        }
        for name in self.headers.secret() {
            x.hide(|hidden| hidden.response_fields.push(name.clone()));
        }
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = self.status;
        for Field { name, value } in self.headers.render(x) {
            response.headers_mut().append(name, value);
        }
        let headers = response.headers_mut();
        if !body.is_empty() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, self.media.clone());
            // A browser must not detect another type from what clients put into the body.
            let entry = headers.entry(X_CONTENT_TYPE_OPTIONS);
            entry.or_insert(HeaderValue::from_static("nosniff"));
        }
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        if self.status == StatusCode::NO_CONTENT || self.status == StatusCode::NOT_MODIFIED {
            headers.remove(CONTENT_LENGTH);
        }
        *response.body_mut() = body.into();
        Flow::Reply(Box::new(response)).into()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.body.slots().chain(self.headers.slots()).collect()
    }
}

/// The content type of a body: that of its literal text. Values of expressions may come from clients, so they do not decide.
fn content_type(body: &Template) -> &'static str {
    // An expression is a value, or part of a string.
    let sample = body.sample("null");
    let text = sample.trim_start();
    let is_json = text.starts_with(['{', '['])
        && serde_json::from_str::<serde::de::IgnoredAny>(&sample).is_ok();
    match text {
        _ if is_json => "application/json",
        text if text.starts_with('<') => "text/html; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use culvert_cel::PatternBudget;

    use super::*;

    #[test]
    fn content_types_are_inferred_from_templates() {
        const JSON: &str = "application/json";
        const HTML: &str = "text/html; charset=utf-8";
        const TEXT: &str = "text/plain; charset=utf-8";
        for (body, expected) in [
            ("{\"a\": 1}", JSON),
            (" [1]", JSON),
            ("[1", TEXT),
            ("\n<p>", HTML),
            ("hello", TEXT),
            (
                r#"{"a": ${req.content_length}, "b": "x ${req.host}"}"#,
                JSON,
            ),
            ("[${req.host}]", JSON),
            ("<p>${req.host}", HTML),
            // Whatever the values are.
            ("${getQueryParam('x')[0]}", TEXT),
            ("${getQueryParam('x')[0]}<p>", TEXT),
            (" ${req.host}{}", TEXT),
            ("{}${req.host}", TEXT),
            ("$${<p>", TEXT),
        ] {
            let patterns = PatternBudget::unlimited();
            let template = Template::parse(body, Phase::Request, &patterns).unwrap();
            assert_eq!(content_type(&template), expected, "{body}");
        }
    }
}
