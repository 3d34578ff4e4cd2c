//! verify-webhook: admits only requests that a webhook provider signed.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::{BoxFuture, Share, Timestamp, code};
use culvert_cel::Value;
use culvert_policy::action_type::ActionType;
use culvert_policy::event_slots;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::template::Template;
use culvert_policy::policy::values::map;
use culvert_policy::problem::Problem;
use culvert_policy::services::{FetchScope, PolicyServices};
use http::{Response, request};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use culvert_webhooks as webhook;
use culvert_webhooks::{Provider, Unverified, sns};

/// Maximum size of a webhook's body, in bytes.
const BODY_BYTES_MAX: usize = 5 << 20;

pub(crate) static TYPE: ActionType = ActionType {
    name: "verify-webhook",
    doc: "Verifies that the provider signed a webhook with the secret, and recently if the provider sends a timestamp; other requests get 403. The edge buffers the body, at most 5 MiB (otherwise 413), and forwards it unchanged. It responds to the endpoint validation requests of twitter, worldline, xero and zoom. The signatures of orbit and vmware are undocumented and unconfirmed. sns has no secret, so messages of any Amazon SNS topic pass.",
    phases: &[Phase::Request],
    ends: Ends::Sometimes,
    secrets: &["secret"],
    takes_secrets: &[("secret", &[Phase::Request])],
    keeps_secrets: true,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        let Some(provider) = webhook::find(&config.provider) else {
            let names: Vec<_> = webhook::all().map(Provider::name).collect();
            let why = format!("`provider` must be one of {}", names.join(", "));
            return Err(site.refuse(code::POLICY_VALUE_INVALID, &why));
        };
        let name = provider.name();
        let secret = match (config.secret, provider.has_certificate()) {
            (None, true) => None,
            (Some(_), true) => {
                let why = format!("{name} signs with its own key and does not use a `secret`");
                return Err(site.refuse(code::POLICY_VALUE_INVALID, &why));
            }
            (None, false) => {
                return Err(site.refuse(code::POLICY_FIELD_MISSING, "`secret` is missing"));
            }
            (Some(text), false) => Some(site.template("secret", &text)?),
        };
        if let Some(constant) = secret.as_ref().and_then(Template::constant) {
            provider.check_secret(constant).map_err(|why| {
                site.refuse(code::POLICY_VALUE_INVALID, &format!("`secret` {why}"))
            })?;
        }
        Ok(Box::new(VerifyWebhook {
            provider,
            secret,
            enforce: config.enforce.unwrap_or(true),
        }))
    },
    guards: true,
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "VerifyWebhook")]
struct Config {
    /// Webhook provider.
    #[schemars(schema_with = "providers")]
    provider: String,
    /// Signing secret as shown by the provider; two comma-separated secrets for `box`; the public
    /// key for `sendgrid`. Supports `${…}`. Encrypted at rest.
    #[serde(default)]
    secret: Option<String>,
    /// Whether other clients are rejected; default true.
    #[serde(default)]
    enforce: Option<bool>,
}

/// The names of all providers.
fn providers(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = webhook::all().map(Provider::name).collect();
    json_schema!({ "type": "string", "enum": names })
}

struct VerifyWebhook {
    provider: Provider,
    /// `None` if the provider signs with a certificate.
    secret: Option<Template>,
    enforce: bool,
}

impl fmt::Debug for VerifyWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyWebhook")
            .field("provider", &self.provider.name())
            .field("enforce", &self.enforce)
            .finish_non_exhaustive()
    }
}

impl VerifyWebhook {
    async fn verify(&self, x: &mut Exchange<'_>) -> Flow {
        // Unreachable: the request phase has a request.
        let Some(request) = x.request else {
            return Flow::Continue;
        };
        let body = match x.read_body(BODY_BYTES_MAX).await {
            Ok(body) => body,
            Err(flow) => {
                // A request that its client aborted is neither allowed nor blocked.
                if !matches!(flow, Flow::Broken) {
                    x.set_field(event_slots::WEBHOOK_DECISION, "block");
                }
                return flow;
            }
        };
        let (verdict, challenge_answer) = match &self.secret {
            None => {
                let services = Arc::clone(x.conn.services);
                let (share, now) = (x.share(), x.conn.info.now());
                let verdict = by_certificate(&services, share, &body, now).await;
                // Any client can cause this, so it must not decide, even without `enforce`.
                if verdict == Err(Unverified::Busy) {
                    x.limit_reached();
                }
                (verdict, None)
            }
            Some(secret) => self.by_secret(x, secret, request, &body),
        };
        // The edge itself responds to a challenge, which counts as verified.
        let is_answered = challenge_answer
            .as_ref()
            .is_some_and(|answer| answer.status().is_success());
        let passes = verdict.is_ok() || is_answered || !self.enforce;
        let decision = if passes { "allow" } else { "block" };
        x.set_field(event_slots::WEBHOOK_DECISION, decision);
        if x.wants_results() {
            let (code, message) = match verdict {
                Err(why) if !is_answered => ("ERR_NGROK_3204", why.to_string()),
                _ => ("", String::new()),
            };
            let error = vec![
                ("code", Value::from(code)),
                ("message", Value::from(message.as_str())),
            ];
            let fields = vec![
                ("verified", Value::Bool(verdict.is_ok() || is_answered)),
                ("error", map(error)),
            ];
            x.result("verify_webhook", fields);
        }
        match challenge_answer {
            // Xero also sends challenges with a wrong signature and expects 401. Without `enforce`, the upstream
            // responds to those.
            Some(answer) if passes == is_answered => Flow::Reply(Box::new(answer)),
            _ if passes => Flow::Continue,
            _ => x.refuse(Problem::Webhook),
        }
    }

    /// Verifies a request with the secret. Returns also the response to a challenge, if the request is one.
    fn by_secret(
        &self,
        x: &mut Exchange<'_>,
        secret: &Template,
        request: &request::Parts,
        body: &Bytes,
    ) -> (Result<(), Unverified>, Option<Response<Bytes>>) {
        let Ok(secret) = secret.strict(x).map(Cow::into_owned) else {
            return (Err(Unverified::Secret), None);
        };
        let url = x.public_url().unwrap_or_default();
        let request = webhook::Request {
            method: &request.method,
            url: &url,
            headers: &request.headers,
            body,
        };
        let verdict = webhook::verify(self.provider, &secret, &request, x.conn.info.now());
        let answer = webhook::answer(self.provider, &secret, &request, verdict);
        (verdict, answer)
    }
}

/// Verifies a message of Amazon SNS, the only provider that signs with a certificate.
async fn by_certificate(
    services: &PolicyServices,
    share: Share,
    body: &Bytes,
    now: Timestamp,
) -> Result<(), Unverified> {
    let message = sns::Message::read(body, now)?;
    let certificate = services.document(share, FetchScope::Public, message.certificate());
    let certificate = certificate.await;
    let certificate = certificate.map_err(|error| {
        tracing::debug!(%error, "there is no signing certificate of a webhook");
        match error.is_limit() {
            true => Unverified::Busy,
            false => Unverified::Certificate,
        }
    })?;
    message.verify(&certificate, now)
}

impl Action for VerifyWebhook {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let verify: BoxFuture<'a, Flow> = Box::pin(self.verify(x));
        ActionResult::Later(verify)
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.secret.iter().flat_map(Template::slots).collect()
    }
}
