//! The action `oauth`: admits only users of a well-known identity provider.

use std::sync::Arc;

use culvert_base::{Refusal, code};
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::run::Action;
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::action::config::{SIGN_IN, required, sign_in_config};
use crate::{App, AppSource, BuiltInProvider, Logins, Provider, SignInAction, provider_names};

pub(crate) static TYPE: ActionType = ActionType {
    name: "oauth",
    doc: "Requires a sign-in at an OAuth provider. Every user with an account at the provider can sign in, so use a later rule on `actions.ngrok.oauth.identity` to authorize users. A GET request without a session is redirected to the provider and then back to the original page; other requests get 401. `/culvert/login` starts a new sign-in (`?redirect_path=/…` sets the target), and `/culvert/logout` ends the session if the request is of the same site or a POST; both accept `?auth_id=…` if the action has an `auth_id`. The edge handles all paths below `/culvert/` before all rules, whatever their conditions are, and never forwards them. Register the redirect URI `https://<host>/culvert/oauth2/callback`, or `<oauth.callback_base>/oauth2/callback`. Upstreams and expressions do not receive the session. A policy may have one sign-in action, and the endpoint must be https.",
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile,
    ..SIGN_IN
};

sign_in_config! {
    #[schemars(rename = "OAuth")]
    struct Config {
        /// Identity provider.
        #[schemars(schema_with = "providers")]
        provider: String,
        /// Client ID of your application. Supports `${…}` without `req`, `vars` and `actions`. Required unless the operator has set a
        /// default application for this provider.
        #[serde(default)]
        client_id: Option<String>,
        /// Client secret of your application; set together with `client_id`. Supports `${…}`. Encrypted
        /// at rest.
        #[serde(default)]
        client_secret: Option<String>,
        /// Additional scopes. Not supported with the operator's application.
        #[serde(default)]
        scopes: Vec<String>,
    }
}

/// The schema of provider names.
fn providers(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = provider_names().collect();
    json_schema!({ "type": "string", "enum": names })
}

fn compile(context: &PolicyContext<'_>) -> Result<Box<dyn Action>, Refusal> {
    let config: Config = context.config()?;
    let logins = context.logins::<Logins>()?;
    let Some(known) = BuiltInProvider::find(&config.provider) else {
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
        config.client_id.clone(),
        config.client_secret.clone(),
    )?;
    if matches!(app, AppSource::Operators(_)) && !config.scopes.is_empty() {
        let why = "`scopes` requires your own `client_id` and `client_secret`";
        return Err(context.refuse(code::POLICY_VALUE_INVALID, why));
    }
    let common = config.common(config.scopes.clone());
    common.compile(
        context,
        SignInAction::OAuth,
        Provider::BuiltInProvider(known, Arc::new(endpoints)),
        app,
    )
}

/// The application that users sign in to: the configured one, or the operator's.
fn app(
    context: &PolicyContext<'_>,
    logins: &Logins,
    known: &'static BuiltInProvider,
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
