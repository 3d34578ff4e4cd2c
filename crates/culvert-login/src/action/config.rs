//! The parts that the configurations of `oauth` and `openid-connect` share.

use std::collections::BTreeMap;
use std::sync::Arc;

use culvert_base::{Refusal, code};
use culvert_policy::Scheme;
use culvert_policy::action_type::ActionType;
use culvert_policy::identity::ForwardIdentityConfig;
pub(crate) use culvert_policy::policy::context::GoDuration;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::Action;
use culvert_policy::policy::secret::REDACTED;
use culvert_policy::policy::variables;

use crate::action::session_middleware::{
    AppSource, Login, Options, Provider, SessionMiddleware, SignInAction, USER_FIELDS,
};
use crate::logins::SESSION_MAX;
use crate::session::Spans;

/// Where browsers keep cookies and follow redirects.
const SCHEMES: &[Scheme] = &[Scheme::Http, Scheme::Https];

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

/// Defines the configuration of a sign-in action: its own fields, followed by those that all such actions have.
/// A flattened struct would accept unknown fields.
macro_rules! sign_in_config {
    ($(#[$meta:meta])* struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $ty:ty,)* }) => {
        #[derive(serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$meta])*
        struct $name {
            $($(#[$field_meta])* $field: $ty,)*
            /// Separates the cookies and paths of several sign-ins: at most 64 letters, digits, `-` and
            /// `_`. Default: empty.
            #[serde(default)]
            auth_id: String,
            /// Additional parameters for the provider's sign-in page, at most 10.
            #[serde(default)]
            authz_url_params: std::collections::BTreeMap<String, String>,
            /// Maximum duration of a session; default `336h`.
            #[serde(default)]
            max_session_duration: Option<$crate::action::config::GoDuration>,
            /// Maximum idle time of a session; default `72h`.
            #[serde(default, alias = "idle_session_duration")]
            idle_session_timeout: Option<$crate::action::config::GoDuration>,
            /// Interval to refresh the user data from the provider; default `15m`. Without a refresh token,
            /// refreshing stops when the access token expires.
            #[serde(default)]
            userinfo_refresh_interval: Option<$crate::action::config::GoDuration>,
            /// Whether CORS preflight requests pass without a session; default false.
            #[serde(default)]
            allow_cors_preflight: bool,
            /// Domain of the account that contains the endpoint's host. Other endpoints of the same owner in the
            /// domain with the same provider, application and `auth_id` share the session, and all hosts of the
            /// domain can set its cookies. Default: only the host.
            #[serde(default)]
            auth_cookie_domain: Option<String>,
            /// Tells the upstream who the user is, in fields that clients cannot set. User fields: `email` (empty if it is
            /// not verified), `id`, `name`, `provider`, `provider_user_id`, `session_id` and `username`.
            #[serde(default)]
            forward_identity: Option<culvert_policy::identity::ForwardIdentityConfig>,
        }

        impl $name {
            /// The fields that all sign-in actions have.
            fn common(&self, scopes: Vec<String>) -> $crate::action::config::Common {
                $crate::action::config::Common {
                    auth_id: self.auth_id.clone(),
                    scopes,
                    authz_url_params: self.authz_url_params.clone(),
                    max_session_duration: self.max_session_duration,
                    idle_session_timeout: self.idle_session_timeout,
                    userinfo_refresh_interval: self.userinfo_refresh_interval,
                    allow_cors_preflight: self.allow_cors_preflight,
                    auth_cookie_domain: self.auth_cookie_domain.clone(),
                    forward_identity: self.forward_identity.clone(),
                }
            }
        }
    };
}

pub(crate) use sign_in_config;

/// A sign-in action without a name, a description and a configuration.
pub(crate) const SIGN_IN: ActionType = ActionType {
    phases: &[Phase::Request],
    ends: Ends::Sometimes,
    is_login: true,
    guards: true,
    secrets: &["client_secret"],
    takes_secrets: &[("client_secret", &[Phase::Request])],
    keeps_secrets: true,
    schemes: SCHEMES,
    ..ActionType::PLAIN
};

/// The fields that all sign-in actions have.
pub(crate) struct Common {
    pub(crate) auth_id: String,
    pub(crate) scopes: Vec<String>,
    pub(crate) authz_url_params: BTreeMap<String, String>,
    pub(crate) max_session_duration: Option<GoDuration>,
    pub(crate) idle_session_timeout: Option<GoDuration>,
    pub(crate) userinfo_refresh_interval: Option<GoDuration>,
    pub(crate) allow_cors_preflight: bool,
    pub(crate) auth_cookie_domain: Option<String>,
    pub(crate) forward_identity: Option<ForwardIdentityConfig>,
}

impl Common {
    pub(crate) fn compile(
        self,
        context: &PolicyContext<'_>,
        kind: SignInAction,
        provider: Provider,
        app: AppSource,
    ) -> Result<Box<dyn Action>, Refusal> {
        // Browsers keep the cookies only of https pages.
        if context.is_written() && context.is_insecure() {
            let why = "it requires an https endpoint";
            return Err(context.refuse(code::POLICY_ACTION_WRONG_PROTOCOL, why));
        }
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
        let forwards = self.forward_identity.as_ref();
        let forwards = forwards.map(|config| config.compile(context, Some(&USER_FIELDS), &[]));
        let options = Options {
            forwards: forwards.transpose()?,
            share: context.share(),
            kind,
            owner: context.owner().into(),
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
    let id = context.template("client_id", id)?;
    let secret = context.template("client_secret", secret)?;
    if context.is_written() {
        for (field, template) in [("client_id", &id), ("client_secret", &secret)] {
            let mut paths = template.slots().map(variables::path);
            // The application of the callback would be another than that of the redirect to the provider.
            let varies = |path: &str| {
                ["req.", "vars", "actions"]
                    .iter()
                    .any(|start| path.starts_with(start))
            };
            if let Some(path) = paths.find(|path| varies(path)) {
                let why = format!(
                    "`{field}` must not read `{path}`, because paths of the edge are handled before all rules"
                );
                return Err(context.refuse(code::POLICY_TEMPLATE_INVALID, &why));
            }
        }
    }
    Ok(AppSource::Own(id, secret))
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
        Provider::BuiltInProvider(known, _) => known.scopes,
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
        Provider::BuiltInProvider(known, _) => known.parameters,
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
