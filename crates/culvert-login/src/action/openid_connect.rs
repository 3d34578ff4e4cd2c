//! The action `openid-connect`: admits only users of an OpenID provider.

use culvert_base::{Refusal, code};
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::run::Action;
use url::Url;

use crate::action::config::{SIGN_IN, required, sign_in_config};
use crate::{Issuer, Logins, Provider, SignInAction, is_secure};

const URL_BYTES_MAX: usize = 1024;

pub(crate) static TYPE: ActionType = ActionType {
    name: "openid-connect",
    doc: "Requires a sign-in at an OpenID Connect provider. It works like `oauth`, with these differences: the edge uses OpenID Connect Discovery and verifies ID tokens, and results are in `actions.ngrok.oidc`.",
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile,
    ..SIGN_IN
};

sign_in_config! {
    #[schemars(rename = "OpenIdConnect")]
    struct Config {
        /// Issuer URL of the provider: an `https` URL that serves `/.well-known/openid-configuration`.
        /// `http` is allowed for loopback addresses with `edge.allow_private_upstreams`.
        issuer_url: String,
        /// Client ID of your application. Supports `${…}`.
        client_id: String,
        /// Client secret of your application. Supports `${…}`. Encrypted at rest.
        client_secret: String,
        /// Scopes in addition to `openid`; default `profile` and `email`. Most providers issue a
        /// refresh token for `offline_access`.
        #[serde(default)]
        scopes: Option<Vec<String>>,
    }
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
    let issuer = issuer.used_by(context.share());
    let app = required(context, &config.client_id, &config.client_secret)?;
    let scopes = config
        .scopes
        .clone()
        .unwrap_or_else(|| vec!["profile".to_owned(), "email".to_owned()]);
    let common = config.common(scopes);
    common.compile(
        context,
        SignInAction::OpenIdConnect,
        Provider::Issuer(Box::new(issuer)),
        app,
    )
}
