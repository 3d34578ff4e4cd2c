//! The action `openid-connect`: admits only users of an OpenID provider.

use std::collections::BTreeMap;

use culvert_base::{Refusal, code};
use culvert_policy::action_type::{ActionType, Ends};
use culvert_policy::policy::context::{GoDuration, PolicyContext};
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::Action;
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use crate::config::{Common, SCHEMES, required};
use crate::{Issuer, Kind, Logins, Provider, is_secure};

const URL_BYTES_MAX: usize = 1024;

pub(crate) static TYPE: ActionType = ActionType {
    name: "openid-connect",
    doc: "Requires a sign-in at an OpenID Connect provider. It works like `oauth`, with these differences: the edge uses OpenID Connect Discovery and verifies ID tokens, and results are in `actions.ngrok.oidc`.",
    phases: &[Phase::Request],
    ends: Ends::Sometimes,
    is_login: true,
    secrets: &["client_secret"],
    schemes: SCHEMES,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile,
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OpenIdConnect")]
struct Config {
    /// Issuer URL of the provider: an `https` URL that serves `/.well-known/openid-configuration`.
    /// `http` is allowed for loopback addresses with `edge.allow_private_upstreams`.
    issuer_url: String,
    /// Separates the cookies and paths of several sign-ins: at most 64 letters, digits, `-` and
    /// `_`. Default: empty.
    #[serde(default)]
    auth_id: String,
    /// Client ID of your application. Supports `${…}`.
    client_id: String,
    /// Client secret of your application. Supports `${…}`. Encrypted at rest and never returned.
    client_secret: String,
    /// Scopes in addition to `openid`; default `profile` and `email`. Most providers issue a
    /// refresh token for `offline_access`.
    #[serde(default)]
    scopes: Option<Vec<String>>,
    /// Additional parameters for the provider's sign-in page, at most 10.
    #[serde(default)]
    authz_url_params: BTreeMap<String, String>,
    /// Maximum duration of a session; default `336h`.
    #[serde(default)]
    max_session_duration: Option<GoDuration>,
    /// Maximum idle time of a session; default `72h`.
    #[serde(default, alias = "idle_session_duration")]
    idle_session_timeout: Option<GoDuration>,
    /// Interval to refresh the user data from the provider; default `15m`. Without a refresh token,
    /// refreshing stops when the access token expires.
    #[serde(default)]
    userinfo_refresh_interval: Option<GoDuration>,
    /// Whether CORS preflight requests pass without a session; default false.
    #[serde(default)]
    allow_cors_preflight: bool,
    /// Domain of the account that contains the endpoint's host. Other endpoints in the domain with
    /// the same provider, application and `auth_id` share the session. Default: only the host.
    #[serde(default)]
    auth_cookie_domain: Option<String>,
}

fn compile(context: &PolicyContext<'_>) -> Result<Box<dyn Action>, Refusal> {
    let config: Config = context.config()?;
    let logins = context.logins::<Logins>()?;
    context.length("issuer_url", &config.issuer_url, URL_BYTES_MAX)?;
    let allows_loopback = logins.settings().allows_loopback;
    let url = Url::parse(&config.issuer_url).ok().filter(|url| {
        is_secure(url, allows_loopback) && url.query().is_none() && url.fragment().is_none()
    });
    let issuer = url.and_then(Issuer::at).ok_or_else(|| {
        let why = "`issuer_url` must be an https URL without query and fragment";
        context.refuse(code::POLICY_VALUE_INVALID, why)
    })?;
    let app = required(context, &config.client_id, &config.client_secret)?;
    let scopes = config
        .scopes
        .unwrap_or_else(|| vec!["profile".to_owned(), "email".to_owned()]);
    Common {
        auth_id: config.auth_id,
        scopes,
        authz_url_params: config.authz_url_params,
        max_session_duration: config.max_session_duration,
        idle_session_timeout: config.idle_session_timeout,
        userinfo_refresh_interval: config.userinfo_refresh_interval,
        allow_cors_preflight: config.allow_cors_preflight,
        auth_cookie_domain: config.auth_cookie_domain,
    }
    .compile(
        context,
        Kind::OpenIdConnect,
        Provider::Issuer(Box::new(issuer)),
        app,
    )
}
