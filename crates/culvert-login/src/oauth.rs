//! The action `oauth`: admits only users of a well-known identity provider.

use std::collections::BTreeMap;
use std::sync::Arc;

use culvert_base::{Refusal, code};
use culvert_policy::action_type::{ActionType, Ends};
use culvert_policy::policy::context::{GoDuration, PolicyContext};
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::Action;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use crate::config::{Common, SCHEMES, required};
use crate::{App, AppSource, Kind, Known, Logins, Provider, provider_names};

pub(crate) static TYPE: ActionType = ActionType {
    name: "oauth",
    doc: "Requires a sign-in at an OAuth provider. Every user with an account at the provider can sign in, so use a later rule on `actions.ngrok.oauth.identity` to authorize users. A GET request without a session is redirected to the provider and then back to the original page; other requests get 401. `/culvert/login` starts a new sign-in (`?redirect_path=/…` sets the target), and `/culvert/logout` ends the session; both accept `?auth_id=…` if the action has an `auth_id`. Register the redirect URI `https://<host>/culvert/oauth2/callback`, or `<oauth.callback_base>/oauth2/callback`. Upstreams do not receive the session. A policy may have one sign-in action.",
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
#[schemars(rename = "OAuth")]
struct Config {
    /// Identity provider.
    #[schemars(schema_with = "providers")]
    provider: String,
    /// Separates the cookies and paths of several sign-ins: at most 64 letters, digits, `-` and
    /// `_`. Default: empty.
    #[serde(default)]
    auth_id: String,
    /// Client ID of your application. Supports `${…}`. Required unless the operator has set a
    /// default application for this provider.
    #[serde(default)]
    client_id: Option<String>,
    /// Client secret of your application; set together with `client_id`. Supports `${…}`. Encrypted
    /// at rest and never returned.
    #[serde(default)]
    client_secret: Option<String>,
    /// Additional scopes. Not supported with the operator's application.
    #[serde(default)]
    scopes: Vec<String>,
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

/// The schema of provider names.
fn providers(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = provider_names().collect();
    json_schema!({ "type": "string", "enum": names })
}

fn compile(context: &PolicyContext<'_>) -> Result<Box<dyn Action>, Refusal> {
    let config: Config = context.config()?;
    let logins = context.logins::<Logins>()?;
    let Some(known) = Known::find(&config.provider) else {
        let names: Vec<_> = provider_names().collect();
        let why = format!("`provider` must be one of {}", names.join(", "));
        return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
    };
    let settings = logins.settings().providers.get(known.id);
    let endpoints = known.endpoints(settings).ok_or_else(|| {
        context.refuse(
            code::POLICY_VALUE_INVALID,
            "the URLs of this `provider` cannot be parsed",
        )
    })?;
    let app = app(
        context,
        &logins,
        known,
        config.client_id,
        config.client_secret,
    )?;
    if matches!(app, AppSource::Operators(_)) && !config.scopes.is_empty() {
        let why = "`scopes` requires your own `client_id` and `client_secret`";
        return Err(context.refuse(code::POLICY_VALUE_INVALID, why));
    }
    Common {
        auth_id: config.auth_id,
        scopes: config.scopes,
        authz_url_params: config.authz_url_params,
        max_session_duration: config.max_session_duration,
        idle_session_timeout: config.idle_session_timeout,
        userinfo_refresh_interval: config.userinfo_refresh_interval,
        allow_cors_preflight: config.allow_cors_preflight,
        auth_cookie_domain: config.auth_cookie_domain,
    }
    .compile(
        context,
        Kind::OAuth,
        Provider::Known(known, Arc::new(endpoints)),
        app,
    )
}

/// The application that users sign in to: the configured one, or the operator's.
fn app(
    context: &PolicyContext<'_>,
    logins: &Logins,
    known: &'static Known,
    id: Option<String>,
    secret: Option<String>,
) -> Result<AppSource, Refusal> {
    match (id, secret) {
        (Some(id), Some(secret)) => required(context, &id, &secret),
        (None, None) => {
            let settings = logins.settings().providers.get(known.id);
            match settings.and_then(|settings| settings.app.as_ref()) {
                Some((id, secret)) => Ok(AppSource::Operators(App {
                    id: id.clone(),
                    secret: secret.reveal().to_owned(),
                })),
                None => {
                    let why = format!(
                        "`client_id` and `client_secret` are missing; this installation has no default application at {}, so register one there",
                        known.id
                    );
                    Err(context.refuse(code::POLICY_FIELD_MISSING, &why))
                }
            }
        }
        (Some(_), None) => {
            Err(context.refuse(code::POLICY_FIELD_MISSING, "`client_secret` is missing"))
        }
        (None, Some(_)) => {
            Err(context.refuse(code::POLICY_FIELD_MISSING, "`client_id` is missing"))
        }
    }
}
