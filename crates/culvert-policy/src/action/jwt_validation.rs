//! jwt-validation: admits only requests with signed tokens of an issuer.

use std::sync::Arc;

use culvert_base::{BoxFuture, Refusal, Timestamp, code};
use culvert_cel::Value;
use http::HeaderName;
use http::header::{HeaderValue, WWW_AUTHENTICATE};
use jsonwebtoken::{Algorithm, Validation, decode_header};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value as Json;
use url::Url;

use crate::action_type::ActionType;
use crate::jws::{self, ALGORITHMS, KeySet, TOKEN_BYTES_MAX, Unbelieved};
use crate::policy::context::PolicyContext;
use crate::policy::exchange::Exchange;
use crate::policy::phase::{Ends, Phase};
use crate::policy::run::{Action, ActionResult, Flow};
use crate::policy::values::{map, of_json};
use crate::problem::Problem;
use crate::services::PolicyServices;

/// Maximum number of entries of each list in the configuration.
const ENTRIES_MAX: usize = 10;
/// Maximum length of a value in it, in bytes.
const VALUE_BYTES_MAX: usize = 1024;
/// Maximum size of a body that is searched for a token, in bytes.
const BODY_BYTES_MAX: usize = 1 << 20;

pub(crate) static TYPE: ActionType = ActionType {
    name: "jwt-validation",
    doc: "Requires that a request has all listed tokens. Each token must be signed with a key of the key sets, have an allowed issuer and audience, and be valid now (with one minute of clock skew). A missing token gets 401, an invalid token 403, and 502 is returned if the keys cannot be fetched. Key sets are cached for 15 minutes.",
    phases: &[Phase::Request],
    ends: Ends::Sometimes,
    keeps_secrets: true,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |context| Ok(Box::new(JwtValidation::compile(context)?)),
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
    /// From `ES256 ES384 EdDSA PS256 PS384 PS512 RS256 RS384 RS512`.
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
    validation: Validation,
    sources: Vec<KeySet>,
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
            named.iter().map(|name| jws::algorithm(name)).collect();
        let algorithms = algorithms.ok_or_else(|| {
            let why = format!(
                "`jws.allowed_algorithms` may contain only {}",
                ALGORITHMS.join(", ")
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
            sources.push(KeySet::at(url.ok_or_else(why)?));
        }
        Ok(Self {
            tokens,
            algorithms,
            validation: jws::validation(&issuers, &audiences),
            sources,
        })
    }

    async fn validate(&self, x: &mut Exchange<'_>) -> Flow {
        let mut results = Vec::new();
        let mut invalid = None;
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
            if let Err(why) = checked {
                invalid = Some(why);
                break;
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
        let header = decode_header(text).map_err(|_| Invalid::Unreadable)?;
        if !self.algorithms.contains(&header.alg) {
            return Err(Invalid::Algorithm);
        }
        // No critical extension (RFC 7515 section 4.1.11) is supported.
        if header.crit.is_some() || !token.kind.fits(header.typ.as_deref()) {
            return Err(Invalid::Kind);
        }
        let payload = jws::claims(
            services,
            &self.sources,
            &header,
            text,
            &self.validation,
            now,
        )
        .await?;
        let mut parts = text.rsplitn(2, '.');
        Ok(Checked {
            header: serde_json::to_value(&header).unwrap_or(Json::Null),
            payload,
            signature: parts.next().unwrap_or_default().to_owned(),
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
    fn fits(self, typ: Option<&str>) -> bool {
        let wanted = match self {
            Self::AtJwt => "at+jwt",
            Self::ItJwt => "it+jwt",
            Self::Jwt | Self::AccessToken | Self::IdToken | Self::Plain => return true,
        };
        let typ = typ.unwrap_or_default().to_ascii_lowercase();
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
            TokenLocation::Header(name) => {
                let mut values = request.headers.get_all(name).iter();
                match (values.next(), values.next()) {
                    (None, _) => return Ok(Err(Invalid::Missing)),
                    (Some(value), None) => value.to_str().ok().map(str::to_owned),
                    (Some(_), Some(_)) => None,
                }
            }
            TokenLocation::Body => {
                let body = x.read_body(BODY_BYTES_MAX).await?;
                match in_body(&request.headers, &body, &self.name) {
                    None => return Ok(Err(Invalid::Missing)),
                    some => some,
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

/// Reads a field of a form, or a text in a JSON object.
fn in_body(headers: &http::HeaderMap, body: &[u8], name: &str) -> Option<String> {
    let media = headers.get(http::header::CONTENT_TYPE)?.to_str().ok()?;
    let media = media.split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let mut fields = url::form_urlencoded::parse(body);
        return fields.find_map(|(field, value)| (field == name).then(|| value.into_owned()));
    }
    let object: Json = serde_json::from_slice(body).ok()?;
    object.get(name)?.as_str().map(str::to_owned)
}

impl Action for JwtValidation {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let validate: BoxFuture<'a, Flow> = Box::pin(self.validate(x));
        ActionResult::Later(validate)
    }
}
