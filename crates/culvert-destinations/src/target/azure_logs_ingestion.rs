//! `azure_logs_ingestion`: events into a table of Azure Monitor, by its Logs Ingestion API
//! (contract: destinations 5).

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use culvert_base::{BoxFuture, Entropy, Refusal, Secret, code};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::{Http, HttpRequest, HttpResponse};
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::http_failure::{class_of_status, failed};
use crate::client::oauth_tokens::OauthTokens;
use crate::client::request_body::{form, gzipped};
use crate::config::{checked_url, hide, invalid, keep_secret, parse, stored};

const NAME: &str = "azure_logs_ingestion";
const DEADLINE: Duration = Duration::from_secs(12);
const SCOPE: &str = "https://monitor.azure.com/.default";

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends events to a stream of an Azure data collection rule through the Logs Ingestion API.",
    limits: BatchLimits {
        events_max: 2000,
        bytes_max: 900 << 10,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, mut given| {
        keep_secret(stored, &mut given, "", "client_secret");
        given
    },
    redact: |stored| hide(stored, "/client_secret", "".into()),
    open,
};

/// Configuration of the `azure_logs_ingestion` target. Every field is required.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AzureLogsIngestionTarget")]
struct Config {
    /// Tenant: its ID or one of its domains.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    tenant_id: Option<String>,
    /// ID of the application registered in the tenant.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    client_id: Option<String>,
    /// Client secret of the application. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true, "x-culvert-required" = true))]
    client_secret: Option<String>,
    /// Data collection endpoint: an `https` URL with only a host.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    logs_ingestion_uri: Option<String>,
    /// Immutable ID of the data collection rule: `dcr-` and 32 hexadecimal digits.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    data_collection_rule_id: Option<String>,
    /// Stream name of the rule, such as `Custom-Events`.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    data_collection_stream_name: Option<String>,
}

fn check(given: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, given)?;
    let is_id = |text: &str, more: &[u8]| {
        (1..=255).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
    };
    let rule = config
        .data_collection_rule_id
        .as_deref()
        .unwrap_or_default();
    let is_rule = rule.strip_prefix("dcr-").is_some_and(|id| is_id(id, b"-"));
    if !is_rule {
        return Err(Refusal::of(code::AZURE_RULE_ID_MALFORMED));
    }
    let stream = config
        .data_collection_stream_name
        .as_deref()
        .unwrap_or_default();
    let is_stream = ["Custom-", "Microsoft-"].iter().any(|prefix| {
        stream
            .strip_prefix(prefix)
            .is_some_and(|name| is_id(name, b"-_"))
    });
    if !is_stream {
        return Err(Refusal::of(code::AZURE_STREAM_NAME_MALFORMED));
    }
    ingestion(&config, settings)?;
    for (name, value) in [
        ("tenant_id", &config.tenant_id),
        ("client_id", &config.client_id),
    ] {
        let text = value.as_deref().unwrap_or_default();
        // IDs become part of a path.
        if !is_id(text, b"-_.") || text.starts_with('.') {
            return Err(invalid(
                NAME,
                format_args!("`{name}` must be letters, digits, `-`, `_` and `.`"),
            ));
        }
    }
    let secret = config.client_secret.as_deref().unwrap_or_default();
    if !(1..=512).contains(&secret.len()) || secret.chars().any(char::is_control) {
        return Err(invalid(
            NAME,
            "`client_secret` must be 1 to 512 bytes without control characters",
        ));
    }
    Ok(stored(&config))
}

/// Parses the endpoint, which must have only a scheme and a host.
fn ingestion(config: &Config, settings: &TargetSettings) -> Result<Url, Refusal> {
    let given = config.logs_ingestion_uri.as_deref().unwrap_or_default();
    let wrong = |why: &dyn std::fmt::Display| {
        Refusal::new(
            code::AZURE_URI_MALFORMED,
            format!("`logs_ingestion_uri` must be `https` and a host: {why}."),
        )
    };
    let checked = settings.rules.url(given).map_err(|denied| wrong(&denied))?;
    if checked.url.path() != "/" || checked.url.query().is_some() {
        return Err(wrong(&"it must not have a path or a query"));
    }
    Ok(checked.url)
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let (authority, tokens) = match &context.settings().azure_authority {
        Some(elsewhere) => (elsewhere.clone(), context.net().http_to_named_by_operator()),
        None => {
            let microsoft = "https://login.microsoftonline.com/";
            let checked = checked_url(NAME, "tenant_id", microsoft, &context.settings().rules)?;
            (checked.url, context.net().http())
        }
    };
    let tenant = config.tenant_id.as_deref().unwrap_or_default();
    let unfit = |_| invalid(NAME, "its fields do not form a valid URL");
    let token_url = authority
        .join(&format!("{tenant}/oauth2/v2.0/token"))
        .map_err(unfit)?;
    let mut url = ingestion(&config, context.settings())?
        .join(&format!(
            "dataCollectionRules/{}/streams/{}",
            config
                .data_collection_rule_id
                .as_deref()
                .unwrap_or_default(),
            config
                .data_collection_stream_name
                .as_deref()
                .unwrap_or_default(),
        ))
        .map_err(unfit)?;
    url.set_query(Some("api-version=2023-01-01"));
    Ok(Arc::new(Azure {
        url,
        http: context.net().http(),
        tokens: OauthTokens::new(token_url, tokens, context.net().clone(), DEADLINE),
        client_id: config.client_id.unwrap_or_default(),
        client_secret: Secret::new(config.client_secret.unwrap_or_default()),
    }))
}

struct Azure {
    url: Url,
    http: Http,
    tokens: OauthTokens,
    client_id: String,
    client_secret: Secret,
}

impl std::fmt::Debug for Azure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Azure").finish_non_exhaustive()
    }
}

impl Target for Azure {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match self.post(batch).await {
                Ok(()) => Verdict::Delivered,
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Azure {
    async fn post(&self, batch: &Batch) -> Result<(), Failure> {
        let first = batch.deliveries().next();
        let id = first.map(|first| first.idempotency_key());
        let id = format!("{}+{}", id.unwrap_or_default(), batch.len());
        let body = bytes::Bytes::from(gzipped(&batch.json_array()));
        let token = self.token(None).await?;
        match self.attempt(&token, &id, body.clone()).await {
            Err(failure) if failure.code == "401" => {
                let fresh = self.token(Some(&token)).await?;
                self.attempt(&fresh, &id, body).await
            }
            other => other,
        }
    }

    async fn attempt(&self, token: &Secret, id: &str, body: bytes::Bytes) -> Result<(), Failure> {
        let mut headers = HeaderMap::new();
        let unfit = |_| {
            Failure::new(
                FailureClass::Auth,
                "token",
                "the token contains invalid characters",
            )
        };
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {}", token.reveal())).map_err(unfit)?;
        bearer.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, bearer);
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert("x-ms-client-request-id", id);
        }
        let order = HttpRequest::post(self.url.clone(), headers, body, DEADLINE);
        let answer = self.http.send(order.succeeds_by_head()).await?;
        self.judge(&answer, token)
    }

    fn judge(&self, answer: &HttpResponse, token: &Secret) -> Result<(), Failure> {
        let Err(by_status) = class_of_status(answer.status) else {
            return Ok(());
        };
        let code = error_code(&answer.text);
        let class = match (answer.status, &*code) {
            (404, _) | (400, "InvalidStream") => FailureClass::Config,
            _ => by_status,
        };
        Err(failed(
            answer,
            class,
            &[token.reveal(), self.client_secret.reveal()],
        ))
    }

    async fn token(&self, refused: Option<&Secret>) -> Result<Secret, Failure> {
        let asked = |_| {
            let body = form(&[
                ("grant_type", "client_credentials"),
                ("client_id", &self.client_id),
                ("client_secret", self.client_secret.reveal()),
                ("scope", SCOPE),
            ]);
            Ok((body, self.client_secret.clone()))
        };
        self.tokens.token(refused, asked).await
    }
}

/// The code in `{"error": {"code": …}}`; empty if there is none.
fn error_code(text: &str) -> String {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let code = body.pointer("/error/code").and_then(Value::as_str);
    code.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
