//! The identity of users for the services behind the edge: header fields that clients cannot set, and signed assertions.
//!
//! Sign-in actions and `jwt-validation` know who a user is. [`ForwardIdentity`] writes what they know into the request to
//! the upstream. The edge removes the fields of these names from requests of clients to an endpoint whose policy has
//! them, whichever rule matches, so the upstream may rely on them.
//!
//! An assertion is a JWT that lives for a minute. Its keys derive from secrets that all nodes have, so they are not
//! stored, and change with time.

mod assertion_keys;

use std::collections::BTreeMap;
use std::sync::Arc;

use culvert_base::{Refusal, code};
use culvert_http::fields::folded;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST,
    HeaderName, HeaderValue, ORIGIN, RANGE, USER_AGENT,
};
use http::request;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value as Json};

pub use self::assertion_keys::AssertionKeys;
use crate::policy::context::PolicyContext;
use crate::policy::exchange::Exchange;
pub use crate::policy::run::KEY_SET_PATH;
use crate::policy::run::{ActionResult, EdgePaths, Flow};
use crate::response::problem::{ASSERTION_NAME, is_edge_controlled, is_edges_request};

/// Most header fields, and most claims of an assertion.
const ENTRIES_MAX: usize = 20;
/// Longest name of a claim, in bytes.
const CLAIM_BYTES_MAX: usize = 255;
/// Claims that the edge sets itself.
const OWN_CLAIMS: [&str; 8] = ["aud", "exp", "iat", "idp", "iss", "jti", "nbf", "sub"];
/// Fields that the edge or HTTP itself needs as the client sent them.
const NEEDED: [HeaderName; 11] = [
    ACCEPT,
    AUTHORIZATION,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    COOKIE,
    EXPECT,
    FORWARDED,
    HOST,
    ORIGIN,
    RANGE,
    USER_AGENT,
];
/// Forwarding fields of the edge.
const FORWARDING: [&str; 4] = [
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
];

/// The field `forward_identity` of an action.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ForwardIdentity")]
pub struct ForwardIdentityConfig {
    /// Header fields for the upstream, at most 20: name, and the claim or user field that is its value. Clients cannot set
    /// fields of these names.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// A signed assertion for the upstream.
    #[serde(default)]
    assertion: Option<AssertionConfig>,
}

/// The field `assertion` of `forward_identity`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Assertion")]
struct AssertionConfig {
    /// Name of the header field; default `culvert-assertion`.
    #[serde(default)]
    header: Option<String>,
    /// Claims or user fields that the assertion contains besides `iss`, `aud`, `sub`, `idp`, `iat`, `exp` and `jti`; at
    /// most 20.
    #[serde(default)]
    claims: Vec<String>,
}

/// How an action forwards the identity of a user.
#[derive(Debug)]
pub struct ForwardIdentity {
    /// Name and claim.
    headers: Vec<(HeaderName, String)>,
    assertion: Option<AssertionField>,
}

#[derive(Debug)]
struct AssertionField {
    name: HeaderName,
    claims: Vec<String>,
    keys: Arc<AssertionKeys>,
}

/// A user whom an action has verified.
pub struct VerifiedUser<'u> {
    /// The user's ID at the identity provider; empty if there is none.
    pub subject: &'u str,
    /// The identity provider, among whose users the ID is unique.
    pub provider: &'u str,
    /// The value of a claim or user field.
    pub claim: &'u dyn Fn(&str) -> Option<Json>,
}

impl std::fmt::Debug for VerifiedUser<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifiedUser")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

impl ForwardIdentityConfig {
    /// Checks the names. `known` are all user fields, if they are known when the policy is written. `reads` are fields of
    /// requests that the action reads itself.
    ///
    /// # Errors
    ///
    /// When a name or the number of names is not allowed.
    pub fn compile(
        &self,
        context: &PolicyContext<'_>,
        known: Option<&[&str]>,
        reads: &[HeaderName],
    ) -> Result<ForwardIdentity, Refusal> {
        let refuse = |code, why: String| Err(context.refuse(code, &why));
        if self.headers.is_empty() && self.assertion.is_none() {
            let why = "`forward_identity` requires `headers` or `assertion`".to_owned();
            return refuse(code::POLICY_FIELD_MISSING, why);
        }
        if !self.headers.is_empty() {
            context.count("forward_identity.headers", self.headers.len(), ENTRIES_MAX)?;
        }
        let check_claim = |field: &str, claim: &str| {
            context.length(field, claim, CLAIM_BYTES_MAX)?;
            match known {
                Some(known) if !known.contains(&claim) => {
                    let why = format!("`{field}` must be one of {}", known.join(", "));
                    Err(context.refuse(code::POLICY_VALUE_INVALID, &why))
                }
                _ if claim.is_empty() => {
                    let why = format!("`{field}` must not be empty");
                    Err(context.refuse(code::POLICY_VALUE_EMPTY, &why))
                }
                _ => Ok(()),
            }
        };
        let mut headers = Vec::with_capacity(self.headers.len());
        for (name, claim) in &self.headers {
            let shown: String = name.chars().take(64).collect();
            let field = format!("forward_identity.headers.{shown}");
            check_claim(&field, claim)?;
            let name = header_name(context, &field, name, reads)?;
            if is_edges_request(name.as_str()) {
                let why = format!("`{field}`: the edge controls this header");
                return refuse(code::POLICY_VALUE_INVALID, why);
            }
            headers.push((name, claim.clone()));
        }
        let assertion = match &self.assertion {
            None => None,
            Some(config) => {
                let field = "forward_identity.assertion.header";
                let name = config.header.as_deref().unwrap_or(ASSERTION_NAME);
                let name = header_name(context, field, name, reads)?;
                if is_edges_request(name.as_str()) && name != ASSERTION_NAME {
                    let why = format!("`{field}`: the edge controls this header");
                    return refuse(code::POLICY_VALUE_INVALID, why);
                }
                let list = "forward_identity.assertion.claims";
                if !config.claims.is_empty() {
                    context.count(list, config.claims.len(), ENTRIES_MAX)?;
                }
                for (index, claim) in config.claims.iter().enumerate() {
                    let field = format!("{list}[{index}]");
                    if OWN_CLAIMS.contains(&claim.as_str()) {
                        let why = format!("`{field}`: the edge sets `{claim}` itself");
                        return refuse(code::POLICY_VALUE_INVALID, why);
                    }
                    check_claim(&field, claim)?;
                }
                Some(AssertionField {
                    name,
                    claims: config.claims.clone(),
                    keys: context.assertion_keys()?,
                })
            }
        };
        let forwards = ForwardIdentity { headers, assertion };
        let mut names: Vec<String> = forwards.names().map(folded).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            let why = "`forward_identity` has two headers that servers may confuse".to_owned();
            return refuse(code::POLICY_LIST_DUPLICATE, why);
        }
        Ok(forwards)
    }
}

/// A header field whose value comes from the edge alone.
fn header_name(
    context: &PolicyContext<'_>,
    field: &str,
    text: &str,
    reads: &[HeaderName],
) -> Result<HeaderName, Refusal> {
    let refuse = |why: &str| {
        let why = format!("`{field}`: {why}");
        Err(context.refuse(code::POLICY_VALUE_INVALID, &why))
    };
    let Ok(name) = HeaderName::from_bytes(text.as_bytes()) else {
        return refuse("this is not a header name");
    };
    let read = folded(&name);
    let is_needed = is_edge_controlled(&name)
        || NEEDED.iter().any(|needed| *needed.as_str() == *read)
        || FORWARDING.contains(&read.as_str());
    if is_needed {
        return refuse("the edge needs this header of the client, or sets it itself");
    }
    if reads.iter().any(|other| folded(other) == read) {
        return refuse("the action reads this header");
    }
    Ok(name)
}

impl ForwardIdentity {
    /// The names of the fields, of which a client's request has none.
    pub fn names(&self) -> impl Iterator<Item = &HeaderName> {
        let assertion = self.assertion.iter().map(|field| &field.name);
        self.headers.iter().map(|(name, _)| name).chain(assertion)
    }

    /// The part that publishes the keys of its assertions, if it makes any.
    pub fn key_set(&self) -> Option<&dyn EdgePaths> {
        self.assertion.is_some().then_some(self as &dyn EdgePaths)
    }

    /// Writes the fields for this user. A claim that is missing, empty or no valid value of a field leaves its field out.
    pub fn forward(&self, x: &mut Exchange<'_>, user: &VerifiedUser<'_>) {
        for (name, claim) in &self.headers {
            let value = (user.claim)(claim).and_then(|value| header_value(&value));
            x.edits.set(name.clone(), value);
        }
        let Some(field) = &self.assertion else {
            return;
        };
        let mut claims = Map::new();
        for name in &field.claims {
            if let Some(value) = (user.claim)(name).filter(|value| !is_empty(value)) {
                claims.insert(name.clone(), value);
            }
        }
        // Without an ID, there is no user to make an assertion about.
        let assertion = match user.subject.is_empty() {
            true => None,
            false => {
                claims.insert("sub".to_owned(), user.subject.into());
                claims.insert("idp".to_owned(), user.provider.into());
                claims.insert("aud".to_owned(), x.endpoint.url().into());
                let (now, entropy) = (x.conn.info.now(), &*x.conn.services.entropy);
                field.keys.assertion(claims, now, entropy)
            }
        };
        x.edits.set(field.name.clone(), assertion);
    }
}

/// The endpoint publishes the keys. Services that have no session fetch them.
impl EdgePaths for ForwardIdentity {
    fn answers(&self, request: &request::Parts) -> bool {
        self.assertion.is_some() && request.uri.path() == KEY_SET_PATH
    }

    fn answer<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let flow = match (&self.assertion, x.request) {
            (Some(field), Some(request)) => {
                let response = field.keys.respond(&request.method, x.conn.info.now());
                Flow::Reply(Box::new(response))
            }
            _ => Flow::Continue,
        };
        flow.into()
    }
}

fn is_empty(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::String(text) => text.is_empty(),
        _ => false,
    }
}

/// A claim as the value of a field: text as it is, lists and objects as JSON.
fn header_value(value: &Json) -> Option<HeaderValue> {
    match value {
        _ if is_empty(value) => None,
        Json::String(text) => HeaderValue::from_str(text).ok(),
        other => HeaderValue::try_from(other.to_string()).ok(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_become_values_of_fields() {
        for (claim, expected) in [
            (json!("anna"), Some("anna")),
            (json!("Jürgen"), Some("Jürgen")),
            (json!(7), Some("7")),
            (json!(true), Some("true")),
            (json!(["a", "b"]), Some(r#"["a","b"]"#)),
            (json!(["a\r\nx: 1"]), Some(r#"["a\r\nx: 1"]"#)),
            (json!("a\r\nx-admin: 1"), None),
            (json!("a\nb"), None),
            (json!("a\0b"), None),
            (json!(""), None),
            (json!(null), None),
        ] {
            let value = header_value(&claim);
            let text = value.as_ref().map(|value| value.as_bytes());
            assert_eq!(text, expected.map(str::as_bytes), "{claim}");
        }
    }
}
