//! The fields that the configurations of `oauth` and `openid-connect` share.

use std::collections::BTreeMap;
use std::sync::Arc;

use culvert_base::{Refusal, code};
use culvert_policy::Scheme;
use culvert_policy::policy::context::{GoDuration, PolicyContext};
use culvert_policy::policy::run::Action;
use culvert_policy::policy::secret::REDACTED;

use super::SESSION_MAX;
use super::session::Spans;
use super::session_middleware::{AppSource, Kind, Login, Options, Provider, SessionMiddleware};

/// Schemes on which browsers keep cookies and follow redirects.
pub(crate) const SCHEMES: &[Scheme] = &[Scheme::Http, Scheme::Https];

const AUTH_ID_BYTES_MAX: usize = 64;
const SCOPES_MAX: usize = 20;
const SCOPE_BYTES_MAX: usize = 255;
const PARAMETERS_MAX: usize = 10;
const PARAMETER_BYTES_MAX: usize = 1024;
const CREDENTIAL_BYTES_MAX: usize = 1024;

/// Parameters that the edge sets itself.
const OWN_PARAMETERS: [&str; 10] = [
    "client_id",
    "code_challenge",
    "code_challenge_method",
    "nonce",
    "redirect_uri",
    "request",
    "request_uri",
    "response_type",
    "scope",
    "state",
];

/// Limits and defaults for durations of sessions.
const SPAN_MIN: GoDuration = GoDuration::seconds(1);
const SPAN_MAX: GoDuration = GoDuration(SESSION_MAX);
const MAX_BY_DEFAULT: GoDuration = GoDuration::seconds(336 * 3600);
const IDLE_BY_DEFAULT: GoDuration = GoDuration::seconds(72 * 3600);
const REFRESH_BY_DEFAULT: GoDuration = GoDuration::seconds(15 * 60);

/// The fields that both configurations have.
pub(crate) struct Common {
    pub(crate) auth_id: String,
    pub(crate) scopes: Vec<String>,
    pub(crate) authz_url_params: BTreeMap<String, String>,
    pub(crate) max_session_duration: Option<GoDuration>,
    pub(crate) idle_session_timeout: Option<GoDuration>,
    pub(crate) userinfo_refresh_interval: Option<GoDuration>,
    pub(crate) allow_cors_preflight: bool,
    pub(crate) auth_cookie_domain: Option<String>,
}

impl Common {
    pub(crate) fn compile(
        self,
        context: &PolicyContext<'_>,
        kind: Kind,
        provider: Provider,
        app: AppSource,
    ) -> Result<Box<dyn Action>, Refusal> {
        context.length("auth_id", &self.auth_id, AUTH_ID_BYTES_MAX)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !self.auth_id.bytes().all(is_plain) {
            let why = "`auth_id` may contain only letters, digits, `-` and `_`";
            return Err(context.refuse(code::POLICY_VALUE_INVALID, why));
        }
        let cookie_domain = match &self.auth_cookie_domain {
            Some(domain) => Some(context.cookie_domain("auth_cookie_domain", domain)?),
            None => None,
        };
        let span = |field: &str, given: Option<GoDuration>, default: GoDuration| {
            let span = given.unwrap_or(default);
            context.within(field, span, SPAN_MIN..=SPAN_MAX)?;
            Ok::<_, Refusal>(span.0)
        };
        let spans = Spans {
            max: span(
                "max_session_duration",
                self.max_session_duration,
                MAX_BY_DEFAULT,
            )?,
            idle: span(
                "idle_session_timeout",
                self.idle_session_timeout,
                IDLE_BY_DEFAULT,
            )?,
            refresh: span(
                "userinfo_refresh_interval",
                self.userinfo_refresh_interval,
                REFRESH_BY_DEFAULT,
            )?,
        };
        let options = Options {
            kind,
            scopes: scopes(context, &provider, &self.scopes)?,
            parameters: parameters(context, &provider, &self.authz_url_params)?,
            provider,
            app,
            auth_id: self.auth_id,
            spans,
            allows_preflight: self.allow_cors_preflight,
            cookie_domain,
        };
        let middleware = SessionMiddleware::new(options, context.logins()?);
        Ok(Box::new(Login(Arc::new(middleware))))
    }
}

/// The application that the policy configures.
pub(crate) fn required(
    context: &PolicyContext<'_>,
    id: &str,
    secret: &str,
) -> Result<AppSource, Refusal> {
    for (field, text) in [("client_id", id), ("client_secret", secret)] {
        context.length(field, text, CREDENTIAL_BYTES_MAX)?;
        if text.is_empty() {
            return Err(context.refuse(
                code::POLICY_VALUE_EMPTY,
                &format!("`{field}` must not be empty"),
            ));
        }
    }
    if secret == REDACTED {
        return Err(context.refuse(
            code::POLICY_VALUE_INVALID,
            "`client_secret` must be the literal secret",
        ));
    }
    Ok(AppSource::Own(
        context.template("client_id", id)?,
        context.template("client_secret", secret)?,
    ))
}

/// The scopes of a request: those that the provider requires, and the configured ones.
fn scopes(
    context: &PolicyContext<'_>,
    provider: &Provider,
    given: &[String],
) -> Result<String, Refusal> {
    if !given.is_empty() {
        context.count("scopes", given.len(), SCOPES_MAX)?;
    }
    let needed: &[&str] = match provider {
        Provider::Known(known, _) => known.scopes,
        Provider::Issuer(_) => &["openid"],
    };
    let mut scopes: Vec<&str> = needed.to_vec();
    for (index, scope) in given.iter().enumerate() {
        let field = format!("scopes[{index}]");
        context.length(&field, scope, SCOPE_BYTES_MAX)?;
        // RFC 6749 3.3.
        let is_scope = |byte: u8| (b'!'..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
        if scope.is_empty() || !scope.bytes().all(is_scope) {
            let why =
                format!("`{field}` must be a scope: printable ASCII without spaces and quotes");
            return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
        }
        if !scopes.contains(&scope.as_str()) {
            scopes.push(scope);
        }
    }
    Ok(scopes.join(" "))
}

/// Additional parameters of the authorization URL: those of the provider, and the configured ones.
fn parameters(
    context: &PolicyContext<'_>,
    provider: &Provider,
    given: &BTreeMap<String, String>,
) -> Result<Vec<(String, String)>, Refusal> {
    if !given.is_empty() {
        context.count("authz_url_params", given.len(), PARAMETERS_MAX)?;
    }
    for (name, value) in given {
        let shown: String = name.chars().take(64).collect();
        let field = format!("authz_url_params.{shown}");
        context.length(&field, name, PARAMETER_BYTES_MAX)?;
        context.length(&field, value, PARAMETER_BYTES_MAX)?;
        if OWN_PARAMETERS.contains(&name.as_str()) {
            let why = format!("`{field}` is set by the edge");
            return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
        }
    }
    let of_provider = match provider {
        Provider::Known(known, _) => known.parameters,
        Provider::Issuer(_) => &[],
    };
    let mut parameters: Vec<(String, String)> = of_provider
        .iter()
        .filter(|(name, _)| !given.contains_key(*name))
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    parameters.extend(
        given
            .iter()
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    Ok(parameters)
}
