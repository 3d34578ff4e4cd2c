//! Traffic policies and their sign-ins.

use std::collections::BTreeMap;

use culvert_base::Secret;
use culvert_login::{LoginSettings, ProviderSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;

/// Traffic policies.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Handling of a rule whose expression fails: `auto` rejects the request with 500, or closes the
    /// connection, if the rule has an action that restricts access (`deny`, `restrict-ips`,
    /// `basic-auth`, `oauth`, `openid-connect`, `jwt-validation`, `verify-webhook`, `terminate-tls`,
    /// `rate-limit`), and ignores other rules; `deny` rejects in any case; `skip` ignores the rule.
    /// An evaluation that reaches a limit always rejects. Failures are counted in all cases.
    pub on_expression_error: OnExpressionError,
    /// Whether the action `http-request` may call public hosts. Otherwise it can call only
    /// internal endpoints of the account. Addresses that are not public must be in
    /// `destinations.allow_networks`.
    pub http_request_public: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            on_expression_error: OnExpressionError::Auto,
            http_request_public: false,
        }
    }
}

/// Rights to the objects of other owners.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RightsSettings {
    /// Who may serve endpoints on a reserved domain or address: `all` owners of the account, or
    /// only its `owner` and admins. Endpoints that exist stay.
    pub domains: DomainUse,
    /// Whether traffic policies of earlier versions that echo secrets of others are refused immediately. Otherwise
    /// they keep working for 30 days after the upgrade. A new installation has no such policies.
    pub strict: bool,
}

/// Who may serve endpoints on a reserved domain or address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DomainUse {
    /// Every owner of the account.
    #[default]
    All,
    /// Its owner and admins.
    Owner,
}

/// Handling of a rule whose expression fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnExpressionError {
    /// Reject if the rule restricts access, otherwise ignore it.
    Auto,
    /// Ignore the rule.
    Skip,
    /// Reject the request with 500 or close the connection.
    Deny,
}

impl From<OnExpressionError> for culvert_policy::OnExpressionError {
    fn from(setting: OnExpressionError) -> Self {
        match setting {
            OnExpressionError::Auto => Self::Auto,
            OnExpressionError::Skip => Self::Skip,
            OnExpressionError::Deny => Self::Deny,
        }
    }
}

/// Sign-ins of traffic policies.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Oauth {
    /// Public base URL of a shared OAuth callback, such as `https://login.example.com`;
    /// `/oauth2/callback` is appended. Its host must resolve to this edge. Empty: each endpoint
    /// uses its own callback, `https://<host>/culvert/oauth2/callback`.
    pub callback_base: String,
    /// Providers of the action `oauth`.
    pub providers: Box<OauthProviders>,
}

/// Providers of the action `oauth`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OauthProviders {
    /// Amazon.
    pub amazon: OauthProvider,
    /// Facebook.
    pub facebook: OauthProvider,
    /// GitHub.
    pub github: OauthProvider,
    /// GitLab.
    pub gitlab: OauthProvider,
    /// Google.
    pub google: OauthProvider,
    /// LinkedIn.
    pub linkedin: OauthProvider,
    /// Microsoft.
    pub microsoft: OauthProvider,
    /// Twitch.
    pub twitch: OauthProvider,
}

/// A provider of the action `oauth`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OauthProvider {
    /// Authorization endpoint; empty for the provider's default.
    pub authorize_url: String,
    /// Token endpoint; empty for the provider's default.
    pub token_url: String,
    /// User info endpoint; empty for the provider's default.
    pub userinfo_url: String,
    /// Default OAuth client ID for policies that do not set one.
    pub client_id: String,
    /// OAuth client secret. Set it by environment variable.
    pub client_secret: String,
}

impl Oauth {
    fn each(&self) -> [(&'static str, &OauthProvider); 8] {
        let providers = &self.providers;
        [
            ("amazon", &providers.amazon),
            ("facebook", &providers.facebook),
            ("github", &providers.github),
            ("gitlab", &providers.gitlab),
            ("google", &providers.google),
            ("linkedin", &providers.linkedin),
            ("microsoft", &providers.microsoft),
            ("twitch", &providers.twitch),
        ]
    }

    /// The settings of sign-ins, except for `allows_loopback`.
    pub fn logins(&self) -> Result<LoginSettings, Invalid> {
        let url = |key: String, text: &str| {
            if text.is_empty() {
                return Ok(None);
            }
            let url = url::Url::parse(text)
                .ok()
                .filter(|url| matches!(url.scheme(), "https" | "http") && url.has_host());
            let wrong = || {
                Invalid(format!(
                    "`{key}` must be a URL such as `https://id.example.com`"
                ))
            };
            url.map(Some).ok_or_else(wrong)
        };
        let callback_base = url("oauth.callback_base".into(), &self.callback_base)?;
        if callback_base
            .as_ref()
            .is_some_and(|url| url.query().is_some() || url.fragment().is_some())
        {
            return Err(Invalid(
                "`oauth.callback_base` must not have a query".into(),
            ));
        }
        let mut providers = BTreeMap::new();
        for (name, provider) in self.each() {
            let key = |field: &str| format!("oauth.providers.{name}.{field}");
            let app = match (provider.client_id.as_str(), provider.client_secret.as_str()) {
                ("", "") => None,
                (id, secret) if !id.is_empty() && !secret.is_empty() => {
                    Some((id.to_owned(), Secret::new(secret.to_owned())))
                }
                _ => {
                    let (id, secret) = (key("client_id"), key("client_secret"));
                    return Err(Invalid(format!(
                        "`{id}` and `{secret}` must be set together"
                    )));
                }
            };
            let settings = ProviderSettings {
                authorize_url: url(key("authorize_url"), &provider.authorize_url)?,
                token_url: url(key("token_url"), &provider.token_url)?,
                userinfo_url: url(key("userinfo_url"), &provider.userinfo_url)?,
                app,
            };
            providers.insert(name.to_owned(), settings);
        }
        Ok(LoginSettings {
            issuer: String::new(),
            callback_base,
            providers,
            allows_loopback: false,
        })
    }
}
