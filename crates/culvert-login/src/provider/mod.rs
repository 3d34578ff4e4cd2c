//! Identity providers: the table of providers for `oauth` (contract: traffic policy 10), and the discovery of OpenID
//! issuers (OpenID Connect Discovery 1.0).

pub(crate) mod grant;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use culvert_base::sync::lock;
use culvert_base::{Secret, Share};
use culvert_policy::jws::KeySet;
use culvert_policy::services::{FetchScope, PolicyServices};
use serde::Deserialize;
use serde_json::Value as Json;
use url::Url;

use crate::journal::Person;

/// Maximum number of characters of a text in user data; the rest is cut off.
const TEXT_CHARS_MAX: usize = 255;

/// The claim that says whether the e-mail address is verified.
pub(crate) const EMAIL_VERIFIED: &str = "email_verified";

/// A provider with fixed URLs.
#[derive(Debug)]
pub(crate) struct BuiltInProvider {
    pub(crate) id: &'static str,
    /// The URL that identifies the provider, independent of its other URLs.
    pub(crate) site: &'static str,
    authorize: &'static str,
    token: &'static str,
    userinfo: &'static str,
    /// Scopes that are always requested.
    pub(crate) scopes: &'static [&'static str],
    /// Whether it supports PKCE.
    has_pkce: bool,
    /// Additional parameters of the authorization URL.
    pub(crate) parameters: &'static [(&'static str, &'static str)],
    /// JSON pointers to the fields of user data. The first one with a text counts.
    fields: Fields,
    /// Whether the request for user data contains the client id.
    pub(crate) wants_client_id: bool,
    /// The path below the URL of the user data that returns private e-mail addresses.
    pub(crate) emails: Option<&'static str>,
}

#[derive(Debug)]
struct Fields {
    id: &'static [&'static str],
    username: &'static [&'static str],
    name: &'static [&'static str],
    email: &'static [&'static str],
    /// The field with an address in a domain that the provider has verified. Addresses in other domains are not used.
    verified_domain: Option<&'static str>,
}

const STANDARD: Fields = Fields {
    id: &["/sub"],
    username: &["/preferred_username", "/nickname"],
    name: &["/name"],
    email: &["/email"],
    verified_domain: None,
};

const PLAIN: BuiltInProvider = BuiltInProvider {
    id: "",
    site: "",
    authorize: "",
    token: "",
    userinfo: "",
    scopes: &[],
    has_pkce: true,
    parameters: &[],
    fields: STANDARD,
    wants_client_id: false,
    emails: None,
};

/// All providers of `oauth`, sorted by name.
pub(crate) static ALL: &[BuiltInProvider] = &[
    BuiltInProvider {
        id: "amazon",
        site: "https://www.amazon.com",
        authorize: "https://www.amazon.com/ap/oa",
        token: "https://api.amazon.com/auth/o2/token",
        userinfo: "https://api.amazon.com/user/profile",
        scopes: &["profile"],
        fields: Fields {
            id: &["/user_id"],
            username: &[],
            ..STANDARD
        },
        ..PLAIN
    },
    BuiltInProvider {
        id: "facebook",
        site: "https://www.facebook.com",
        authorize: "https://www.facebook.com/dialog/oauth",
        token: "https://graph.facebook.com/oauth/access_token",
        userinfo: "https://graph.facebook.com/me?fields=id,name,email",
        scopes: &["email"],
        has_pkce: false,
        fields: Fields {
            id: &["/id"],
            username: &[],
            ..STANDARD
        },
        ..PLAIN
    },
    BuiltInProvider {
        id: "github",
        site: "https://github.com",
        authorize: "https://github.com/login/oauth/authorize",
        token: "https://github.com/login/oauth/access_token",
        userinfo: "https://api.github.com/user",
        scopes: &["read:org", "read:user", "user:email"],
        fields: Fields {
            id: &["/id"],
            username: &["/login"],
            name: &["/name", "/login"],
            email: &["/email"],
            ..STANDARD
        },
        emails: Some("/emails"),
        ..PLAIN
    },
    BuiltInProvider {
        id: "gitlab",
        site: "https://gitlab.com",
        authorize: "https://gitlab.com/oauth/authorize",
        token: "https://gitlab.com/oauth/token",
        userinfo: "https://gitlab.com/oauth/userinfo",
        scopes: &["openid", "email", "profile"],
        ..PLAIN
    },
    BuiltInProvider {
        id: "google",
        site: "https://accounts.google.com",
        authorize: "https://accounts.google.com/o/oauth2/v2/auth",
        token: "https://oauth2.googleapis.com/token",
        userinfo: "https://openidconnect.googleapis.com/v1/userinfo",
        scopes: &[
            "https://www.googleapis.com/auth/userinfo.email",
            "https://www.googleapis.com/auth/userinfo.profile",
        ],
        // Required for a refresh token.
        parameters: &[("access_type", "offline")],
        ..PLAIN
    },
    BuiltInProvider {
        id: "linkedin",
        site: "https://www.linkedin.com",
        authorize: "https://www.linkedin.com/oauth/v2/authorization",
        token: "https://www.linkedin.com/oauth/v2/accessToken",
        userinfo: "https://api.linkedin.com/v2/userinfo",
        scopes: &["openid", "profile", "email"],
        has_pkce: false,
        ..PLAIN
    },
    BuiltInProvider {
        id: "microsoft",
        site: "https://login.microsoftonline.com",
        authorize: "https://login.microsoftonline.com/common/oauth2/v2.0/authorize",
        token: "https://login.microsoftonline.com/common/oauth2/v2.0/token",
        userinfo: "https://graph.microsoft.com/v1.0/me",
        // `offline_access` requests a refresh token.
        scopes: &["User.Read", "offline_access"],
        fields: Fields {
            id: &["/id"],
            username: &["/userPrincipalName"],
            name: &["/displayName"],
            email: &["/mail", "/userPrincipalName"],
            // The administrators of any tenant can set `mail` to any address. The principal name is in a domain that the
            // tenant has proved to own.
            verified_domain: Some("/userPrincipalName"),
        },
        ..PLAIN
    },
    BuiltInProvider {
        id: "twitch",
        site: "https://id.twitch.tv",
        authorize: "https://id.twitch.tv/oauth2/authorize",
        token: "https://id.twitch.tv/oauth2/token",
        userinfo: "https://api.twitch.tv/helix/users",
        scopes: &["user:read:email"],
        has_pkce: false,
        fields: Fields {
            id: &["/data/0/id"],
            username: &["/data/0/login"],
            name: &["/data/0/display_name"],
            email: &["/data/0/email"],
            ..STANDARD
        },
        wants_client_id: true,
        ..PLAIN
    },
];

/// The names of all providers of `oauth`.
pub fn provider_names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|known| known.id)
}

/// The operator's settings for a provider.
#[derive(Clone, Debug, Default)]
pub struct ProviderSettings {
    /// Replaces the provider's own URL.
    pub authorize_url: Option<Url>,
    /// Replaces the provider's own URL.
    pub token_url: Option<Url>,
    /// Replaces the provider's own URL.
    pub userinfo_url: Option<Url>,
    /// The default application for policies that set none.
    pub app: Option<(String, Secret)>,
}

/// Settings by provider name.
pub type ProvidersSettings = BTreeMap<String, ProviderSettings>;

/// The URLs and capabilities of a provider.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) authorize: Url,
    pub(crate) token: Url,
    pub(crate) userinfo: Option<Url>,
    pub(crate) has_pkce: bool,
    /// Whether the client authenticates with HTTP Basic rather than in the form.
    pub(crate) takes_basic: bool,
    /// The expected issuer of ID tokens.
    pub(crate) issuer: String,
    /// Whether its authorization responses have its issuer (RFC 9207).
    pub(crate) announces_issuer: bool,
    pub(crate) keys: Option<KeySet>,
}

impl Endpoints {
    /// Whether an authorization response may be of this provider (RFC 9207 2.4): otherwise the code of one provider would
    /// go to another.
    pub(crate) fn is_response_ours(&self, query: &str) -> bool {
        let mut named = url::form_urlencoded::parse(query.as_bytes())
            .filter(|(name, _)| name == "iss")
            .map(|(_, issuer)| issuer);
        match (named.next(), named.next()) {
            (None, _) => !self.announces_issuer,
            (Some(_), Some(_)) => false,
            (Some(issuer), None) if !self.issuer.is_empty() => issuer == self.issuer,
            // The issuers of known providers are not published everywhere; their origins are.
            (Some(issuer), None) => {
                let issuer = Url::parse(&issuer);
                issuer.is_ok_and(|issuer| issuer.origin() == self.authorize.origin())
            }
        }
    }
}

impl BuiltInProvider {
    pub(crate) fn find(id: &str) -> Option<&'static Self> {
        ALL.iter().find(|known| known.id == id)
    }

    /// The URLs, with the operator's replacements.
    pub(crate) fn endpoints(&self, settings: Option<&ProviderSettings>) -> Option<Endpoints> {
        let url = |given: Option<&Url>, own: &str| match given {
            Some(url) => Some(url.clone()),
            None => Url::parse(own).ok(),
        };
        let given = |of: fn(&ProviderSettings) -> &Option<Url>| of(settings?).as_ref();
        Some(Endpoints {
            authorize: url(given(|of| &of.authorize_url), self.authorize)?,
            token: url(given(|of| &of.token_url), self.token)?,
            userinfo: url(given(|of| &of.userinfo_url), self.userinfo),
            has_pkce: self.has_pkce,
            takes_basic: false,
            issuer: String::new(),
            announces_issuer: false,
            keys: None,
        })
    }

    /// Reads user data in the provider's format.
    pub(crate) fn person(&self, claims: &Json) -> Person {
        self.fields.person(claims)
    }
}

/// Reads user data in the standard format from two responses about one user. Fields of the first response take precedence.
pub(crate) fn standard_person(answers: [&Json; 2]) -> Person {
    let [first, second] = answers.map(|claims| STANDARD.person(claims));
    let or = |first: String, second: String| if first.is_empty() { second } else { first };
    Person {
        provider_user_id: or(first.provider_user_id, second.provider_user_id),
        username: or(first.username, second.username),
        // If one response marks the address as not verified, the other one cannot provide it. If one marks its own as
        // verified, that says nothing about the address of the other one.
        email: match answers.map(is_verified) {
            [Some(false), _] | [_, Some(false)] => String::new(),
            [None, Some(true)] => or(second.email, first.email),
            _ => or(first.email, second.email),
        },
        name: or(first.name, second.name),
    }
}

impl Fields {
    /// The first e-mail address, in the domain that the provider has verified if it has such a field.
    fn email(&self, claims: &Json) -> String {
        let at = |pointer: &&str| claims.pointer(pointer).and_then(text_of);
        let mut addresses = self.email.iter().filter_map(at);
        let found = match self.verified_domain {
            None => addresses.next(),
            Some(field) => {
                let verified = at(&field).and_then(|address| domain_of(&address));
                addresses.find(|address| verified.is_some() && domain_of(address) == verified)
            }
        };
        found.unwrap_or_default()
    }

    fn person(&self, claims: &Json) -> Person {
        let text = |pointers: &[&str]| {
            let mut found = pointers
                .iter()
                .filter_map(|pointer| claims.pointer(pointer));
            found.find_map(text_of).unwrap_or_default()
        };
        Person {
            provider_user_id: text(self.id),
            username: text(self.username),
            email: match is_verified(claims) {
                Some(false) => String::new(),
                _ => self.email(claims),
            },
            name: text(self.name),
        }
    }
}

/// Whether a response marks its e-mail address as verified or not; `None` if it does not say.
fn is_verified(claims: &Json) -> Option<bool> {
    match claims.get(EMAIL_VERIFIED) {
        None | Some(Json::Null) => None,
        Some(Json::String(text)) => Some(text.eq_ignore_ascii_case("true")),
        Some(said) => Some(*said == Json::Bool(true)),
    }
}

/// The part of an e-mail address after the last `@`, in lower case.
fn domain_of(address: &str) -> Option<String> {
    let (_, domain) = address.rsplit_once('@')?;
    Some(domain.to_ascii_lowercase())
}

fn text_of(value: &Json) -> Option<String> {
    let text = match value {
        Json::String(text) => text.clone(),
        Json::Number(number) => number.to_string(),
        _ => return None,
    };
    let text: String = text.trim().chars().take(TEXT_CHARS_MAX).collect();
    (!text.is_empty()).then_some(text)
}

/// An OpenID issuer, whose URLs come from its discovery document.
#[derive(Debug)]
pub(crate) struct Issuer {
    pub(crate) url: Url,
    discovery: Url,
    /// Who fetches its documents.
    share: Share,
    last: Mutex<Option<(Bytes, Arc<Endpoints>)>>,
}

/// The fields of a discovery document that are used.
#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    userinfo_endpoint: Option<String>,
    jwks_uri: String,
    code_challenge_methods_supported: Option<Vec<String>>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// Why an issuer cannot be used. Displays as the end of a sentence.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undiscovered {
    #[error("{0}")]
    NotFetched(#[from] Arc<culvert_policy::documents::NotFetched>),
    #[error("its discovery document is invalid: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("its discovery document has the issuer `{0}`")]
    Another(String),
    #[error("it contains an insecure URL: {0}")]
    Insecure(String),
}

impl Issuer {
    pub(crate) fn at(url: Url) -> Option<Self> {
        let base = url.as_str().trim_end_matches('/');
        let discovery = Url::parse(&format!("{base}/.well-known/openid-configuration")).ok()?;
        Some(Self {
            url,
            discovery,
            share: Share::of_owner(""),
            last: Mutex::default(),
        })
    }

    /// The same issuer, for a policy with this share of fetches.
    pub(crate) fn used_by(self, share: Share) -> Self {
        Self { share, ..self }
    }

    /// The URLs from the discovery document, which is fetched if necessary.
    pub(crate) async fn endpoints(
        &self,
        services: &PolicyServices,
        allows_loopback: bool,
    ) -> Result<Arc<Endpoints>, Undiscovered> {
        let document = services
            .document(self.share, FetchScope::Upstreams, &self.discovery)
            .await?;
        if let Some((seen, endpoints)) = &*lock(&self.last)
            && seen.as_ptr() == document.as_ptr()
        {
            return Ok(Arc::clone(endpoints));
        }
        let metadata: Metadata = serde_json::from_slice(&document)?;
        let endpoints = Arc::new(self.read(metadata, allows_loopback)?);
        *lock(&self.last) = Some((document, Arc::clone(&endpoints)));
        Ok(endpoints)
    }

    fn read(&self, metadata: Metadata, allows_loopback: bool) -> Result<Endpoints, Undiscovered> {
        let plain = |text: &str| text.trim_end_matches('/').to_owned();
        if plain(&metadata.issuer) != plain(self.url.as_str()) {
            return Err(Undiscovered::Another(
                metadata.issuer.chars().take(TEXT_CHARS_MAX).collect(),
            ));
        }
        let url = |text: String| {
            let url = Url::parse(&text).ok();
            let url = url.filter(|url| is_secure(url, allows_loopback));
            url.ok_or_else(|| Undiscovered::Insecure(text.chars().take(TEXT_CHARS_MAX).collect()))
        };
        let has = |list: &Option<Vec<String>>, name: &str| {
            list.as_ref()
                .is_none_or(|list| list.iter().any(|one| one == name))
        };
        Ok(Endpoints {
            authorize: url(metadata.authorization_endpoint)?,
            token: url(metadata.token_endpoint)?,
            userinfo: metadata.userinfo_endpoint.map(url).transpose()?,
            has_pkce: has(&metadata.code_challenge_methods_supported, "S256"),
            takes_basic: has(
                &metadata.token_endpoint_auth_methods_supported,
                "client_secret_basic",
            ),
            issuer: metadata.issuer,
            announces_issuer: metadata.authorization_response_iss_parameter_supported,
            keys: Some(KeySet::at(url(metadata.jwks_uri)?).used_by(self.share)),
        })
    }
}

/// Whether the connection to a URL is private: `https`, or `http` on loopback if allowed. This does not check the
/// addresses of the host; connecting does.
pub(crate) fn is_secure(url: &Url, allows_loopback: bool) -> bool {
    let has_user = !url.username().is_empty() || url.password().is_some();
    let is_loopback = match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => return false,
    };
    !has_user
        && match url.scheme() {
            "https" => true,
            "http" => is_loopback && allows_loopback,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_provider_is_whole() {
        for known in ALL {
            let endpoints = known.endpoints(None).unwrap();
            let urls = [&endpoints.authorize, &endpoints.token];
            for url in urls.into_iter().chain(&endpoints.userinfo) {
                assert!(is_secure(url, false), "{}", known.id);
            }
            assert!(!known.scopes.is_empty() && Url::parse(known.site).is_ok());
            assert!(endpoints.userinfo.is_some());
        }
        assert!(ALL.windows(2).all(|pair| pair[0].id < pair[1].id));
    }

    #[test]
    fn people_by_what_providers_say() {
        let person = |id: &str, username: &str, email: &str, name: &str| Person {
            provider_user_id: id.into(),
            username: username.into(),
            email: email.into(),
            name: name.into(),
        };
        for (provider, claims, expected) in [
            (
                "amazon",
                json!({"user_id": "amzn1.x", "name": "Ann", "email": "a@x.example"}),
                person("amzn1.x", "", "a@x.example", "Ann"),
            ),
            (
                "facebook",
                json!({"id": "7", "name": "Ann", "email": "a@x.example"}),
                person("7", "", "a@x.example", "Ann"),
            ),
            (
                "github",
                json!({"id": 7, "login": "ann", "name": null, "email": null}),
                person("7", "ann", "", "ann"),
            ),
            (
                "gitlab",
                json!({"sub": "7", "name": "Ann", "nickname": "ann", "email": "a@x.example"}),
                person("7", "ann", "a@x.example", "Ann"),
            ),
            (
                "google",
                json!({"sub": "7", "name": "Ann", "email": "a@x.example", "email_verified": false}),
                person("7", "", "", "Ann"),
            ),
            (
                "microsoft",
                json!({"id": "7", "displayName": "Ann", "mail": null, "userPrincipalName": "ann@x.example"}),
                person("7", "ann@x.example", "ann@x.example", "Ann"),
            ),
            (
                "microsoft",
                json!({"id": "7", "mail": "ann.smith@X.example", "userPrincipalName": "ann@x.example"}),
                person("7", "ann@x.example", "ann.smith@X.example", ""),
            ),
            (
                "microsoft",
                json!({"id": "7", "mail": "boss@x.example", "userPrincipalName": "ann@evil.example"}),
                person("7", "ann@evil.example", "ann@evil.example", ""),
            ),
            (
                "microsoft",
                json!({"id": "7", "mail": "boss@x.example", "userPrincipalName": "boss_x.example#EXT#@evil.example"}),
                person(
                    "7",
                    "boss_x.example#EXT#@evil.example",
                    "boss_x.example#EXT#@evil.example",
                    "",
                ),
            ),
            (
                "microsoft",
                json!({"id": "7", "mail": "boss@x.example"}),
                person("7", "", "", ""),
            ),
            (
                "microsoft",
                json!({"id": "7", "mail": "boss@x.example", "userPrincipalName": "x.example"}),
                person("7", "x.example", "", ""),
            ),
            (
                "twitch",
                json!({"data": [{"id": "7", "login": "ann", "display_name": "Ann", "email": "a@x.example"}]}),
                person("7", "ann", "a@x.example", "Ann"),
            ),
            ("twitch", json!({"data": []}), Person::default()),
            ("google", json!("7"), Person::default()),
        ] {
            let known = BuiltInProvider::find(provider).unwrap();
            assert_eq!(known.person(&claims), expected, "{provider}");
        }
        for (verified, is_kept) in [
            (json!(true), true),
            (json!("true"), true),
            (json!("True"), true),
            (json!(null), true),
            (json!(false), false),
            (json!("False"), false),
            (json!(0), false),
            (json!("no"), false),
        ] {
            let claims = json!({"sub": "7", "email": "a@x.example", "email_verified": verified});
            let person = BuiltInProvider::find("google").unwrap().person(&claims);
            assert_eq!(!person.email.is_empty(), is_kept, "{verified}");
        }
        let merged = standard_person([
            &json!({"sub": "7", "name": "Ann"}),
            &json!({"sub": "7", "name": "Anna", "email": "a@x.example", "email_verified": "false"}),
        ]);
        assert_eq!(merged, person("7", "", "", "Ann"));
        // What each of two responses says about its address, and whose is taken.
        for (first, second, expected) in [
            (json!({"email": "a@x"}), json!({"email": "b@x"}), "a@x"),
            (
                json!({"email": "a@x"}),
                json!({"email": "b@x", "email_verified": true}),
                "b@x",
            ),
            (
                json!({"email": "a@x", "email_verified": true}),
                json!({"email": "b@x"}),
                "a@x",
            ),
            (
                json!({"email": "a@x", "email_verified": true}),
                json!({"email": "b@x", "email_verified": true}),
                "a@x",
            ),
            (
                json!({"email": "a@x"}),
                json!({"email_verified": true}),
                "a@x",
            ),
            (json!({}), json!({"email": "b@x"}), "b@x"),
            (
                json!({"email": "a@x", "email_verified": true}),
                json!({"email_verified": false}),
                "",
            ),
        ] {
            let merged = standard_person([&first, &second]);
            assert_eq!(merged.email, expected, "{first} {second}");
        }
        let long = BuiltInProvider::find("google")
            .unwrap()
            .person(&json!({"sub": "é".repeat(300)}));
        assert_eq!(long.provider_user_id.chars().count(), TEXT_CHARS_MAX);
    }

    #[test]
    fn an_issuer_speaks_for_itself_alone() {
        let issuer = Issuer::at(Url::parse("https://id.example/realm/").unwrap()).unwrap();
        assert_eq!(
            issuer.discovery.as_str(),
            "https://id.example/realm/.well-known/openid-configuration"
        );
        let read = |change: Json, allows_loopback| {
            let mut metadata = json!({
                "issuer": "https://id.example/realm",
                "authorization_endpoint": "https://id.example/auth",
                "token_endpoint": "https://id.example/token",
                "jwks_uri": "https://id.example/keys",
            });
            for (name, value) in change.as_object().unwrap() {
                metadata[name] = value.clone();
            }
            issuer.read(serde_json::from_value(metadata).unwrap(), allows_loopback)
        };
        let endpoints = read(json!({}), false).unwrap();
        assert_eq!(endpoints.issuer, "https://id.example/realm");
        assert!(endpoints.has_pkce && endpoints.takes_basic);
        let endpoints = read(
            json!({
                "code_challenge_methods_supported": ["plain"],
                "token_endpoint_auth_methods_supported": ["client_secret_post"],
            }),
            false,
        )
        .unwrap();
        assert!(!endpoints.has_pkce && !endpoints.takes_basic);
        for (change, allows_loopback) in [
            (json!({"issuer": "https://evil.example/realm"}), true),
            (json!({"issuer": "https://id.example"}), true),
            (json!({"token_endpoint": "http://id.example/token"}), true),
            (json!({"token_endpoint": "http://127.0.0.1/token"}), false),
            (json!({"jwks_uri": "https://me@id.example/keys"}), true),
            (json!({"userinfo_endpoint": "ftp://id.example/"}), true),
            (
                json!({"authorization_endpoint": "javascript:alert(1)"}),
                true,
            ),
        ] {
            assert!(read(change.clone(), allows_loopback).is_err(), "{change}");
        }
        assert!(read(json!({"token_endpoint": "http://127.0.0.1/token"}), true).is_ok());
    }
}
