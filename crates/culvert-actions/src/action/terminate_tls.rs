//! terminate-tls: configures the TLS handshake.

use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;
use culvert_base::{Refusal, code};
use culvert_policy::Scheme;
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::template::Template;
use culvert_tls::tls_policy::{
    self, Authorities, Strategy, TlsPolicy, TlsSettings, Trusted, certificates, certified,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The prefix of IDs of certificate authorities.
const ID_PREFIX: &str = "ca";
/// Maximum number of entries in the list of authorities.
const AUTHORITIES_MAX: usize = 20;
/// Maximum number of cached TLS policies: one for each result of the expressions and each TLS policy of previous
/// actions.
const KEPT_MAX: usize = 8;

pub(crate) static TYPE: ActionType = ActionType {
    name: "terminate-tls",
    doc: "Configures the TLS handshake: the versions, the server certificate and client certificates (mutual TLS). An https endpoint always terminates TLS; a tls endpoint terminates TLS with this action, forwards plain bytes, and passes TLS through without it. The handshake runs after the phase. If several of these actions run, they are merged: the last action that sets a field wins, so a later action that does not mention client certificates keeps the requirement. To lift it, set another `mutual_tls_verification_strategy` in a later action. A handshake that does not meet the configuration fails. If an expression of its rule fails, the connection is closed regardless of `policy.on_expression_error`, so a client never connects without the certificate that a rule requires.",
    phases: &[Phase::Connect],
    schemes: &[Scheme::Https, Scheme::Tls],
    secrets: &["server_private_key"],
    takes_secrets: &[("server_private_key", &[Phase::Connect])],
    keeps_secrets: true,
    references: &[("mutual_tls_certificate_authorities", ID_PREFIX)],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |context| compile(context).map(|action| Box::new(action) as _),
    guards: true,
    ..ActionType::PLAIN
};

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "TerminateTls")]
struct Config {
    /// Minimum TLS version: `1.2` (default) or `1.3`.
    min_version: Option<Version>,
    /// Maximum TLS version: `1.2` or `1.3` (default).
    max_version: Option<Version>,
    /// PEM certificate chain to present, leaf first; default: the certificate of the host. Supports
    /// `${…}`.
    server_certificate: Option<String>,
    /// PEM private key of the certificate. Supports `${…}`. Encrypted at rest.
    server_private_key: Option<String>,
    /// CAs to verify client certificates: PEM or IDs of certificate authorities. Supports `${…}`.
    mutual_tls_certificate_authorities: Option<Vec<String>>,
    /// `require-and-verify` (default) rejects clients without a certificate of these CAs.
    /// `require-any` accepts any certificate. `request` requests a certificate but does not check
    /// it.
    mutual_tls_verification_strategy: Option<String>,
}

/// A version as text, or as YAML's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
struct Version(tls_policy::Version);

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        };
        match text.as_str() {
            "1.2" => Ok(Self(tls_policy::Version::Tls12)),
            "1.3" => Ok(Self(tls_policy::Version::Tls13)),
            _ => Err(D::Error::custom("it must be `1.2` or `1.3`")),
        }
    }
}

impl JsonSchema for Version {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TlsVersion".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ["1.2", "1.3"] })
    }

    fn inline_schema() -> bool {
        true
    }
}

fn compile(context: &PolicyContext<'_>) -> Result<TerminateTls, Refusal> {
    let config: Config = context.config()?;
    let (min, max) = (config.min_version, config.max_version);
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        let why = "`min_version` must not be newer than `max_version`";
        return Err(context.refuse(code::POLICY_NUMBER_OUT_OF_RANGE, why));
    }
    let key = match (&config.server_certificate, &config.server_private_key) {
        (None, None) => None,
        (Some(chain), Some(key)) => Some((
            context.template("server_certificate", chain)?,
            context.template("server_private_key", key)?,
        )),
        _ => {
            let why = "`server_certificate` and `server_private_key` must be set together";
            return Err(context.refuse(code::POLICY_FIELD_MISSING, why));
        }
    };
    if let Some((chain, key)) = &key
        && let (Some(chain), Some(key)) = (chain.constant(), key.constant())
        && key != culvert_policy::policy::secret::REDACTED
        && certified(chain, key).is_none()
    {
        let why = "`server_certificate` must be a PEM chain and `server_private_key` the PEM key of its first certificate";
        return Err(context.refuse(code::POLICY_VALUE_INVALID, why));
    }
    let strategy = match config.mutual_tls_verification_strategy.as_deref() {
        None => None,
        Some("require-and-verify") => Some(Strategy::Verify),
        Some("require-any") => Some(Strategy::Any),
        Some("request") => Some(Strategy::Request),
        Some(_) => {
            let why = "`mutual_tls_verification_strategy` must be require-and-verify, require-any or request";
            return Err(context.refuse(code::POLICY_VALUE_NOT_ALLOWED, why));
        }
    };
    let (mut inline, mut named) = (Vec::new(), Vec::new());
    if let Some(entries) = &config.mutual_tls_certificate_authorities {
        let field = "mutual_tls_certificate_authorities";
        context.count(field, entries.len(), AUTHORITIES_MAX)?;
        for (index, entry) in entries.iter().enumerate() {
            let field = format!("{field}[{index}]");
            let template = context.template(&field, entry)?;
            match template.constant() {
                Some(id) if id.starts_with("ca_") => named.push(context.authorities(&field, id)?),
                Some(pem) if certificates(pem).is_none() => {
                    let why = format!(
                        "`{field}` must be PEM CA certificates or the ID of a certificate authority"
                    );
                    return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
                }
                _ => inline.push(template),
            }
        }
    }
    let has_authorities = !inline.is_empty() || !named.is_empty();
    let strategy = strategy.or(has_authorities.then_some(Strategy::Verify));
    if strategy == Some(Strategy::Verify) && !has_authorities {
        let why = "`mutual_tls_certificate_authorities` is required to verify client certificates";
        return Err(context.refuse(code::POLICY_FIELD_MISSING, why));
    }
    Ok(TerminateTls {
        min: min.map(|version| version.0),
        max: max.map(|version| version.0),
        key,
        strategy,
        inline,
        named,
        kept: Mutex::default(),
    })
}

#[derive(Debug)]
struct TerminateTls {
    min: Option<tls_policy::Version>,
    max: Option<tls_policy::Version>,
    key: Option<(Template, Template)>,
    strategy: Option<Strategy>,
    inline: Vec<Template>,
    named: Vec<Arc<Authorities>>,
    kept: Mutex<Vec<CachedTlsPolicy>>,
}

/// A TLS policy with its inputs: the TLS policy of previous actions, and the digests of the texts.
#[derive(Debug)]
struct CachedTlsPolicy {
    before: Option<Arc<TlsPolicy>>,
    texts: Vec<[u8; 32]>,
    tls_policy: Arc<TlsPolicy>,
}

impl TerminateTls {
    /// The TLS policy of this action, merged into that of previous actions. `None` if the result of an expression is
    /// invalid, or no TLS version is left.
    fn tls_policy(&self, x: &mut Exchange<'_>) -> Option<Arc<TlsPolicy>> {
        let before = x.edits.tls_policy.clone();
        let mut texts = Vec::new();
        let key = self.key.iter().flat_map(|(chain, key)| [chain, key]);
        for template in key.chain(&self.inline) {
            texts.push(template.strict(x).ok()?.into_owned());
        }
        let digests: Vec<[u8; 32]> = texts
            .iter()
            .map(|text| Sha256::digest(text).into())
            .collect();
        let is_same = |kept: &CachedTlsPolicy| {
            kept.texts == digests
                && match (&kept.before, &before) {
                    (None, None) => true,
                    (Some(kept), Some(before)) => Arc::ptr_eq(kept, before),
                    _ => false,
                }
        };
        let known = lock(&self.kept)
            .iter()
            .find(|kept| is_same(kept))
            .map(|kept| Arc::clone(&kept.tls_policy));
        if known.is_some() {
            return known;
        }
        let (key, inline) = match (&self.key, texts.as_slice()) {
            (Some(_), [chain, key, inline @ ..]) => (Some(certified(chain, key)?), inline),
            (_, inline) => (None, inline),
        };
        let mut authorities = Vec::new();
        for pem in inline {
            authorities.extend(certificates(pem)?);
        }
        let names_authorities = !(self.inline.is_empty() && self.named.is_empty());
        let settings = TlsSettings {
            min: self.min,
            max: self.max,
            key,
            strategy: self.strategy,
            trusted: names_authorities.then(|| {
                Arc::new(Trusted {
                    inline: authorities,
                    named: self.named.clone(),
                })
            }),
        };
        let tls_policy = Arc::new(TlsPolicy::new(settings, before.as_deref())?);
        let mut kept = lock(&self.kept);
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push(CachedTlsPolicy {
            before,
            texts: digests,
            tls_policy: Arc::clone(&tls_policy),
        });
        Some(tls_policy)
    }
}

impl Action for TerminateTls {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        match self.tls_policy(x) {
            Some(tls_policy) => {
                x.edits.tls_policy = Some(tls_policy);
                Flow::Continue.into()
            }
            None => x.fault().into(),
        }
    }

    fn terminates_tls(&self) -> bool {
        true
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        let key = self.key.iter().flat_map(|(chain, key)| [chain, key]);
        key.chain(&self.inline).flat_map(Template::slots).collect()
    }
}
