//! oauth: users of a well-known provider, and nobody else.

use std::collections::BTreeMap;
use std::sync::Arc;

use culvert_base::{Code, Refusal};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::{ActionType, Ends};
use crate::login::config::{Common, SCHEMES, required};
use crate::login::{App, AppSource, Kind, Known, Logins, Provider, provider_names};
use crate::policy::{Action, GoDuration, Phase, Site};

pub(crate) static TYPE: ActionType = ActionType {
    name: "oauth",
    doc: "Lets users pass that log in at a provider; everybody does who has an account there, so a rule behind it decides by `actions.ngrok.oauth.identity` who may go on. A GET without a session is sent to the provider and comes back to the page that was wanted, other requests get 401. `/culvert/login` begins anew (`?redirect_path=/…` says where to go then), `/culvert/logout` ends the session; with an `auth_id` both take it (`?auth_id=…`). The provider is told `https://<host>/culvert/oauth2/callback`, or `<oauth.callback_base>/oauth2/callback`. Upstreams do not see the session. A policy has one action that logs people in.",
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
    /// Who vouches for users.
    #[schemars(schema_with = "providers")]
    provider: String,
    /// Tells the cookies and paths of one log-in from those of another: at most 64 letters, digits,
    /// `-` and `_`. Empty by default.
    #[serde(default)]
    auth_id: String,
    /// Id of your application at the provider. Takes `${…}`. Required, unless the operator has set one
    /// for this provider.
    #[serde(default)]
    client_id: Option<String>,
    /// Its secret, with the id or not at all. Takes `${…}`. Sealed at rest and never shown.
    #[serde(default)]
    client_secret: Option<String>,
    /// What is asked for beside what the provider needs to say who a user is. Not with the operator's
    /// application.
    #[serde(default)]
    scopes: Vec<String>,
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

/// The names of all providers.
fn providers(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = provider_names().collect();
    json_schema!({ "type": "string", "enum": names })
}

fn compile(site: &Site<'_>) -> Result<Box<dyn Action>, Refusal> {
    const INVALID: Code = Code::new(2204);
    let config: Config = site.config()?;
    let logins = site.logins()?;
    let Some(known) = Known::find(&config.provider) else {
        let names: Vec<_> = provider_names().collect();
        let why = format!("`provider` must be one of {}", names.join(", "));
        return Err(site.refuse(INVALID, &why));
    };
    let settings = logins.settings().providers.get(known.id);
    let endpoints = known
        .endpoints(settings)
        .ok_or_else(|| site.refuse(INVALID, "the URLs of this `provider` cannot be parsed"))?;
    let app = app(site, &logins, known, config.client_id, config.client_secret)?;
    if matches!(app, AppSource::Operators(_)) && !config.scopes.is_empty() {
        let why = "`scopes` requires your own `client_id` and `client_secret`";
        return Err(site.refuse(INVALID, why));
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
        site,
        Kind::OAuth,
        Provider::Known(known, Arc::new(endpoints)),
        app,
    )
}

/// Whose application users log in to.
fn app(
    site: &Site<'_>,
    logins: &Logins,
    known: &'static Known,
    id: Option<String>,
    secret: Option<String>,
) -> Result<AppSource, Refusal> {
    const MISSING: Code = Code::new(2234);
    match (id, secret) {
        (Some(id), Some(secret)) => required(site, &id, &secret),
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
                    Err(site.refuse(MISSING, &why))
                }
            }
        }
        (Some(_), None) => Err(site.refuse(MISSING, "`client_secret` is missing")),
        (None, Some(_)) => Err(site.refuse(MISSING, "`client_id` is missing")),
    }
}
