//! `pubsub`: events as messages of a Google Cloud Pub/Sub topic.
//!
//! Facts of the interface: Pub/Sub's REST reference, `projects.topics.publish`, and its quotas; for the access token,
//! "Using OAuth 2.0 for Server to Server Applications" of Google Identity (RFC 7523).

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use culvert_base::{BoxFuture, Entropy, Refusal, Secret, Timestamp};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::{Http, HttpRequest, HttpResponse};
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::http_failure::{class_of_status, failed};
use crate::client::oauth_tokens::OauthTokens;
use crate::client::request_body::form;
use crate::config::{checked_url, hide, invalid, keep_secret, parse, stored};
use crate::target::envelope::event_type;
use crate::target::http_intake::{HttpIntake, checked_base, given};

const NAME: &str = "pubsub";
const DEADLINE: Duration = Duration::from_secs(7);
const GOOGLE: &str = "https://pubsub.googleapis.com";
const SCOPE: &str = "https://www.googleapis.com/auth/pubsub";
/// How long an assertion is valid; the endpoint accepts at most an hour.
const ASSERTED_FOR: Duration = Duration::from_secs(600);
/// A key file has 2.4 KiB.
const KEY_BYTES_MAX: usize = 16 << 10;

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Publishes each event to a Google Cloud Pub/Sub topic as a message.",
    // A request takes 1,000 messages and 10 MB, and base64 adds a third.
    limits: BatchLimits {
        events_max: 1000,
        bytes_max: 6 << 20,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, mut given| {
        keep_secret(stored, &mut given, "", "service_account_key");
        given
    },
    redact: |stored| hide(stored, "/service_account_key", Value::Null),
    open,
};

/// Configuration of the `pubsub` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PubsubTarget")]
struct Config {
    /// Topic: `projects/<project>/topics/<topic>`.
    topic: String,
    /// Key of a service account that may publish, as in its JSON file. Required for `https://pubsub.googleapis.com`.
    /// Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    service_account_key: Option<String>,
    /// URL of a regional endpoint, such as `https://europe-west1-pubsub.googleapis.com`, or of an emulator. The default is
    /// `https://pubsub.googleapis.com`.
    #[serde(default)]
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    url: Option<String>,
    /// Whether messages have the account as ordering key, which keeps their order in a subscription that asks for it.
    #[serde(default)]
    ordered: Option<bool>,
}

/// The fields of a key file that are used.
#[derive(Deserialize)]
struct KeyFile {
    #[serde(rename = "type")]
    kind: String,
    client_email: String,
    #[serde(default)]
    private_key_id: String,
    private_key: Secret,
    token_uri: String,
}

/// A service account that signs its requests for tokens.
struct ServiceAccount {
    email: String,
    key_id: String,
    key: RsaKeyPair,
    token_url: Url,
}

impl ServiceAccount {
    fn read(text: &str, settings: &TargetSettings) -> Result<Self, Refusal> {
        let unfit = |why: &str| {
            invalid(
                NAME,
                format_args!(
                    "`service_account_key` must be the JSON key file of a service account: {why}"
                ),
            )
        };
        if text.len() > KEY_BYTES_MAX {
            return Err(unfit("it is too long"));
        }
        let file: KeyFile = serde_json::from_str(text).map_err(|_| unfit("a field is missing"))?;
        if file.kind != "service_account" {
            return Err(unfit("its `type` is another one"));
        }
        let key = PrivatePkcs8KeyDer::from_pem_slice(file.private_key.reveal().as_bytes());
        let key = key.map_err(|_| unfit("`private_key` is not a key in PEM"))?;
        let key = RsaKeyPair::from_pkcs8(key.secret_pkcs8_der());
        let checked = checked_url(
            NAME,
            "service_account_key.token_uri",
            &file.token_uri,
            &settings.rules,
        );
        Ok(Self {
            email: file.client_email,
            key_id: file.private_key_id,
            key: key.map_err(|_| unfit("`private_key` is not an RSA key"))?,
            token_url: checked?.url,
        })
    }

    /// The signed request for a token.
    fn assertion(&self, now: Timestamp) -> Result<String, Failure> {
        let encoded = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let header = json!({"alg": "RS256", "typ": "JWT", "kid": self.key_id});
        let claims = json!({
            "iss": self.email,
            "scope": SCOPE,
            "aud": self.token_url.as_str(),
            "iat": now.unix_seconds(),
            "exp": now.plus(ASSERTED_FOR).unix_seconds(),
        });
        let signed = format!("{}.{}", encoded(&header), encoded(&claims));
        let mut signature = vec![0; self.key.public_modulus_len()];
        let signing = self.key.sign(
            &RSA_PKCS1_SHA256,
            &SystemRandom::new(),
            signed.as_bytes(),
            &mut signature,
        );
        let unsigned = |_| Failure::new(FailureClass::Auth, "key", "the key does not sign");
        signing.map_err(unsigned)?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn check(value: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, value)?;
    interface(&config, settings)?;
    match given(&config.service_account_key) {
        Some(text) => ServiceAccount::read(text, settings).map(drop)?,
        None if given(&config.url).is_none() => {
            return Err(invalid(
                NAME,
                "`service_account_key` is required, unless `url` names an emulator",
            ));
        }
        None => {}
    }
    Ok(stored(&config))
}

/// The URL to publish at.
fn interface(config: &Config, settings: &TargetSettings) -> Result<Url, Refusal> {
    let malformed = || {
        invalid(
            NAME,
            "`topic` must be `projects/<project>/topics/<topic>`, of letters, digits, `-`, `_`, `.`, `~`, `+`, `%` and `:`",
        )
    };
    // Names of resources in the reference of Pub/Sub; both become part of a path.
    let is_name = |name: &str| {
        let is_part = |c: u8| c.is_ascii_alphanumeric() || b"-_.~+%:".contains(&c);
        (1..=255).contains(&name.len())
            && name.bytes().all(is_part)
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
    };
    let parts: Vec<&str> = config.topic.split('/').collect();
    let ["projects", project, "topics", topic] = parts[..] else {
        return Err(malformed());
    };
    if !is_name(project) || !is_name(topic) {
        return Err(malformed());
    }
    let base = given(&config.url).unwrap_or(GOOGLE);
    let mut url = checked_base(NAME, base, &settings.rules)?;
    if url.path() != "/" {
        return Err(invalid(NAME, "`url` must not have a path"));
    }
    // A percent sign in a name is not an escape.
    let topic = config.topic.replace('%', "%25");
    url.set_path(&format!("/v1/{topic}:publish"));
    Ok(url)
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let settings = context.settings();
    let account = given(&config.service_account_key);
    let account = account.map(|text| ServiceAccount::read(text, settings));
    let account = account.transpose()?.map(|account| {
        let (http, net) = (context.net().http(), context.net().clone());
        let tokens = OauthTokens::new(account.token_url.clone(), http, net, DEADLINE);
        (account, tokens)
    });
    Ok(Arc::new(Pubsub {
        url: interface(&config, settings)?,
        http: context.net().http(),
        account,
        ordering_key: config
            .ordered
            .unwrap_or_default()
            .then(|| ids.account.to_owned()),
    }))
}

struct Pubsub {
    url: Url,
    http: Http,
    /// `None` for an emulator.
    account: Option<(ServiceAccount, OauthTokens)>,
    ordering_key: Option<String>,
}

impl std::fmt::Debug for Pubsub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pubsub").finish_non_exhaustive()
    }
}

#[derive(Serialize)]
struct Publish<'a> {
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    data: String,
    attributes: Attributes<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<&'a str>,
}

#[derive(Serialize)]
struct Attributes<'a> {
    event_type: &'a str,
    idempotency_key: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Published {
    #[serde(default)]
    message_ids: Vec<String>,
}

impl Target for Pubsub {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match self.publish(batch).await {
                Ok(()) => Verdict::Delivered,
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Pubsub {
    async fn publish(&self, batch: &Batch) -> Result<(), Failure> {
        let messages = batch.deliveries().map(|delivery| self.message(&delivery));
        let request = Publish {
            messages: messages.collect(),
        };
        let body = serde_json::to_vec(&request).expect("a request is plain JSON");
        let body = bytes::Bytes::from(body);
        let Some((account, tokens)) = &self.account else {
            return self.attempt(None, body, batch.len()).await;
        };
        let ask = async |refused: Option<&Secret>| {
            let asked = |now| {
                let assertion = account.assertion(now)?;
                let body = form(&[
                    ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
                    ("assertion", &assertion),
                ]);
                Ok((body, Secret::new(assertion)))
            };
            tokens.token(refused, asked).await
        };
        let token = ask(None).await?;
        match self.attempt(Some(&token), body.clone(), batch.len()).await {
            Err(failure) if failure.status == Some(401) => {
                let fresh = ask(Some(&token)).await?;
                self.attempt(Some(&fresh), body, batch.len()).await
            }
            other => other,
        }
    }

    fn message<'a>(&'a self, delivery: &Delivery<'a>) -> Message<'a> {
        Message {
            data: STANDARD.encode(delivery.payload()),
            attributes: Attributes {
                event_type: event_type(delivery.envelope).unwrap_or("event"),
                idempotency_key: delivery.idempotency_key(),
            },
            ordering_key: self.ordering_key.as_deref(),
        }
    }

    async fn attempt(
        &self,
        token: Option<&Secret>,
        body: bytes::Bytes,
        n_messages: usize,
    ) -> Result<(), Failure> {
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        if let Some(token) = token {
            let unfit = |_| {
                let text = "the token contains invalid characters";
                Failure::new(FailureClass::Auth, "token", text)
            };
            let bearer = HeaderValue::from_str(&format!("Bearer {}", token.reveal()));
            let mut bearer = bearer.map_err(unfit)?;
            bearer.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, bearer);
        }
        let order = HttpRequest::post(self.url.clone(), headers, body, DEADLINE);
        let response = self.http.send(order).await?;
        judge(&response, token, n_messages)
    }
}

/// Each message has an ID in the response; without all of them, some may not be published.
fn judge(
    response: &HttpResponse,
    token: Option<&Secret>,
    n_messages: usize,
) -> Result<(), Failure> {
    let Err(by_status) = class_of_status(response.status) else {
        let published = serde_json::from_slice::<Published>(&response.body);
        return match published.is_ok_and(|published| published.message_ids.len() == n_messages) {
            true => Ok(()),
            false => Err(HttpIntake::foreign(response)),
        };
    };
    let said: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let class = match said.pointer("/error/status").and_then(Value::as_str) {
        Some("NOT_FOUND" | "FAILED_PRECONDITION") => FailureClass::Config,
        Some("UNAUTHENTICATED" | "PERMISSION_DENIED") => FailureClass::Auth,
        _ => by_status,
    };
    let secrets: Vec<&str> = token.into_iter().map(Secret::reveal).collect();
    Err(failed(response, class, &secrets))
}

#[cfg(test)]
mod tests;
