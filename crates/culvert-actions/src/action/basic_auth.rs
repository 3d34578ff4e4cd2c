//! basic-auth: admits only requests with a configured user and password.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::{Refusal, code};
use culvert_cel::Value;
use culvert_http::fields::only;
use culvert_policy::action_type::ActionType;
use culvert_policy::event_slots;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::secret::REDACTED;
use culvert_policy::policy::template::Template;
use culvert_policy::policy::values::map;
use culvert_policy::reply::Rejection;
use http::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use subtle::{Choice, ConstantTimeEq};

const CREDENTIALS_MAX: usize = 10;
const REALM_BYTES_MAX: usize = 128;
const PASSWORD_CHARS_MIN: usize = 8;
const PASSWORD_CHARS_MAX: usize = 128;

pub(crate) static TYPE: ActionType = ActionType {
    name: "basic-auth",
    doc: "Requires HTTP Basic authentication (RFC 7617); other requests get 401. The upstream receives the header. Credentials are encrypted at rest.",
    phases: &[Phase::Request],
    ends: Ends::Sometimes,
    secrets: &["credentials"],
    takes_secrets: &[("credentials", &[Phase::Request])],
    keeps_secrets: true,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |context| {
        let config: Config = context.config()?;
        context.count("credentials", config.credentials.len(), CREDENTIALS_MAX)?;
        let mut credentials = Vec::with_capacity(config.credentials.len());
        for (index, credential) in config.credentials.iter().enumerate() {
            credentials.push(credential_of(
                context,
                &format!("credentials[{index}]"),
                credential,
            )?);
        }
        Ok(Box::new(BasicAuth {
            credentials,
            challenge: challenge(context, config.realm.as_deref().unwrap_or("culvert"))?,
            enforce: config.enforce.unwrap_or(true),
        }))
    },
    guards: true,
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BasicAuth")]
struct Config {
    /// 1 to 10 credentials as `user:password`. Passwords have 8 to 128 characters. Supports `${…}`.
    credentials: Vec<String>,
    /// Realm that browsers display; default `culvert`.
    #[serde(default)]
    realm: Option<String>,
    /// Whether other clients are rejected; default true.
    #[serde(default)]
    enforce: Option<bool>,
}

#[derive(Debug)]
struct BasicAuth {
    credentials: Vec<Template>,
    challenge: HeaderValue,
    enforce: bool,
}

fn credential_of(
    context: &PolicyContext<'_>,
    field: &str,
    text: &str,
) -> Result<Template, Refusal> {
    let template = context.template(field, text)?;
    if template.is_one_expression() {
        return Ok(template);
    }
    let is_split = template.literals().any(|text| text.contains(':'));
    if text == REDACTED || !is_split {
        let why = format!("`{field}` must be `user:password`, with the `:` outside `${{…}}`");
        return Err(context.refuse(code::BASIC_AUTH_USER_INVALID, &why));
    }
    if template
        .literals()
        .any(|text| text.chars().any(char::is_control))
    {
        let why = format!("`{field}` must not contain control characters");
        return Err(context.refuse(code::BASIC_AUTH_PASSWORD_INVALID, &why));
    }
    if let Some((user, password)) = template.constant().and_then(|text| text.split_once(':')) {
        if user.is_empty() {
            return Err(context.refuse(
                code::BASIC_AUTH_USER_INVALID,
                &format!("`{field}`: the user must not be empty"),
            ));
        }
        if !is_password(password) {
            let why = format!("`{field}`: a password must have 8 to 128 characters");
            return Err(context.refuse(code::BASIC_AUTH_PASSWORD_INVALID, &why));
        }
    }
    Ok(template)
}

fn is_password(text: &str) -> bool {
    (PASSWORD_CHARS_MIN..=PASSWORD_CHARS_MAX).contains(&text.chars().count())
}

fn challenge(context: &PolicyContext<'_>, realm: &str) -> Result<HeaderValue, Refusal> {
    context.length("realm", realm, REALM_BYTES_MAX)?;
    let is_plain = realm.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
    let header = HeaderValue::try_from(format!("Basic realm=\"{quoted}\", charset=\"UTF-8\""));
    header.ok().filter(|_| is_plain).ok_or_else(|| {
        context.refuse(
            code::POLICY_VALUE_INVALID,
            "`realm` must be printable ASCII",
        )
    })
}

/// The credentials in a request. Of two fields, the upstream might use the other one, so they are none.
fn presented(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = only(headers, &AUTHORIZATION).ok()?.as_bytes();
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let credentials = STANDARD.decode(rest.trim_ascii()).ok()?;
    credentials.contains(&b':').then_some(credentials)
}

/// The user name in credentials: UTF-8, otherwise Latin-1.
fn user(credentials: &[u8]) -> String {
    let user = credentials
        .split(|byte| *byte == b':')
        .next()
        .unwrap_or_default();
    match std::str::from_utf8(user) {
        Ok(user) => user.to_owned(),
        Err(_) => user.iter().copied().map(char::from).collect(),
    }
}

const REJECTION: Rejection = Rejection {
    text: "Unauthorized\n",
    message: "This site requires a user name and a password.",
    advice: "Reload the page and sign in.",
    owner_help: "The user names and passwords are in `basic-auth` of the traffic policy of the endpoint.",
};

impl Action for BasicAuth {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let presented = x.request.and_then(|request| presented(&request.headers));
        let mut is_known = Choice::from(0);
        for template in &self.credentials {
            // Credentials that cannot be computed match no request.
            let Ok(expected) = template.strict(x) else {
                continue;
            };
            let is_whole = expected
                .split_once(':')
                .is_some_and(|(user, password)| !user.is_empty() && is_password(password));
            if let (Some(presented), true) = (&presented, is_whole) {
                is_known |= presented.as_slice().ct_eq(expected.as_bytes());
            }
        }
        let is_authorized = bool::from(is_known);
        let passes = is_authorized || !self.enforce;
        let decision = if passes { "allow" } else { "block" };
        x.set_field(event_slots::BASIC_AUTH_DECISION, decision);
        let user = presented.as_deref().map(user);
        if let Some(user) = &user {
            x.set_field(event_slots::BASIC_AUTH_USERNAME, user);
        }
        let error = x.error();
        let credentials = map(vec![
            ("presented", Value::Bool(presented.is_some())),
            ("username", Value::from(user.as_deref().unwrap_or_default())),
            ("authorized", Value::Bool(is_authorized)),
        ]);
        x.result("basic_auth", vec![("credentials", credentials), error]);
        if passes {
            return Flow::Continue.into();
        }
        let mut flow = x.reject(StatusCode::UNAUTHORIZED, &REJECTION);
        if let Flow::Reply(answer) = &mut flow {
            let challenge = self.challenge.clone();
            answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        flow.into()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.credentials.iter().flat_map(Template::slots).collect()
    }
}
