//! The traffic policy of an endpoint, checked by the code that runs it and stored as it was written.
//!
//! A policy with secrets is stored twice: as the text that callers see, and whole and encrypted.

pub mod model;
pub mod runtime;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use culvert_access::ip::policy_rule_model::IpPolicyRule;
use culvert_access::ip::rules;
use culvert_access::use_table::UseTable;
use culvert_base::net::HostName;
use culvert_base::{Fault, Refusal, code, id};
use culvert_certificates::certificate_authority::model::CertificateAuthority;
use culvert_edge_config::ACTIONS;
use culvert_events::catalogue::AuditKind;
use culvert_login::Logins;
use culvert_policy::{
    ForwardTarget, IpPolicy, LoginService, Policy, Reference, Resources, Scheme, SecretUse,
    Secrets, Source,
};
use culvert_resources::access::Referrer;
use culvert_resources::cx::Cx;
use culvert_resources::input::names::check_names;
use culvert_resources::resource::model::Model;
use culvert_resources::stored::informer_cache::InformerCache;
use culvert_resources::stored::read_set::ReadSet;
use culvert_resources::stored::seal::Seal;
use culvert_resources::{Caller, Error, Role, access, audit, stored};
use culvert_store::{Changes, Document, Head, Store};
use culvert_tls::tls_policy::Authorities;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;
use tracing::error;

use crate::secret_rights::{Judged, OwnedSecrets};
use crate::traffic_policy::model::StoredPolicy;
use crate::traffic_policy::runtime::PolicyRuntime;
use crate::vault::secret;
use crate::vault::secret_model::VaultSecret;
use crate::{forwarding, host, reserved_domain, secret_rights};

/// Prefixes of the IDs that policies refer to.
const IP_POLICY: &str = "ipp";
const AUTHORITY: &str = "ca";

/// Policies that are compiled at one time for writes: each may occupy a CPU for a part of a second. Callers have a limit of
/// requests in flight, so others wait for a few of them at most.
static COMPILING: Semaphore = Semaphore::const_new(1);

const COMPUTED: &str = "The traffic policy is invalid: `secrets` is only valid in `secrets.get('vault', 'name')`, with both names as literals.";

/// The kind of event of a policy that begins to use a secret.
pub(crate) const SECRET_USED: &str = "secret_used.v0";

/// The object of this event.
#[derive(Serialize, JsonSchema)]
struct SecretUsed<'a> {
    /// The vault secret.
    id: &'a str,
    /// The endpoint whose policy names it.
    endpoint_id: &'a str,
}

/// The kinds of events about policies.
pub fn kinds() -> [AuditKind; 1] {
    let schema = audit::schema_of::<SecretUsed<'static>>();
    [AuditKind {
        name: SECRET_USED.to_owned(),
        doc: "A traffic policy was written that names a vault secret. Requests that use it have no event.".to_owned(),
        schema,
    }]
}

/// The events of the secrets that the policy of an endpoint begins to use; `known` is the policy before, if it stays as
/// it is.
fn secrets_used(
    cx: &Cx<'_>,
    endpoint_id: &str,
    secrets: &[Document],
    known: Option<&StoredPolicy>,
) -> Result<Changes, Fault> {
    let used = secrets.iter().map(|secret| &secret.head.id);
    let new = used.filter(|id| known.is_none_or(|known| !known.names.contains(id)));
    let mut events = Changes::default();
    for id in new {
        let object = SecretUsed { id, endpoint_id };
        events = events.and(Changes::event(audit::operation(cx, SECRET_USED, &object)?));
    }
    Ok(events)
}

/// A policy as sent: text, or an object, which is stored as JSON text.
#[derive(Debug, Default)]
pub struct Given(pub String);

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self(text)),
            object @ Value::Object(_) => Ok(Self(object.to_string())),
            _ => Err(D::Error::custom("it must be a string or an object")),
        }
    }
}

impl JsonSchema for Given {
    fn schema_name() -> Cow<'static, str> {
        "TrafficPolicy".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "object"] })
    }

    fn inline_schema() -> bool {
        true
    }
}

impl StoredPolicy {
    /// What a policy of an endpoint at `host` may use, without the objects of the account.
    pub async fn resources(cx: &Cx<'_>, host: &str, source: &Source) -> Result<Resources, Error> {
        resources(cx, host, source).await
    }

    /// Checks a policy for an endpoint; `before` is its previous policy. Also returns the condition that the
    /// secrets it names still have those names at the commit.
    pub async fn check(
        cx: &Cx<'_>,
        id: &str,
        place: PolicyTarget<'_>,
        text: &str,
        before: Option<&Self>,
    ) -> Result<(Self, Changes), Error> {
        let PolicyTarget {
            owner_id,
            scheme,
            host,
            has_upstream,
        } = place;
        let stored = before;
        let may_read = stored.is_none_or(|stored| stored.shows_secrets_to(cx.caller));
        let (source, before) = Self::restore(cx, id, text, stored, may_read)?;
        let is_restored = source.text() != text;
        let is_same = before
            .as_ref()
            .is_some_and(|before| before.text() == source.text());
        if !is_same {
            check_names(Some(&source.to_json()))?;
        }
        let mut resources = resources(cx, host, &source).await?;
        if source.computes_secret_names() {
            return Err(Refusal::new(code::POLICY_VALUE_INVALID, COMPUTED).into());
        }
        let named = Named::by(cx.store, &cx.caller.account, &source).await?;
        let referrer = Referrer { owner_id, id };
        // A changed policy can send the secrets that it named before elsewhere.
        let known = stored.filter(|_| is_same);
        let known = known.map_or(&[][..], |stored| &stored.names);
        let held = named.check_uses(cx, referrer, known).await?;
        let targets_before = stored.map(|stored| &stored.forwards_to);
        let checked = check_hosts(cx, referrer, &source, targets_before).await?;
        let (held, forwards_to) = (held.and(checked.0), checked.1);
        let is_new_target = targets_before.is_some_and(|before| *before != forwards_to);
        if is_new_target && !source.secrets().is_empty() {
            // Another owner gets the secrets.
            secret_rights::check_scope(cx.caller)?;
        }
        for id in &named.ids {
            if is_id_of(id, IP_POLICY) {
                resources.ip_policies.insert(id.clone(), Arc::default());
            } else if is_id_of(id, AUTHORITY) {
                resources.authorities.insert(id.clone(), Arc::default());
            }
        }
        let policy = {
            // Never closed, so there always is a permit.
            let _turn = COMPILING.acquire().await;
            source.compile(scheme, has_upstream, &resources)?
        };
        let warnings = policy.warnings().to_vec();
        // The compiled expressions are decisive: one that the search of the text missed counts as computed.
        let listed = source.secrets();
        let is_listed = |it: &SecretUse| {
            let mut all = listed.iter();
            all.any(|(vault, name)| *vault == it.vault && *name == it.name)
        };
        if policy.computes_secret_names() || !policy.secret_uses().iter().all(is_listed) {
            return Err(Refusal::new(code::POLICY_VALUE_INVALID, COMPUTED).into());
        }
        if let Some((vault, name)) = &named.missing_secret {
            return Err(no_secret(vault, name).into());
        }
        if !is_same {
            secret_rights::check(cx, referrer, &policy, &named.secrets).await?;
        }
        let secrets = named.secrets.iter();
        let condition = secrets.fold(held, |changes, secret| {
            changes.and(Changes::while_at(&secret.head))
        });
        // A policy that is checked again uses what it has used before.
        let known = stored.filter(|_| is_same);
        let condition = condition.and(secrets_used(cx, id, &named.secrets, known)?);
        let names = named.ids;
        let checked = match source.redacted() {
            None => Self {
                shown: source.text().to_owned(),
                sealed: None,
                names,
                forwards_to,
                secrets_by: String::new(),
                warnings,
            },
            Some(shown) => {
                let has_new = before
                    .as_ref()
                    .is_none_or(|before| !source.has_only_secrets_of(before));
                let is_hidden = is_restored && !may_read;
                let keeps = !has_new && (is_restored || cx.caller.role == Role::Admin);
                // Some of the secrets stay unknown to the caller, or none is new.
                let known = stored.filter(|_| is_hidden || keeps);
                let secrets_by = match known {
                    Some(stored) => stored.secrets_by.clone(),
                    None => cx.caller.owner_id.clone(),
                };
                let is_same = before.is_some_and(|before| before.text() == source.text());
                // An unchanged policy stays equal in stored form, and keeps the counters of its actions.
                let sealed = match stored.and_then(|stored| stored.sealed.clone()) {
                    Some(sealed) if is_same => sealed,
                    _ => cx.seal.seal(cx.entropy, id, source.text())?,
                };
                Self {
                    shown,
                    sealed: Some(sealed),
                    names,
                    forwards_to,
                    secrets_by,
                    warnings,
                }
            }
        };
        Ok((checked, condition))
    }

    /// The policy of a text, with the secrets that the text shows redacted, and the policy that is stored. `may_read` says
    /// that the caller sees the stored secrets.
    fn restore(
        cx: &Cx<'_>,
        id: &str,
        text: &str,
        stored: Option<&Self>,
        may_read: bool,
    ) -> Result<(Source, Option<Source>), Error> {
        let before = match stored {
            Some(stored) => {
                let text = stored.text(cx.seal, id)?;
                Some(
                    Source::read(&text, ACTIONS)
                        .map_err(|error| Fault::new("reading a stored policy", error))?,
                )
            }
            None => None,
        };
        let source = match (&before, stored) {
            // The redacted text came back unchanged: the policy stays as it was sent, byte for byte.
            (Some(before), Some(stored)) if stored.shown == text => {
                Source::read(before.text(), ACTIONS)?
            }
            // An earlier version may send a secret to where the later one, with another secret, does not.
            _ if may_read && cx.cause.is_none() => {
                Source::read(text, ACTIONS)?.restored(before.as_ref())?
            }
            _ => Source::read(text, ACTIONS)?.restored_in_place(before.as_ref())?,
        };
        Ok((source, before))
    }

    /// Refuses another upstream for an unchanged policy with secrets, unless the caller may write such a policy: its
    /// header fields go there. Codes 642 and 650.
    pub(crate) async fn may_send_elsewhere(
        &self,
        cx: &Cx<'_>,
        referrer: Referrer<'_>,
    ) -> Result<Changes, Error> {
        let text = self.text(cx.seal, referrer.id)?;
        let source = Source::read(&text, ACTIONS)
            .map_err(|error| Fault::new("reading a stored policy", error))?;
        if source.secrets().is_empty() && !source.computes_secret_names() {
            return Ok(Changes::default());
        }
        secret_rights::check_scope(cx.caller)?;
        let named = Named::by(cx.store, &cx.caller.account, &source).await?;
        named.check_uses(cx, referrer, &[]).await
    }

    /// Whether the caller may read the secrets: it wrote them, or is an admin. The caller may change the endpoint.
    pub(crate) fn shows_secrets_to(&self, caller: &Caller) -> bool {
        caller.role == Role::Admin || caller.owner_id == self.secrets_by
    }

    /// Stores the references of a policy that was stored before references were recorded. Returns whether any
    /// was missing.
    pub async fn note_names(
        &mut self,
        store: &Store,
        seal: &Seal,
        head: &Head,
    ) -> Result<bool, Fault> {
        let doing = || format!("reading the policy of {}", head.id);
        let text = self.text(seal, &head.id)?;
        let source = Source::read(&text, ACTIONS).map_err(|error| Fault::new(doing(), error))?;
        let named = Named::by(store, &head.account, &source).await?;
        let is_new = named.ids != self.names;
        self.names = named.ids;
        Ok(is_new)
    }

    /// Keeps what the policy before it meant by internal hosts that have no endpoint now.
    pub(crate) fn keep_targets(&mut self, before: &Self) {
        for (host, owner_id) in &before.forwards_to {
            let kept = || owner_id.clone();
            self.forwards_to.entry(host.clone()).or_insert_with(kept);
        }
    }

    /// Stores the owners of the internal endpoints that a policy names, if it was stored before they were recorded.
    pub async fn note_targets(
        &mut self,
        store: &Store,
        seal: &Seal,
        head: &Head,
    ) -> Result<(), Fault> {
        for host in self.internal_names(seal, &head.id)? {
            if let Some(held) = host::internal(store, &head.account, &host).await? {
                self.forwards_to.entry(host).or_insert(held.owner_id);
            }
        }
        Ok(())
    }

    /// The internal hosts that it names by constant URLs, and those whose owners were recorded.
    pub(crate) fn forward_hosts(&self, seal: &Seal, id: &str) -> Result<BTreeSet<String>, Fault> {
        let named = self.internal_names(seal, id)?.into_iter();
        Ok(named.chain(self.forwards_to.keys().cloned()).collect())
    }

    /// The internal hosts that it names by constant URLs.
    pub fn internal_names(&self, seal: &Seal, id: &str) -> Result<Vec<String>, Fault> {
        let text = self.text(seal, id)?;
        let source = Source::read(&text, ACTIONS)
            .map_err(|error| Fault::new(format!("reading the policy of {id}"), error))?;
        Ok(source.internal_hosts())
    }

    /// Whether `text` is the whole text of this policy.
    pub fn is(&self, seal: &Seal, id: &str, text: &str) -> Result<bool, Fault> {
        Ok(self.text(seal, id)? == text)
    }

    /// The whole text of the policy, as it was sent.
    pub fn text(&self, seal: &Seal, id: &str) -> Result<Cow<'_, str>, Fault> {
        match &self.sealed {
            None => Ok(self.shown.as_str().into()),
            Some(sealed) => Ok(seal.open(id, sealed)?.reveal().to_owned().into()),
        }
    }
}

/// The objects of an account that a policy refers to.
struct Named {
    ids: Vec<String>,
    /// The secrets among these objects.
    secrets: Vec<Document>,
    /// Vault and name of the first secret that does not exist.
    missing_secret: Option<(String, String)>,
}

impl Named {
    async fn by(store: &Store, account: &str, source: &Source) -> Result<Self, Fault> {
        let mut named = Self {
            ids: Vec::new(),
            secrets: Vec::new(),
            missing_secret: None,
        };
        for Reference { prefix, id } in source.references() {
            let kind = match prefix {
                IP_POLICY => culvert_access::ip::policy_model::IpPolicy::KIND,
                AUTHORITY => CertificateAuthority::KIND,
                _ => continue,
            };
            let found = store.get(kind, &id).await?;
            if found.is_some_and(|document| document.head.account == account) {
                named.ids.push(id);
            }
        }
        for (vault, name) in source.secrets() {
            match secret::find(store, account, &vault, &name).await? {
                Some(secret) => {
                    named.ids.push(secret.head.id.clone());
                    named.secrets.push(secret);
                }
                None => named.missing_secret = named.missing_secret.or(Some((vault, name))),
            }
        }
        Ok(named)
    }

    /// Refuses a secret that the owner of the endpoint may not use (650): a policy can send the secrets that it names
    /// to any upstream. `before` are the objects that the policy named already.
    async fn check_uses(
        &self,
        cx: &Cx<'_>,
        referrer: Referrer<'_>,
        before: &[String],
    ) -> Result<Changes, Error> {
        let mut held = Changes::default();
        for document in &self.secrets {
            let is_known = before.contains(&document.head.id);
            let ty = &secret::TYPE;
            held = held.and(access::may_use(cx, referrer, ty, document, is_known).await?);
        }
        Ok(held)
    }
}

/// What a policy of an endpoint at `host` may name, without the objects of the account.
async fn resources(cx: &Cx<'_>, host: &str, source: &Source) -> Result<Resources, Error> {
    let runtime = PolicyRuntime::of(cx)?;
    let mut resources = Resources {
        logins: Some(LoginService::new(Arc::clone(&runtime.logins))),
        assertions: Some(Arc::clone(runtime.logins.assertions())),
        host: HostName::parse(host).ok(),
        allows_public_calls: cx.settings.allow_public_calls,
        ip_data: Some(runtime.ip_data.now()),
        is_written: true,
        has_tls_before_edge: cx.settings.has_tls_before_edge,
        ..Resources::default()
    };
    if let Some(host) = &resources.host
        && source.text().contains("auth_cookie_domain")
    {
        resources.own_domains = Some(own_domains(cx, host).await?);
    }
    Ok(resources)
}

/// The refusal of a secret that does not exist.
fn no_secret(vault: &str, name: &str) -> Refusal {
    let cut = |text: &str| text.chars().take(64).collect::<String>();
    let (vault, name) = (cut(vault), cut(name));
    let why = format!("The traffic policy is invalid: the vault `{vault}` has no secret `{name}`.");
    Refusal::new(code::POLICY_VALUE_INVALID, why)
}

/// Refuses internal endpoints that the owner of the endpoint may not use (650). Computed hosts are checked for each
/// request. Also returns the owners of those that exist, and the former ones of those that may be offline.
async fn check_hosts(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    source: &Source,
    before: Option<&BTreeMap<String, String>>,
) -> Result<(Changes, BTreeMap<String, String>), Error> {
    let (mut held, mut owners) = (Changes::default(), BTreeMap::new());
    for host in source.internal_hosts() {
        let known = before.and_then(|before| before.get(&host));
        let (allowed, owner_id) = forwarding::may_forward(cx, referrer, &host, known).await?;
        held = held.and(allowed);
        let owner_id = owner_id.or_else(|| known.cloned());
        owners.extend(owner_id.map(|owner_id| (host, owner_id)));
    }
    Ok((held, owners))
}

/// Whether an id has this prefix.
fn is_id_of(id: &str, prefix: &str) -> bool {
    id::split(id).is_some_and(|(found, _)| found == prefix)
}

/// The endpoint of a policy.
#[derive(Clone, Copy, Debug)]
pub struct PolicyTarget<'a> {
    /// Its owner, who must have the right to use what the policy refers to.
    pub owner_id: &'a str,
    /// Scheme of the endpoint that has the policy.
    pub scheme: Scheme,
    /// Host of that endpoint.
    pub host: &'a str,
    /// Whether the endpoint has an upstream for requests that pass the policy.
    pub has_upstream: bool,
}

/// The parent names of a host that belong to the account.
async fn own_domains(cx: &Cx<'_>, host: &HostName) -> Result<Vec<String>, Fault> {
    let mut own = Vec::new();
    let mut rest: &str = host;
    while let Some((_, above)) = rest.split_once('.') {
        if let Ok(name) = HostName::parse(above)
            && let Some(document) = reserved_domain::covering(cx, &name).await?
            && document.head.account == cx.caller.account
        {
            own.push(above.to_owned());
        }
        rest = above;
    }
    Ok(own)
}

/// The compiled policies in use. An unchanged policy keeps the counters of its actions.
#[derive(Debug)]
pub struct Compiled {
    logins: Arc<Logins>,
    policies: HashMap<String, (Key, Arc<Policy>)>,
    ip_policies: HashMap<String, ActiveIpPolicy>,
    authorities: HashMap<String, LiveAuthority>,
    /// Secrets in use, by account.
    secrets: HashMap<String, LiveSecrets>,
    /// All secrets, read once a policy needs one.
    vaulted: Vaulted,
    /// The policies with secrets, by endpoint.
    judged: HashMap<String, Judged>,
    /// The rights by which they were checked last, and whether policies could still echo secrets. `None` if something
    /// has changed since.
    judged_by: Option<(Arc<UseTable>, bool)>,
}

/// A certificate authority in use.
#[derive(Debug)]
struct LiveAuthority {
    account: String,
    /// Whether it existed at the last check; an authority never changes.
    is_there: bool,
    cell: Arc<Authorities>,
}

/// The secrets of an account that are in use.
#[derive(Debug, Default)]
struct LiveSecrets {
    /// Those of the last read.
    read: ReadSet,
    cell: Arc<Secrets>,
}

/// Secrets in stored form.
#[derive(Debug)]
struct Vaulted(InformerCache<Document>);

impl Default for Vaulted {
    fn default() -> Self {
        Self(InformerCache::of(VaultSecret::KIND))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Key {
    policy: StoredPolicy,
    scheme: Scheme,
    has_upstream: bool,
}

/// An IP policy in use.
#[derive(Debug, Default)]
struct ActiveIpPolicy {
    account: String,
    /// Whether it existed at the last check.
    is_there: bool,
    /// Its rules at the last read.
    read: ReadSet,
    cell: Arc<IpPolicy>,
}

impl Compiled {
    /// Nothing compiled yet. Sign-ins of its policies share `logins`.
    pub fn new(logins: Arc<Logins>) -> Self {
        Self {
            logins,
            policies: HashMap::new(),
            ip_policies: HashMap::new(),
            authorities: HashMap::new(),
            secrets: HashMap::new(),
            vaulted: Vaulted::default(),
            judged: HashMap::new(),
            judged_by: None,
        }
    }

    /// The compiled policy of an endpoint. IP policies that it refers to for the first time deny every
    /// address until the next [`Self::refresh`].
    pub fn policy(
        &mut self,
        seal: &Seal,
        (head, owner): (&Head, &str),
        policy: &StoredPolicy,
        scheme: Scheme,
        has_upstream: bool,
    ) -> Result<Arc<Policy>, Fault> {
        let key = Key {
            policy: policy.clone(),
            scheme,
            has_upstream,
        };
        if let Some((known, compiled)) = self.policies.get(&head.id)
            && *known == key
        {
            return Ok(Arc::clone(compiled));
        }
        let doing = || format!("compiling the policy of endpoint {}", head.id);
        let text = policy.text(seal, &head.id)?;
        let source = Source::read(&text, ACTIONS).map_err(|error| Fault::new(doing(), error))?;
        let targets = policy
            .forwards_to
            .iter()
            .map(|(host, owner)| ForwardTarget {
                host: host.clone(),
                owner: owner.clone(),
            });
        let mut resources = Resources {
            logins: Some(LoginService::new(Arc::clone(&self.logins))),
            assertions: Some(Arc::clone(self.logins.assertions())),
            // A stored policy was checked when it was written, and the edge checks each request.
            allows_public_calls: true,
            owner: owner.to_owned(),
            forwards_to: targets.collect(),
            ..Resources::default()
        };
        let account = || head.account.clone();
        for Reference { prefix, id } in source.references() {
            // A removed IP policy allows no address, and a removed authority is not trusted.
            if prefix == AUTHORITY {
                let new = || LiveAuthority {
                    account: account(),
                    is_there: false,
                    cell: Arc::default(),
                };
                let live = self.authorities.entry(id.clone()).or_insert_with(new);
                resources.authorities.insert(id, Arc::clone(&live.cell));
                continue;
            }
            let new = || ActiveIpPolicy {
                account: account(),
                ..ActiveIpPolicy::default()
            };
            let live = self.ip_policies.entry(id.clone()).or_insert_with(new);
            resources.ip_policies.insert(id, Arc::clone(&live.cell));
        }
        let secrets = self.secrets.entry(account()).or_default();
        resources.secrets = Arc::clone(&secrets.cell);
        let compiled = source
            .compile(scheme, has_upstream, &resources)
            .map_err(|error| Fault::new(doing(), error))?;
        let compiled = Arc::new(compiled);
        match Judged::new(&head.account, owner, &compiled) {
            Some(judged) => drop(self.judged.insert(head.id.clone(), judged)),
            None => drop(self.judged.remove(&head.id)),
        }
        self.judged_by = None;
        self.policies
            .insert(head.id.clone(), (key, Arc::clone(&compiled)));
        Ok(compiled)
    }

    /// Drops the policy of an endpoint that has none any more.
    pub fn forget(&mut self, endpoint_id: &str) {
        self.policies.remove(endpoint_id);
        self.judged.remove(endpoint_id);
    }

    /// Applies changes of the IP policies, authorities and secrets in use, and drops those that are no longer
    /// used.
    pub async fn refresh(&mut self, store: &Store, seal: &Seal) -> Result<(), Fault> {
        // For an unused entry, this is the only remaining reference.
        self.ip_policies
            .retain(|_, live| Arc::strong_count(&live.cell) > 1);
        self.authorities
            .retain(|_, live| Arc::strong_count(&live.cell) > 1);
        self.secrets
            .retain(|_, live| Arc::strong_count(&live.cell) > 1);
        for (id, live) in &mut self.ip_policies {
            live.refresh(store, id).await?;
        }
        for (id, live) in &mut self.authorities {
            live.refresh(store, id).await?;
        }
        if !self.secrets.is_empty() {
            let all = &mut self.vaulted.0;
            if !all.refresh(store, |document| document).await?.is_empty() {
                self.judged_by = None;
            }
            for (account, live) in &mut self.secrets {
                live.refresh(account, all, seal);
            }
        }
        Ok(())
    }
}

impl Compiled {
    /// Decides which policies may use their secrets, by these rights. `in_grace` says that they may still echo them.
    pub fn judge(&mut self, table: &Arc<UseTable>, in_grace: bool) {
        let is_current =
            |(by, grace): &(Arc<UseTable>, bool)| Arc::ptr_eq(by, table) && *grace == in_grace;
        if self.judged_by.as_ref().is_some_and(is_current) {
            return;
        }
        let mut accounts: HashMap<String, OwnedSecrets> = HashMap::new();
        for (id, judged) in &mut self.judged {
            let secrets = accounts.entry(judged.account.clone()).or_insert_with(|| {
                let all = self.vaulted.0.values();
                secret_rights::owned(all.filter(|secret| secret.head.account == judged.account))
            });
            let referrer = Referrer {
                owner_id: &judged.owner_id,
                id,
            };
            let misuses = secret_rights::misuses(&judged.policy, referrer, secrets, table);
            judged.judge(id, misuses, in_grace);
        }
        self.judged_by = Some((Arc::clone(table), in_grace));
    }
}

impl LiveAuthority {
    async fn refresh(&mut self, store: &Store, id: &str) -> Result<(), Fault> {
        let found = store.get(CertificateAuthority::KIND, id).await?;
        let found = found.filter(|document| document.head.account == self.account);
        if found.is_some() == self.is_there {
            return Ok(());
        }
        if found.is_none() {
            error!(
                authority = id,
                "certificate authority of a traffic policy not found; TLS handshakes are rejected"
            );
        }
        self.is_there = found.is_some();
        let certificate = match found {
            None => None,
            Some(document) => {
                let authority: CertificateAuthority = stored::read(&document)?;
                Some(authority.certificate()?)
            }
        };
        self.cell.replace(certificate.into_iter().collect());
        Ok(())
    }
}

impl LiveSecrets {
    /// Skips a secret that cannot be decrypted, and logs it.
    fn refresh(&mut self, account: &str, all: &InformerCache<Document>, seal: &Seal) {
        let own = || {
            all.values()
                .filter(|document| document.head.account == account)
        };
        let read = ReadSet::of(all.epoch(), own());
        if read == self.read {
            return;
        }
        let opened = own().filter_map(|document| {
            let opened = VaultSecret::open(document, seal);
            opened
                .inspect_err(|fault| error!(cause = %fault.chain(), "secret skipped"))
                .ok()
        });
        let opened: Vec<_> = opened.collect();
        let entries = opened
            .iter()
            .map(|(vault, name, value)| (&**vault, &**name, value.reveal()));
        self.cell.replace(entries);
        self.read = read;
    }
}

impl ActiveIpPolicy {
    /// Denies every address once the policy is gone; its rules may be removed one by one.
    async fn refresh(&mut self, store: &Store, id: &str) -> Result<(), Fault> {
        let policy = store
            .get(culvert_access::ip::policy_model::IpPolicy::KIND, id)
            .await?;
        if policy.is_none_or(|document| document.head.account != self.account) {
            if self.is_there {
                error!(
                    ip_policy = id,
                    "IP policy of a traffic policy not found; all addresses are denied"
                );
            }
            self.is_there = false;
            self.read.clear();
            self.cell.vanish();
            return Ok(());
        }
        let epoch = store.epoch();
        let documents = rules::of_policy(store, &self.account, id).await?;
        let read = ReadSet::of(epoch, documents.iter());
        if self.is_there && read == self.read {
            return Ok(());
        }
        let mut rules = Vec::with_capacity(documents.len());
        for document in &documents {
            let rule: IpPolicyRule = stored::read(document)?;
            rules.push(rule.compile(&document.head)?);
        }
        self.cell.replace(rules);
        self.is_there = true;
        self.read = read;
        Ok(())
    }
}
