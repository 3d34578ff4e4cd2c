//! What targets at HTTP interfaces share that take a batch in one request: the base URL, credentials, compression, and
//! failures with the code of the vendor.
//!
//! Such a target is its settings, its encoder and its table of error codes. Not here: connections and the address guard
//! (`net`), classes of plain HTTP statuses (`http_failure`).

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::Value;
use url::{Url, form_urlencoded};

use culvert_base::{Refusal, Secret};
use culvert_target::TargetContext;
use culvert_target::failure::{Failure, FailureClass, scrub, vendor_code};
use culvert_target::guard::Rules;
use culvert_target::net::{Http, HttpRequest, HttpResponse};

use crate::client::http_failure::{class_of_status, failed};
use crate::client::request_body::gzipped;
use crate::config::{checked_url, hide, invalid, keep_secret};

const DEADLINE: Duration = Duration::from_secs(25);
/// Maximum bytes of a user name, a password or a token.
const SECRET_BYTES_MAX: usize = 2048;

/// Error codes of a vendor and their class.
pub(super) type Classes<C> = &'static [(FailureClass, &'static [C])];

/// The class of an error code; `None` for unknown codes.
pub(super) fn class_of<C, Q>(classes: Classes<C>, code: &Q) -> Option<FailureClass>
where
    C: PartialEq<Q>,
{
    let has = |codes: &[C]| codes.iter().any(|known| known == code);
    let found = classes.iter().find(|(_, codes)| has(codes));
    found.map(|(class, _)| *class)
}

/// What the body or the headers of a response say about a failure.
#[derive(Debug, Default)]
pub(super) struct VendorError {
    /// The code of the vendor; empty for the HTTP status.
    pub(super) code: String,
    /// The sentence of the vendor; empty for the whole body.
    pub(super) text: String,
    /// Its class; `None` for that of the HTTP status.
    pub(super) class: Option<FailureClass>,
}

/// How requests authenticate.
#[derive(Clone, Copy)]
pub(super) enum Credentials<'a> {
    None,
    /// HTTP Basic: user and password.
    Basic(&'a str, &'a str),
    /// `Authorization` with this scheme and token.
    Token(&'static str, &'a str),
}

/// One interface of a receiver.
pub(super) struct HttpIntake {
    pub(super) url: Url,
    headers: HeaderMap,
    /// Values that error texts must not have.
    secrets: Vec<Secret>,
    http: Http,
}

impl fmt::Debug for HttpIntake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpIntake").finish_non_exhaustive()
    }
}

impl HttpIntake {
    /// The interface at `path` below the base URL.
    pub(super) fn open(
        target: &str,
        base: &str,
        path: &str,
        content_type: &'static str,
        context: &TargetContext,
    ) -> Result<Self, Refusal> {
        let mut url = checked_base(target, base, &context.settings().rules)?;
        url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
        let mut intake = Self::of_json(url, context);
        let content_type = HeaderValue::from_static(content_type);
        intake.headers.insert(header::CONTENT_TYPE, content_type);
        let gzip = HeaderValue::from_static("gzip");
        intake.headers.insert(header::CONTENT_ENCODING, gzip);
        Ok(intake)
    }

    /// The interface at a checked URL, for requests of JSON that are not compressed.
    pub(super) fn of_json(url: Url, context: &TargetContext) -> Self {
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        Self {
            url,
            headers,
            secrets: Vec::new(),
            http: context.net().http(),
        }
    }

    /// Hides a text that the body has.
    pub(super) fn hiding(mut self, secret: &str) -> Self {
        self.secrets.push(Secret::new(secret.to_owned()));
        self
    }

    /// Hides the parts of a URL that is itself a secret, as they are written and as they are read.
    pub(super) fn with_secret_url(mut self) -> Self {
        /// Shorter parts are no secrets, such as `api` or `true`.
        const TOKEN_MIN: usize = 5;
        /// Parts of the paths of known receivers.
        const WORDS: [&str; 6] = [
            "hooks",
            "incoming",
            "services",
            "webhook",
            "webhooks",
            "workflows",
        ];
        let (path, query) = (self.url.path(), self.url.query().unwrap_or_default());
        let values = query
            .split('&')
            .map(|pair| pair.split_once('=').map_or(pair, |(_, value)| value));
        let tokens = path.split('/').filter(|part| !WORDS.contains(part));
        let tokens: Vec<&str> = tokens.chain(values).collect();
        let target = format!("{path}?{query}");
        let whole = [self.url.as_str(), &target, path, query];
        let written = whole.iter().chain(&tokens).map(|part| (*part).to_owned());
        let read = tokens.iter().flat_map(|part| {
            let decoded = form_urlencoded::parse(part.as_bytes());
            decoded.map(|(part, _)| part.into_owned())
        });
        let mut secrets: Vec<String> = written.chain(read).collect();
        secrets.retain(|part| part.len() >= TOKEN_MIN);
        // The longest first, so that no part of one is left.
        secrets.sort_by_key(|part| std::cmp::Reverse(part.len()));
        secrets.dedup();
        self.secrets = secrets.into_iter().map(Secret::new).collect();
        self
    }

    /// Adds a header.
    pub(super) fn with(
        mut self,
        target: &str,
        name: &'static str,
        value: &str,
    ) -> Result<Self, Refusal> {
        let value = HeaderValue::from_str(value)
            .map_err(|_| invalid(target, format_args!("the value of {name} is not allowed")))?;
        self.headers.insert(HeaderName::from_static(name), value);
        Ok(self)
    }

    /// Adds a header whose value, or the given part of it, is a secret.
    pub(super) fn with_secret(
        self,
        target: &str,
        name: &'static str,
        value: &str,
        secret: &str,
    ) -> Result<Self, Refusal> {
        let mut with = self.with(target, name, value)?;
        if let Some(value) = with.headers.get_mut(name) {
            value.set_sensitive(true);
        }
        with.secrets.push(Secret::new(secret.to_owned()));
        Ok(with)
    }

    /// Adds the credentials.
    pub(super) fn authenticated(
        self,
        target: &str,
        credentials: Credentials<'_>,
    ) -> Result<Self, Refusal> {
        match credentials {
            Credentials::None => Ok(self),
            Credentials::Basic(user, password) => {
                let encoded = STANDARD.encode(format!("{user}:{password}"));
                let value = format!("Basic {encoded}");
                let mut with = self.with_secret(target, "authorization", &value, &encoded)?;
                with.secrets.push(Secret::new(password.to_owned()));
                Ok(with)
            }
            Credentials::Token(scheme, token) => {
                let value = format!("{scheme} {token}");
                self.with_secret(target, "authorization", &value, token)
            }
        }
    }

    /// A request with this body, compressed. The whole response decides success: a page of a proxy has a good status too.
    pub(super) fn batch_request(&self, body: &[u8]) -> HttpRequest {
        let body = gzipped(body).into();
        HttpRequest::post(self.url.clone(), self.headers.clone(), body, DEADLINE)
    }

    /// A request with this JSON, for an interface of [`Self::of_json`].
    pub(super) fn json_request(&self, url: Url, body: &Value, deadline: Duration) -> HttpRequest {
        let body = body.to_string().into_bytes().into();
        HttpRequest::post(url, self.headers.clone(), body, deadline)
    }

    pub(super) async fn send(&self, request: HttpRequest) -> Result<HttpResponse, Failure> {
        self.http.send(request).await
    }

    /// The failure of a response.
    pub(super) fn failure(&self, response: &HttpResponse, error: VendorError) -> Failure {
        let by_status = class_of_status(response.status).err();
        let class = error.class.or(by_status);
        let secrets: Vec<&str> = self.secrets.iter().map(Secret::reveal).collect();
        let mut failure = failed(response, class.unwrap_or(FailureClass::Retryable), &secrets);
        if let Some(code) = vendor_code(&error.code, &secrets) {
            failure.code = code;
        }
        let text = self.scrubbed(&error.text);
        if !text.is_empty() {
            failure.text = text;
        }
        failure
    }

    /// The failure of one event that has its own status.
    pub(super) fn failure_of_event(
        &self,
        status: u16,
        class: FailureClass,
        code: &str,
        text: &str,
    ) -> Failure {
        let secrets: Vec<&str> = self.secrets.iter().map(Secret::reveal).collect();
        let code = vendor_code(code, &secrets).unwrap_or_else(|| status.to_string());
        Failure {
            status: Some(status),
            ..Failure::new(class, code, self.scrubbed(text))
        }
    }

    /// The failure of a response whose status is one of success but which is not one of the receiver, such as the page of
    /// a proxy.
    pub(super) fn foreign(response: &HttpResponse) -> Failure {
        let text = "the response is not one of this kind of server; check `url`";
        Failure {
            status: Some(response.status),
            ..Failure::new(FailureClass::Config, "answer", text)
        }
    }

    /// Text of the receiver, for display.
    fn scrubbed(&self, text: &str) -> String {
        let secrets: Vec<&str> = self.secrets.iter().map(Secret::reveal).collect();
        scrub(text, &secrets)
    }
}

/// Checks a URL that is itself a secret, in `webhook_url`, which is required.
pub(super) fn checked_webhook(
    target: &str,
    url: &Option<String>,
    rules: &Rules,
) -> Result<Url, Refusal> {
    let Some(url) = given(url) else {
        return Err(invalid(target, "`webhook_url` is required"));
    };
    Ok(checked_url(target, "webhook_url", url, rules)?.url)
}

/// Checks a base URL in `url`: it has no query.
pub(super) fn checked_base(target: &str, url: &str, rules: &Rules) -> Result<Url, Refusal> {
    let url = checked_url(target, "url", url, rules)?.url;
    match url.query() {
        None => Ok(url),
        Some(_) => Err(invalid(target, "`url` must not have a query")),
    }
}

/// Checks a text: not empty if present, at most `bytes_max` bytes, without control characters.
pub(super) fn check_text(
    target: &str,
    field: &str,
    text: Option<&str>,
    bytes_max: usize,
) -> Result<(), Refusal> {
    let fits =
        |text: &str| (1..=bytes_max).contains(&text.len()) && !text.chars().any(char::is_control);
    match text.is_none_or(fits) {
        true => Ok(()),
        false => Err(invalid(
            target,
            format_args!("`{field}` must be 1 to {bytes_max} bytes without control characters"),
        )),
    }
}

/// Checks a name: as [`check_text`], of ASCII letters, digits and these.
pub(super) fn check_name(
    target: &str,
    field: &str,
    name: Option<&str>,
    bytes_max: usize,
    more: &str,
) -> Result<(), Refusal> {
    check_text(target, field, name, bytes_max)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
    match name.is_none_or(|name| name.chars().all(fits)) {
        true => Ok(()),
        false => Err(invalid(
            target,
            format_args!("`{field}` must have only ASCII letters, digits and `{more}`"),
        )),
    }
}

/// Checks a secret that is sent in a header: visible ASCII characters.
pub(super) fn check_secret(target: &str, field: &str, secret: Option<&str>) -> Result<(), Refusal> {
    let fits = |text: &str| {
        (1..=SECRET_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match secret.is_none_or(fits) {
        true => Ok(()),
        false => Err(invalid(
            target,
            format_args!("`{field}` must be 1 to {SECRET_BYTES_MAX} visible ASCII characters"),
        )),
    }
}

/// A field that is set and not empty.
pub(super) fn given(field: &Option<String>) -> Option<&str> {
    field.as_deref().filter(|text| !text.is_empty())
}

/// A choice between a user with a password and a token, in fields of the configuration.
pub(super) struct UserOrToken<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) password: Option<&'a str>,
    pub(super) token: Option<&'a str>,
    /// Name of the token's field.
    pub(super) field: &'static str,
    /// Scheme of `Authorization` with the token.
    pub(super) scheme: &'static str,
}

impl<'a> UserOrToken<'a> {
    /// Checks the choice.
    pub(super) fn credentials(&self, target: &str) -> Result<Credentials<'a>, Refusal> {
        let Self { field, scheme, .. } = *self;
        check_text(target, "user", self.user, SECRET_BYTES_MAX)?;
        check_text(target, "password", self.password, SECRET_BYTES_MAX)?;
        check_secret(target, field, self.token)?;
        match (self.user, self.password, self.token) {
            (None, None, None) => Ok(Credentials::None),
            (None, None, Some(token)) => Ok(Credentials::Token(scheme, token)),
            (Some(user), _, None) if user.contains(':') => {
                Err(invalid(target, "`user` must not have a colon"))
            }
            (Some(user), password, None) => {
                Ok(Credentials::Basic(user, password.unwrap_or_default()))
            }
            (Some(_), _, Some(_)) => Err(invalid(
                target,
                format_args!("`user` and `{field}` exclude each other"),
            )),
            (None, Some(_), _) => Err(invalid(target, "`password` requires `user`")),
        }
    }

    /// Copies the stored secret of the choice that a new configuration makes.
    pub(super) fn merge(stored: &Value, mut new: Value, field: &str) -> Value {
        let user = new.get("user").and_then(Value::as_str);
        let kept = match user.is_some_and(|user| !user.is_empty()) {
            true => "password",
            false => field,
        };
        keep_secret(stored, &mut new, "", kept);
        new
    }

    /// The stored form without secrets.
    pub(super) fn redact(stored: &Value, field: &str) -> Value {
        let shown = hide(stored, "/password", Value::Null);
        hide(&shown, &format!("/{field}"), Value::Null)
    }
}
