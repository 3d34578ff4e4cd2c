//! The settings of the web console.

use std::collections::BTreeMap;

use culvert_base::Secret;
use culvert_login::ConsoleOpenId;
use culvert_resources::Role;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Invalid;

/// The web console.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Console {
    /// Sign-in at an OpenID provider.
    pub openid: OpenId,
}

/// Sign-in to the console at an OpenID provider.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OpenId {
    /// Issuer URL of the provider: an `https` URL that serves `/.well-known/openid-configuration`;
    /// empty to sign in with API keys only. The callback URL to register at the provider is
    /// `<base URL of the API>/console/sign-in/callback`.
    pub issuer_url: String,
    /// Name of the provider on the sign-in page; empty for the host of `issuer_url`.
    pub name: String,
    /// Client ID of the console at the provider.
    pub client_id: String,
    /// Client secret. Set it by environment variable.
    pub client_secret: String,
    /// Scopes in addition to `openid`.
    pub scopes: Vec<String>,
    /// Claim of the ID token or the user info that lists the groups of the user.
    pub groups_claim: String,
    /// Roles of groups, each as `group=role` with the role `admin`, `member` or `read_only`. A
    /// user with several of these groups has the highest role. Users without one of them may sign
    /// in only if an admin has invited their verified e-mail address.
    pub roles: Vec<String>,
}

impl Default for OpenId {
    fn default() -> Self {
        Self {
            issuer_url: String::new(),
            name: String::new(),
            client_id: String::new(),
            client_secret: String::new(),
            scopes: vec!["email".to_owned()],
            groups_claim: "groups".to_owned(),
            roles: Vec::new(),
        }
    }
}

impl OpenId {
    /// The provider, its name and the roles of groups; `None` without a provider.
    #[allow(clippy::type_complexity, reason = "one caller takes it apart")]
    pub fn provider(
        &self,
        allows_loopback: bool,
    ) -> Result<Option<(ConsoleOpenId, String, BTreeMap<String, Role>)>, Invalid> {
        if self.issuer_url.is_empty() {
            return Ok(None);
        }
        let wrong = || {
            let why = "`console.openid.issuer_url` must be an https URL without query and fragment";
            Invalid(why.to_owned())
        };
        let issuer_url = url::Url::parse(&self.issuer_url).map_err(|_| wrong())?;
        let is_plain = issuer_url.query().is_none() && issuer_url.fragment().is_none();
        let host = issuer_url.host_str().filter(|_| is_plain);
        let host = host.ok_or_else(wrong)?;
        for (key, text) in [
            ("client_id", &self.client_id),
            ("client_secret", &self.client_secret),
            ("groups_claim", &self.groups_claim),
        ] {
            if text.is_empty() {
                return Err(Invalid(format!(
                    "`console.openid.{key}` is required with `console.openid.issuer_url`"
                )));
            }
        }
        let name = match self.name.as_str() {
            "" => host.to_owned(),
            name => name.to_owned(),
        };
        let provider = ConsoleOpenId {
            client_id: self.client_id.clone(),
            client_secret: Secret::new(self.client_secret.clone()),
            scopes: self.scopes.clone(),
            groups_claim: self.groups_claim.clone(),
            allows_loopback,
            issuer_url,
        };
        Ok(Some((provider, name, self.roles()?)))
    }

    fn roles(&self) -> Result<BTreeMap<String, Role>, Invalid> {
        let read = |text: &String| {
            // Names of groups may contain `=`, as distinguished names do.
            let (group, role) = text.rsplit_once('=')?;
            let roles = [Role::ReadOnly, Role::Member, Role::Admin];
            let role = roles.into_iter().find(|one| one.name() == role)?;
            (!group.is_empty()).then(|| (group.to_owned(), role))
        };
        let mut roles = BTreeMap::new();
        for text in &self.roles {
            let (group, role) = read(text).ok_or_else(|| {
                Invalid(format!(
                    "`console.openid.roles`: `{text}` must be `group=role` with the role `admin`, \
                     `member` or `read_only`"
                ))
            })?;
            if roles.insert(group, role).is_some() {
                return Err(Invalid(format!(
                    "`console.openid.roles` names the group of `{text}` twice"
                )));
            }
        }
        Ok(roles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openid() -> OpenId {
        OpenId {
            issuer_url: "https://id.example.com/realm".to_owned(),
            client_id: "console".to_owned(),
            client_secret: "secret".to_owned(),
            roles: vec!["cn=ops,dc=x=admin".to_owned(), "dev=member".to_owned()],
            ..OpenId::default()
        }
    }

    #[test]
    fn an_incomplete_identity_provider_is_refused() {
        assert!(OpenId::default().provider(false).unwrap().is_none());
        let (_, name, roles) = openid().provider(false).unwrap().unwrap();
        assert_eq!(name, "id.example.com");
        assert_eq!(roles["cn=ops,dc=x"], Role::Admin);
        assert_eq!(roles["dev"], Role::Member);
        let without = |change: fn(&mut OpenId)| {
            let mut openid = openid();
            change(&mut openid);
            openid.provider(false).is_err()
        };
        assert!(without(|openid| openid.client_id.clear()));
        assert!(without(|openid| openid.client_secret.clear()));
        assert!(without(|openid| openid.issuer_url = "id.example".to_owned()));
        assert!(without(|openid| openid.issuer_url.push_str("?x")));
        assert!(without(|openid| openid.roles = vec!["dev".to_owned()]));
        assert!(without(|openid| openid.roles = vec!["dev=root".to_owned()]));
        assert!(without(|openid| openid.roles = vec!["=admin".to_owned()]));
        assert!(without(|openid| openid.roles.push("dev=admin".to_owned())));
    }
}
