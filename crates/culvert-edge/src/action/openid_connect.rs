//! openid-connect: users of an OpenID provider, and nobody else.

use std::collections::BTreeMap;

use culvert_base::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use super::{ActionType, Ends};
use crate::login::config::{Common, SCHEMES, required};
use crate::login::{Issuer, Kind, Provider, is_secure};
use crate::policy::{Action, GoDuration, Phase, Site};

const URL_BYTES_MAX: usize = 1024;

pub(crate) static TYPE: ActionType = ActionType {
    name: "openid-connect",
    doc: "Lets users pass that log in at an OpenID provider. All is as with `oauth`, but for this: the provider says itself where its pages are (Discovery), its ID tokens are checked, and results are in `actions.ngrok.oidc`.",
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
    /// The provider, as it names itself: an `https` URL behind which
    /// `/.well-known/openid-configuration` is. `http` is taken for addresses of this machine where
    /// `edge.allow_private_upstreams` is on.
    issuer_url: String,
    /// Tells the cookies and paths of one log-in from those of another: at most 64 letters, digits,
    /// `-` and `_`. Empty by default.
    #[serde(default)]
    auth_id: String,
    /// Id of your application at the provider. Takes `${…}`.
    client_id: String,
    /// Its secret. Takes `${…}`. Sealed at rest and never shown.
    client_secret: String,
    /// What is asked for beside `openid`; `profile` and `email` by default. With `offline_access` most
    /// providers give a refresh token.
    #[serde(default)]
    scopes: Option<Vec<String>>,
    /// Further parameters of the provider's log-in page, at most 10.
    #[serde(default)]
    authz_url_params: BTreeMap<String, String>,
    /// How long a session lasts at most; `336h` by default.
    #[serde(default)]
    max_session_duration: Option<GoDuration>,
    /// How long a session lasts without a request; `72h` by default.
    #[serde(default, alias = "idle_session_duration")]
    idle_session_timeout: Option<GoDuration>,
    /// How often the provider is asked who the user is now; `15m` by default. It is not asked any more
    /// once its access token has expired, if it gave no refresh token.
    #[serde(default)]
    userinfo_refresh_interval: Option<GoDuration>,
    /// Whether the question of a browser passes by which it finds out if another site's page may send
    /// a request; false by default.
    #[serde(default)]
    allow_cors_preflight: bool,
    /// A domain that has the endpoint's host in it, and is the account's: its other endpoints with the
    /// same provider, application and `auth_id` take the session, too. By default the host alone does.
    #[serde(default)]
    auth_cookie_domain: Option<String>,
}

fn compile(site: &Site<'_>) -> Result<Box<dyn Action>, Refusal> {
    const INVALID: Code = Code::new(2204);
    let config: Config = site.config()?;
    let logins = site.logins()?;
    site.length("issuer_url", &config.issuer_url, URL_BYTES_MAX)?;
    let allows_loopback = logins.settings().allows_loopback;
    let url = Url::parse(&config.issuer_url).ok().filter(|url| {
        is_secure(url, allows_loopback) && url.query().is_none() && url.fragment().is_none()
    });
    let issuer = url.and_then(Issuer::at).ok_or_else(|| {
        let why = "`issuer_url` must be an https URL without query and fragment";
        site.refuse(INVALID, why)
    })?;
    let app = required(site, &config.client_id, &config.client_secret)?;
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
        site,
        Kind::OpenIdConnect,
        Provider::Issuer(Box::new(issuer)),
        app,
    )
}
