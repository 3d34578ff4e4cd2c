//! jwt-validation: admits only requests with signed tokens of an issuer.

use std::sync::Arc;

use culvert_base::{BoxFuture, Refusal, Timestamp, code};
use culvert_cel::Value;
use culvert_http::fields::{NotOne, only};
use culvert_policy::action_type::ActionType;
use culvert_policy::identity::{ForwardIdentity, ForwardIdentityConfig, VerifiedUser};
use culvert_policy::jws::{self, Algorithm, Expected, KeySet, TOKEN_BYTES_MAX, Unbelieved};
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, EdgePaths, Flow};
use culvert_policy::policy::values::{map, of_json};
use culvert_policy::problem::Problem;
use culvert_policy::services::PolicyServices;
use culvert_policy::unique_json;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value as Json;
use url::Url;

/// Maximum number of entries of each list in the configuration.
const ENTRIES_MAX: usize = 10;
/// Maximum length of a value in it, in bytes.
const VALUE_BYTES_MAX: usize = 1024;
/// Maximum size of a body that is searched for a token, in bytes.
const BODY_BYTES_MAX: usize = 1 << 20;

pub(crate) static TYPE: ActionType = ActionType {
    name: "jwt-validation",
    doc: "Requires that a request has all listed tokens. Each token must be signed with a key of the key sets, have an allowed issuer and audience, and be valid now (with one minute of clock skew). A request that has a token twice has none, because the upstream might read the other one. A missing token gets 401, an invalid token 403, and 502 is returned if the keys cannot be fetched. Key sets are cached for 15 minutes, and for up to a day while they cannot be fetched. A token with an unknown key causes a fetch, at most every 30 seconds.",
    phases: &[Phase::Request],
    ends: Ends::Sometimes,
    keeps_secrets: true,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |context| Ok(Box::new(JwtValidation::compile(context)?)),
    guards: true,
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "JwtValidation")]
struct Config {
    /// Allowed issuers.
    issuer: AllowList,
    /// Allowed audiences.
    audience: AllowList,
    /// Places of the token.
    http: InHttp,
    /// Signature settings.
    jws: Jws,
    /// Tells the upstream who the user is: claims of the first token.
    #[serde(default)]
    forward_identity: Option<ForwardIdentityConfig>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AllowList {
    /// 1 to 10 entries; one must match.
    allow_list: Vec<Allowed>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Allowed {
    /// Value as in the token.
    value: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InHttp {
    /// 1 to 10 tokens; a request must have all of them.
    tokens: Vec<TokenConfig>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TokenConfig {
    /// Token type; for `at+jwt` and `it+jwt` the `typ` of the token must match.
    r#type: Kind,
    /// Whether the token is in a header or in the body: a field of a form or of a JSON object.
    method: Method,
    /// Name of the header or field.
    name: String,
    /// Prefix of the token, such as `Bearer `.
    #[serde(default)]
    prefix: String,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
enum Kind {
    #[serde(rename = "jwt")]
    Jwt,
    #[serde(rename = "access_token")]
    AccessToken,
    #[serde(rename = "id_token")]
    IdToken,
    #[serde(rename = "at+jwt")]
    AtJwt,
    #[serde(rename = "it+jwt")]
    ItJwt,
    #[serde(rename = "plain")]
    Plain,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Method {
    Header,
    Body,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Jws {
    /// From `ES256 ES384 ES512 EdDSA PS256 PS384 PS512 RS256 RS384 RS512`.
    allowed_algorithms: Vec<String>,
    /// Key sets to verify the signature.
    keys: Keys,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Keys {
    /// Key sets.
    sources: Sources,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sources {
    /// 1 to 10 `https` URLs of JSON Web Key Sets.
    additional_jkus: Vec<String>,
}

#[derive(Debug)]
struct JwtValidation {
    tokens: Vec<Token>,
    algorithms: Vec<Algorithm>,
    expected: Expected,
    sources: Vec<KeySet>,
    forwards: Option<ForwardIdentity>,
}

/// Where a token is.
#[derive(Debug)]
struct Token {
    kind: Kind,
    place: TokenLocation,
    name: String,
    prefix: String,
}

#[derive(Debug)]
enum TokenLocation {
    Header(HeaderName),
    Body,
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Invalid {
    #[error("the request has no token in the expected place")]
    Missing,
    #[error("the token is not a signed JWT")]
    Unreadable,
    #[error("the token's algorithm is not allowed")]
    Algorithm,
    #[error("the token type is not the expected type")]
    Kind,
    #[error("the token is not signed with a known key")]
    Signature,
    #[error("the token's issuer is not allowed")]
    Issuer,
    #[error("the token has a different audience")]
    Audience,
    #[error("the token has expired or has no expiry time")]
    Expired,
    #[error("the token is not valid yet")]
    Early,
    #[error("the keys of the issuer cannot be fetched")]
    NoKeys,
}

impl Invalid {
    fn problem(self) -> Problem {
        match self {
            Self::Missing => Problem::NoToken,
            Self::Unreadable => Problem::BadToken,
            Self::NoKeys => Problem::NoKeys,
            _ => Problem::TokenRefused,
        }
    }
}

impl From<Unbelieved> for Invalid {
    fn from(why: Unbelieved) -> Self {
        match why {
            Unbelieved::Signature => Self::Signature,
            Unbelieved::Issuer => Self::Issuer,
            Unbelieved::Audience => Self::Audience,
            Unbelieved::Expired => Self::Expired,
            Unbelieved::Early => Self::Early,
            Unbelieved::NoKeys => Self::NoKeys,
        }
    }
}

/// A token that was checked.
struct Checked {
    header: Json,
    payload: Json,
    signature: String,
}

impl JwtValidation {
    fn compile(context: &PolicyContext<'_>) -> Result<Self, Refusal> {
        let config: Config = context.config()?;
        let issuers = values(context, "issuer.allow_list", &config.issuer)?;
        let audiences = values(context, "audience.allow_list", &config.audience)?;
        context.count("http.tokens", config.http.tokens.len(), ENTRIES_MAX)?;
        let mut tokens = Vec::new();
        for (index, token) in config.http.tokens.into_iter().enumerate() {
            let field = format!("http.tokens[{index}]");
            context.length(&format!("{field}.name"), &token.name, VALUE_BYTES_MAX)?;
            context.length(&format!("{field}.prefix"), &token.prefix, VALUE_BYTES_MAX)?;
            let place = match token.method {
                Method::Body if !token.name.is_empty() => Some(TokenLocation::Body),
                Method::Body => None,
                Method::Header => token.name.parse().ok().map(TokenLocation::Header),
            };
            tokens.push(Token {
                kind: token.r#type,
                place: place.ok_or_else(|| {
                    context.refuse(
                        code::POLICY_VALUE_INVALID,
                        &format!("`{field}.name` is not a header name"),
                    )
                })?,
                name: token.name,
                prefix: token.prefix,
            });
        }
        let named = &config.jws.allowed_algorithms;
        context.count("jws.allowed_algorithms", named.len(), ENTRIES_MAX)?;
        let algorithms: Option<Vec<Algorithm>> =
            named.iter().map(|name| Algorithm::find(name)).collect();
        let algorithms = algorithms.ok_or_else(|| {
            let why = format!(
                "`jws.allowed_algorithms` may contain only {}",
                Algorithm::names().collect::<Vec<_>>().join(", ")
            );
            context.refuse(code::POLICY_VALUE_INVALID, &why)
        })?;
        let urls = &config.jws.keys.sources.additional_jkus;
        context.count("jws.keys.sources.additional_jkus", urls.len(), ENTRIES_MAX)?;
        let mut sources = Vec::new();
        for (index, text) in urls.iter().enumerate() {
            let field = format!("jws.keys.sources.additional_jkus[{index}]");
            context.length(&field, text, VALUE_BYTES_MAX)?;
            let url = Url::parse(text).ok().filter(|url| {
                let has_user = !url.username().is_empty() || url.password().is_some();
                url.scheme() == "https" && url.has_host() && !has_user
            });
            let why = || {
                context.refuse(
                    code::POLICY_VALUE_INVALID,
                    &format!("`{field}` must be an https URL"),
                )
            };
            sources.push(KeySet::at(url.ok_or_else(why)?).used_by(context.share()));
        }
        let reads: Vec<HeaderName> = tokens
            .iter()
            .filter_map(|token| match &token.place {
                TokenLocation::Header(name) => Some(name.clone()),
                TokenLocation::Body => None,
            })
            .collect();
        let forwards = config.forward_identity.as_ref();
        let forwards = forwards.map(|config| config.compile(context, None, &reads));
        Ok(Self {
            tokens,
            algorithms,
            expected: Expected { issuers, audiences },
            sources,
            forwards: forwards.transpose()?,
        })
    }

    async fn validate(&self, x: &mut Exchange<'_>) -> Flow {
        let mut results = Vec::new();
        let mut invalid = None;
        let mut first = None;
        for token in &self.tokens {
            let found = match token.find(x).await {
                Ok(found) => found,
                Err(flow) => return flow,
            };
            let checked = match found {
                Ok(text) => {
                    let (services, now) = (Arc::clone(x.conn.services), x.conn.info.now());
                    self.check(&services, token, &text, now).await
                }
                Err(why) => Err(why),
            };
            if x.wants_results() {
                results.push(token.result(checked.as_ref().ok()));
            }
            match checked {
                Ok(checked) => {
                    first.get_or_insert(checked.payload);
                }
                Err(why) => {
                    invalid = Some(why);
                    break;
                }
            }
        }
        if x.wants_results() {
            let message = invalid.map(|why| why.to_string()).unwrap_or_default();
            let code = invalid.map_or(String::new(), |why| why.problem().code());
            let error = map(vec![
                ("code", Value::from(code.as_str())),
                ("message", Value::from(message.as_str())),
            ]);
            let tokens = Value::List(results.into_iter().collect());
            x.result("jwt_validation", vec![("tokens", tokens), ("error", error)]);
        }
        if let (Some(forwards), Some(claims), None) = (&self.forwards, &first, invalid) {
            let text = |name: &str| claims.get(name).and_then(Json::as_str).unwrap_or_default();
            let user = VerifiedUser {
                subject: text("sub"),
                provider: text("iss"),
                claim: &|name| claims.get(name).cloned(),
            };
            forwards.forward(x, &user);
        }
        match invalid.map(|why| (why, x.refuse(why.problem()))) {
            None => Flow::Continue,
            Some((Invalid::Missing | Invalid::Unreadable, Flow::Reply(mut answer))) => {
                let challenge = HeaderValue::from_static("Bearer");
                answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
                Flow::Reply(answer)
            }
            Some((_, flow)) => flow,
        }
    }

    /// Verifies a token with the keys of all sources.
    async fn check(
        &self,
        services: &PolicyServices,
        token: &Token,
        text: &str,
        now: Timestamp,
    ) -> Result<Checked, Invalid> {
        let token_read = jws::Token::read(text).ok_or(Invalid::Unreadable)?;
        let is_allowed = |algorithm| self.algorithms.contains(&algorithm);
        if token_read.header_text("alg").eq_ignore_ascii_case("none") {
            return Err(Invalid::Unreadable);
        }
        if !token_read.algorithm.is_some_and(is_allowed) {
            return Err(Invalid::Algorithm);
        }
        if token_read.is_extended || !token.kind.fits(token_read.header_text("typ")) {
            return Err(Invalid::Kind);
        }
        let sources = &self.sources;
        let payload = jws::claims(services, sources, &token_read, &self.expected, now).await?;
        Ok(Checked {
            signature: token_read.signature.to_owned(),
            header: token_read.header,
            payload,
        })
    }
}

/// The entries of a list.
fn values(
    context: &PolicyContext<'_>,
    field: &str,
    list: &AllowList,
) -> Result<Vec<String>, Refusal> {
    context.count(field, list.allow_list.len(), ENTRIES_MAX)?;
    for (index, entry) in list.allow_list.iter().enumerate() {
        context.length(
            &format!("{field}[{index}].value"),
            &entry.value,
            VALUE_BYTES_MAX,
        )?;
    }
    let entries = list.allow_list.iter();
    Ok(entries.map(|entry| entry.value.clone()).collect())
}

impl Kind {
    fn fits(self, typ: &str) -> bool {
        let wanted = match self {
            Self::AtJwt => "at+jwt",
            Self::ItJwt => "it+jwt",
            Self::Jwt | Self::AccessToken | Self::IdToken | Self::Plain => return true,
        };
        let typ = typ.to_ascii_lowercase();
        typ.strip_prefix("application/").unwrap_or(&typ) == wanted
    }
}

impl Token {
    /// Finds the text of the token. Returns a flow if the body cannot be read.
    async fn find(&self, x: &mut Exchange<'_>) -> Result<Result<String, Invalid>, Flow> {
        let Some(request) = x.request else {
            return Ok(Err(Invalid::Missing));
        };
        let text = match &self.place {
            TokenLocation::Header(name) => match only(&request.headers, name) {
                Ok(value) => value.to_str().ok().map(str::to_owned),
                Err(NotOne::None) => return Ok(Err(Invalid::Missing)),
                Err(NotOne::Several) => None,
            },
            TokenLocation::Body => {
                let body = x.read_body(BODY_BYTES_MAX).await?;
                match in_body(&request.headers, &body, &self.name) {
                    Err(Invalid::Unreadable) => None,
                    Err(why) => return Ok(Err(why)),
                    Ok(text) => Some(text),
                }
            }
        };
        let Some(text) = text else {
            return Ok(Err(Invalid::Unreadable));
        };
        // Names of authentication schemes are case-insensitive.
        let (prefix, token) = match text.split_at_checked(self.prefix.len()) {
            Some(parts) => parts,
            None => return Ok(Err(Invalid::Missing)),
        };
        if !prefix.eq_ignore_ascii_case(&self.prefix) {
            return Ok(Err(Invalid::Missing));
        }
        if token.len() > TOKEN_BYTES_MAX {
            return Ok(Err(Invalid::Unreadable));
        }
        Ok(Ok(token.trim().to_owned()))
    }

    /// The value of the token in expressions.
    fn result(&self, checked: Option<&Checked>) -> Value {
        let json = |part: Option<&Json>| part.map_or(map(Vec::new()), of_json);
        let location = match self.place {
            TokenLocation::Header(_) => "header",
            TokenLocation::Body => "body",
        };
        let signature = checked.map(|checked| checked.signature.as_str());
        map(vec![
            ("header", json(checked.map(|checked| &checked.header))),
            ("payload", json(checked.map(|checked| &checked.payload))),
            ("signature", Value::from(signature.unwrap_or_default())),
            ("location", Value::from(location)),
            ("location_property", Value::from(self.name.as_str())),
            ("verified", Value::Bool(checked.is_some())),
        ])
    }
}

/// Reads a field of a form, or a text in a JSON object. A body in which another reader may find another value is unreadable.
fn in_body(headers: &HeaderMap, body: &[u8], name: &str) -> Result<String, Invalid> {
    let media = match only(headers, &CONTENT_TYPE) {
        Ok(media) => media.to_str().map_err(|_| Invalid::Unreadable)?,
        Err(NotOne::None) => return Err(Invalid::Missing),
        Err(NotOne::Several) => return Err(Invalid::Unreadable),
    };
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    let is_encoded = codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if is_encoded || !is_utf8(media) {
        return Err(Invalid::Unreadable);
    }
    let media = media.split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return in_form(body, name);
    }
    // A multipart body has its own way to name fields, and text around them that others may read as JSON.
    let is_multipart = media
        .get(..10)
        .is_some_and(|start| start.eq_ignore_ascii_case("multipart/"));
    if is_multipart {
        return Err(Invalid::Unreadable);
    }
    let object = unique_json::read(body).ok_or(Invalid::Unreadable)?;
    let object = object.as_object().ok_or(Invalid::Missing)?;
    // Some readers ignore the case of names.
    let folded_name = caseless(name);
    if object
        .keys()
        .any(|other| other != name && caseless(other) == folded_name)
    {
        return Err(Invalid::Unreadable);
    }
    let text = object.get(name).and_then(Json::as_str);
    text.map(str::to_owned).ok_or(Invalid::Missing)
}

/// Whether a content type names no other charset than UTF-8, and is not a list of types.
fn is_utf8(media: &str) -> bool {
    let mut parameters = media.split(';').skip(1).map(str::trim);
    let is_other = |parameter: &str| {
        let parameter = parameter.to_ascii_lowercase();
        parameter.contains("charset")
            && !matches!(
                &*parameter,
                "charset=utf-8" | "charset=\"utf-8\"" | "charset=utf8" | "charset=us-ascii"
            )
    };
    !media.contains(',') && !parameters.any(is_other)
}

/// The value of a field that occurs once, whatever separates fields and however names are written.
fn in_form(body: &[u8], name: &str) -> Result<String, Invalid> {
    let wanted = form_name(name);
    let mut found = None;
    for pair in body.split(|byte| *byte == b'&') {
        for (position, part) in pair.split(|byte| *byte == b';').enumerate() {
            // The standard separates fields by `&` only, so the value is that of the whole pair.
            let whole = if position == 0 { pair } else { part };
            for (field, value) in url::form_urlencoded::parse(whole) {
                if form_name(&field) != wanted {
                    continue;
                }
                if position > 0 || field != name || found.replace(value.into_owned()).is_some() {
                    return Err(Invalid::Unreadable);
                }
            }
        }
    }
    found.ok_or(Invalid::Missing)
}

/// A name of a form as lenient readers see it: without case and spaces, before a bracket, and with `_` for all but
/// letters and digits.
fn form_name(name: &str) -> String {
    let end = name.find(['[', '\0']).unwrap_or(name.len());
    let name = name.get(..end).unwrap_or_default().trim();
    let plain = |c: char| if c.is_alphanumeric() { c } else { '_' };
    caseless(&name.chars().map(plain).collect::<String>())
}

/// A text without case, as far as readers may ignore it.
fn caseless(text: &str) -> String {
    let upper = text.chars().flat_map(char::to_uppercase);
    upper.flat_map(char::to_lowercase).collect()
}

impl Action for JwtValidation {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let validate: BoxFuture<'a, Flow> = Box::pin(self.validate(x));
        ActionResult::Later(validate)
    }

    fn identity_fields(&self) -> Vec<&HeaderName> {
        let forwards = self.forwards.iter();
        forwards.flat_map(ForwardIdentity::names).collect()
    }

    fn key_set(&self) -> Option<&dyn EdgePaths> {
        self.forwards.as_ref()?.key_set()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "application/x-www-form-urlencoded";
    const JSON: &str = "application/json";

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        headers
    }

    #[test]
    fn one_of_several_tokens_in_a_body_is_none() {
        let one = || Ok("good".to_owned());
        for (media, body, expected) in [
            (FORM, "a=1&token=good&b=2", one()),
            (FORM, "token=go%6fd", one()),
            (FORM, "%74oken=good", one()),
            (
                "application/x-www-form-urlencoded; charset=utf-8",
                "token=good",
                one(),
            ),
            (FORM, "a=1", Err(Invalid::Missing)),
            (FORM, "token=good&token=evil", Err(Invalid::Unreadable)),
            (FORM, "token=evil&token=good", Err(Invalid::Unreadable)),
            (FORM, "token=good&%74oken=evil", Err(Invalid::Unreadable)),
            (FORM, "token=good&Token=evil", Err(Invalid::Unreadable)),
            (FORM, "token=good&token[]=evil", Err(Invalid::Unreadable)),
            (
                FORM,
                "token=good&token%5B0%5D=evil",
                Err(Invalid::Unreadable),
            ),
            (FORM, "token=good&+token=evil", Err(Invalid::Unreadable)),
            (FORM, "token=good&token%00x=evil", Err(Invalid::Unreadable)),
            (FORM, "token=good&a=1;token=evil", Err(Invalid::Unreadable)),
            (FORM, "token=good;token=evil", Err(Invalid::Unreadable)),
            (FORM, "a=1;token=good", Err(Invalid::Unreadable)),
            (FORM, "Token=good", Err(Invalid::Unreadable)),
            (JSON, r#"{"token":"good","a":{"token":"x"}}"#, one()),
            (
                "application/vnd.x+json; charset=\"UTF-8\"",
                r#"{"token":"good"}"#,
                one(),
            ),
            ("text/plain", r#"{"token":"good"}"#, one()),
            (JSON, r#"{"token":1}"#, Err(Invalid::Missing)),
            (JSON, r#"{"a":"b"}"#, Err(Invalid::Missing)),
            (JSON, r#"["token"]"#, Err(Invalid::Missing)),
            (
                JSON,
                r#"{"token":"good","token":"evil"}"#,
                Err(Invalid::Unreadable),
            ),
            (
                JSON,
                r#"{"token":"good","\u0074oken":"evil"}"#,
                Err(Invalid::Unreadable),
            ),
            (
                JSON,
                r#"{"token":"good","TOKEN":"evil"}"#,
                Err(Invalid::Unreadable),
            ),
            (
                JSON,
                r#"{"token":"good","to\u212Aen":"evil"}"#,
                Err(Invalid::Unreadable),
            ),
            (
                JSON,
                r#"{"token":"good","a":1,"a":2}"#,
                Err(Invalid::Unreadable),
            ),
            (JSON, "{\"token\":\"good\"} x", Err(Invalid::Unreadable)),
            (
                "application/json; charset=utf-7",
                r#"{"token":"good"}"#,
                Err(Invalid::Unreadable),
            ),
            (
                "application/json; charset=utf-16",
                r#"{"token":"good"}"#,
                Err(Invalid::Unreadable),
            ),
            (
                "application/json; charset=utf-8; charset=utf-7",
                r#"{"token":"good"}"#,
                Err(Invalid::Unreadable),
            ),
            (
                "application/json, text/plain",
                r#"{"token":"good"}"#,
                Err(Invalid::Unreadable),
            ),
            (
                "multipart/form-data; boundary=x",
                r#"{"token":"good"}"#,
                Err(Invalid::Unreadable),
            ),
            ("", "token=good", Err(Invalid::Unreadable)),
        ] {
            let headers = headers(&[("content-type", media)]);
            let found = in_body(&headers, body.as_bytes(), "token");
            assert_eq!(found, expected, "{media} {body}");
        }
        for (lines, expected) in [
            (&[("content-type", JSON)][..], one()),
            (
                &[("content-type", JSON), ("content-encoding", "identity")],
                one(),
            ),
            (&[], Err(Invalid::Missing)),
            (
                &[("content-type", JSON), ("content-type", JSON)],
                Err(Invalid::Unreadable),
            ),
            (
                &[("content-type", JSON), ("content-type", FORM)],
                Err(Invalid::Unreadable),
            ),
            (
                &[("content-type", JSON), ("content_type", FORM)],
                Err(Invalid::Unreadable),
            ),
            (
                &[("content-type", JSON), ("content-encoding", "gzip")],
                Err(Invalid::Unreadable),
            ),
            (
                &[("content-type", JSON), ("content-encoding", "x")],
                Err(Invalid::Unreadable),
            ),
        ] {
            let found = in_body(&headers(lines), br#"{"token":"good"}"#, "token");
            assert_eq!(found, expected, "{lines:?}");
        }
    }
}
