//! The rules of the account about API keys: `/api_key_rules`, and where they are checked.
//!
//! A rule with `refuse` is checked where a key is made or changed, or where its owner becomes an admin. Existing keys that
//! break it go on, and are reported, because a rule that ends them would lock out those who wrote it. Only the maximum age
//! ends existing tokens, which authentication computes from the time of the token.

use std::collections::HashMap;

use culvert_base::{Fault, Refusal, Timestamp, code};
use culvert_events::catalogue::AuditKind;
use culvert_events::{Audit, EventId};
use culvert_resources::access::caller::Role;
use culvert_resources::access::key_rules::{AGE_DAYS, JudgedKey, KeyRule, KeyRules, Strictness};
use culvert_resources::access::owner::Owner;
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::access::tenant::Account;
use culvert_resources::access::user::User;
use culvert_resources::audit::trace::Trace;
use culvert_resources::cx::Cx;
use culvert_resources::input::Problem;
use culvert_resources::input::force::FORCED;
use culvert_resources::operation::terms::Shown;
use culvert_resources::operation::{
    BodySpec, Call, Handler, Method, Operation, Reply, ResponseSpec, Run, SchemaOf, Status,
};
use culvert_resources::resource::Running;
use culvert_resources::resource::model::Model;
use culvert_resources::service::Attempts;
use culvert_resources::{Error, audit, input, stored};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;

use crate::Identity;
use crate::api_key::model::ApiKey;
use crate::lockout;

/// The path of the rules.
pub const KEY_RULES_PATH: &str = "/api_key_rules";
const COLLECTION: &str = "api_key_rules";

/// The kind of the event of changed rules.
pub const API_KEY_RULES_UPDATED: &str = "api_key_rules_updated.v0";
/// The kind of the event of a key that breaks a rule.
pub const API_KEY_RULE_BROKEN: &str = "api_key_rule_broken.v0";

/// Events of one look; more follow with the next one.
const EVENTS_MAX: usize = 1_000;
const ONLY_ADMINS: &str = "Only admins may change the rules of API keys.";

/// The operations.
pub(crate) fn operations() -> [Operation<Identity>; 2] {
    let operation = |name, method, doc: &str, body, query, run: Handler<Identity>| Operation {
        name,
        collection: COLLECTION,
        method,
        path: KEY_RULES_PATH.to_owned(),
        doc: doc.to_owned(),
        body,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<View> as SchemaOf),
        },
        query,
        right: match method {
            Method::Get => Right::read(Scope::KeysRead),
            Method::Post | Method::Patch | Method::Delete => Right {
                role: Role::Admin,
                scope: Some(Scope::KeysWrite),
            },
        },
        object: None,
        hides: None,
        preview: None,
        trace: match method {
            Method::Get => Trace::Nothing,
            Method::Post | Method::Patch | Method::Delete => Trace::Objects,
        },
        run: Run::new(run),
    };
    [
        operation(
            "get",
            Method::Get,
            "Gets the rules of the account about API keys.",
            None,
            &[],
            run_get,
        ),
        operation(
            "update",
            Method::Patch,
            "Changes the rules of the account about API keys. Absent and null fields are unchanged. A maximum age that \
             ends the caller's token, or that of every unrestricted key of admins, needs `force` (660).",
            Some(BodySpec {
                schema: SchemaGenerator::subschema_for::<Update>,
                required: false,
            }),
            FORCED,
            run_update,
        ),
    ]
}

/// The rules of the account about API keys.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKeyRules")]
struct View {
    uri: String,
    /// `refuse`: a token that is older than `maximum_age_days` stops working (640). `warn`: it is reported.
    maximum_age: Strictness,
    /// The maximum age of a token in days, from the creation or the last rotation of its key.
    maximum_age_days: u32,
    /// `refuse`: a key without `expires_at` is not created, changed or rotated (653). `warn`: it is reported.
    required_end: Strictness,
    /// `refuse`: a key with the role `admin` that works from anywhere is not created, changed or rotated, and its owner
    /// does not become an admin (653). `warn`: it is reported. Networks that together have at least half of the addresses
    /// of IPv4, or of `2000::/3`, are anywhere.
    admin_networks: Strictness,
}

impl View {
    fn of(rules: &KeyRules, base: &str) -> Self {
        Self {
            uri: format!("{base}{KEY_RULES_PATH}"),
            maximum_age: rules.maximum_age,
            maximum_age_days: rules.maximum_age_days,
            required_end: rules.required_end,
            admin_networks: rules.admin_networks,
        }
    }
}

/// Changes to the rules of the account about API keys.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ApiKeyRulesUpdate", transform = input::update_schema)]
struct Update {
    /// What happens to a token that is older than `maximum_age_days`: `off`, `warn` or `refuse`.
    #[schemars(extend("enum" = ["off", "warn", "refuse"]))]
    maximum_age: Option<String>,
    /// The maximum age of a token in days, 1 to 3650; at first 365.
    #[schemars(range(min = 1, max = 3650))]
    maximum_age_days: Option<u32>,
    /// What happens to a key without an end: `off`, `warn` or `refuse`.
    #[schemars(extend("enum" = ["off", "warn", "refuse"]))]
    required_end: Option<String>,
    /// What happens to a key with the role of an admin that works from anywhere: `off`, `warn` or `refuse`.
    #[schemars(extend("enum" = ["off", "warn", "refuse"]))]
    admin_networks: Option<String>,
}

impl Update {
    /// The rules after the change. Code 215.
    fn applied(&self, to: KeyRules) -> Result<KeyRules, Refusal> {
        let invalid = |why: String| Refusal::new(code::BODY_FIELD_INVALID, why);
        let strictness = |name: &str, text: &Option<String>, known: Strictness| match text {
            None => Ok(known),
            Some(text) => Strictness::parse(text)
                .ok_or_else(|| invalid(format!("`{name}` must be `off`, `warn` or `refuse`."))),
        };
        let days = self.maximum_age_days.unwrap_or(to.maximum_age_days);
        let (least, most) = AGE_DAYS;
        if !(least..=most).contains(&days) {
            let why = format!("`maximum_age_days` must be {least} to {most}.");
            return Err(invalid(why));
        }
        Ok(KeyRules {
            maximum_age: strictness("maximum_age", &self.maximum_age, to.maximum_age)?,
            maximum_age_days: days,
            required_end: strictness("required_end", &self.required_end, to.required_end)?,
            admin_networks: strictness("admin_networks", &self.admin_networks, to.admin_networks)?,
        })
    }
}

/// The object of the event of changed rules.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ApiKeyRulesObject")]
struct ShownRules<'a> {
    /// ID of the account.
    id: &'a str,
    #[serde(flatten)]
    rules: View,
}

/// The object of the event of a key that breaks a rule.
#[derive(Serialize, JsonSchema)]
struct ShownKey<'a> {
    /// ID of the API key.
    id: &'a str,
    /// ID of its owner.
    owner_id: &'a str,
    /// The owner's e-mail address, or the bot's name.
    owner_name: &'a str,
    /// Description of the key.
    description: &'a str,
    /// The rules that it breaks.
    rules: &'a [KeyRule],
}

/// The kinds of events about rules.
pub fn kinds() -> [AuditKind; 2] {
    let rules = audit::schema_of::<ShownRules<'static>>();
    let key = audit::schema_of::<ShownKey<'static>>();
    [
        (
            API_KEY_RULES_UPDATED,
            "The rules of the account about API keys were changed.",
            rules,
        ),
        (
            API_KEY_RULE_BROKEN,
            "An API key breaks a rule of the account that it did not break before: a call created, changed or rotated it, \
             which `principal` shows, or the server found it within an hour.",
            key,
        ),
    ]
    .map(|(name, doc, schema)| AuditKind {
        name: name.to_owned(),
        doc: doc.to_owned(),
        schema,
    })
}

/// The account of the caller.
async fn account_of(cx: &Cx<'_>) -> Result<(Document, Account), Fault> {
    let document = cx.store.get(Account::KIND, &cx.caller.account).await?;
    let document = document.ok_or_else(|| Fault::bare("reading the rules of API keys"))?;
    let account = stored::read(&document)?;
    Ok((document, account))
}

/// The rules of the caller's account, and the condition that they are the same at the commit.
pub(crate) async fn current(cx: &Cx<'_>) -> Result<(KeyRules, Changes), Fault> {
    let (document, account) = account_of(cx).await?;
    Ok((account.key_rules, Changes::while_at(&document.head)))
}

/// Checks a key that is created, changed or rotated (653), and notes in it which rules it breaks. Returns the event if it
/// breaks more than before, and the condition that the rules are the same at the commit.
pub(crate) async fn check(
    cx: &Cx<'_>,
    id: &str,
    issued_at: Timestamp,
    key: &mut ApiKey,
) -> Result<Changes, Error> {
    let (rules, held) = current(cx).await?;
    if rules.is_none() {
        key.noticed.clear();
        return Ok(held);
    }
    let owner = Owner::get(cx.store, &key.owner_id).await?;
    let document = owner.ok_or_else(|| Refusal::of(code::OWNER_UNKNOWN))?;
    let owner = Owner::read(&document)?;
    // A role that is raised meanwhile decides again. The owner stays as it is: keys of one owner are written side by side.
    let held = held.and(Changes::while_at(&document.head));
    let judged = JudgedKey {
        restrictions: &key.restrictions,
        issued_at,
        owner_role: owner.role,
    };
    let broken = rules.broken(judged, cx.clock.now());
    rules.check(&broken)?;
    let is_more = broken.iter().any(|rule| !key.noticed.contains(rule));
    key.noticed.clone_from(&broken);
    if !is_more {
        return Ok(held);
    }
    let shown = ShownKey {
        id,
        owner_id: &key.owner_id,
        owner_name: &owner.subject,
        description: &key.description,
        rules: &broken,
    };
    let event = audit::operation(cx, API_KEY_RULE_BROKEN, &shown)?;
    Ok(held.and(Changes::event(event)))
}

/// Refuses that a user becomes an active admin (653) whose keys would break a rule.
pub(crate) async fn check_admin(cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
    let (rules, held) = current(cx).await?;
    if rules.admin_networks != Strictness::Refuse {
        return Ok(held);
    }
    // A key that is made or changed meanwhile decides again.
    let since = cx.store.revision().await?;
    let held = held.and(Changes::while_referrers_at(ApiKey::KIND, &head.id, since));
    for document in cx.referring(ApiKey::KIND, head).await? {
        let key: ApiKey = stored::read(&document)?;
        let judged = JudgedKey {
            restrictions: &key.restrictions,
            issued_at: key.issued_at(&document.head),
            owner_role: Role::Admin,
        };
        let broken = rules.broken(judged, cx.clock.now());
        if broken.contains(&KeyRule::AdminNetworks) {
            let why = format!(
                "The account requires networks of API keys with the role `admin` (rule `admin_networks`), which `{}` of \
                 this user would be; restrict or delete it first.",
                document.head.id
            );
            return Err(Refusal::new(code::API_KEY_BREAKS_RULE, why).into());
        }
    }
    Ok(held)
}

/// The rules in the caller's account, and their state for conditions: only a change of the rules changes it.
fn shown(cx: &Cx<'_>, account: &Head, rules: &KeyRules) -> Result<(String, Shown), Fault> {
    let key = cx.terms.map(|terms| terms.conditions.key.clone());
    let stored = stored::write(rules)?;
    let shown = key
        .unwrap_or_default()
        .shown_part(account, COLLECTION, &stored);
    Ok((stored::write(&View::of(rules, cx.base.uri))?, shown))
}

fn run_get(identity: &Identity, call: Call) -> Running<'_> {
    Box::pin(async move {
        let cx = identity.kernel.cx_of(&call, &[])?;
        let (document, account) = account_of(&cx).await?;
        let (view, state) = shown(&cx, &document.head, &account.key_rules)?;
        call.terms.conditions.check_state(&state, false)?;
        call.terms.show_state(state);
        Ok(Reply::Ok(view))
    })
}

fn run_update(identity: &Identity, call: Call) -> Running<'_> {
    Box::pin(async move {
        let account = call.caller.account.clone();
        let updating = update(identity, call);
        identity.kernel.locks.with(&[&account], updating).await
    })
}

async fn update(identity: &Identity, call: Call) -> Result<Reply, Error> {
    let update = match input::update::<Update>(call.body.clone()) {
        Ok(update) => update.input,
        Err(Problem::Shape(refusal)) => return Err(refusal.into()),
        Err(Problem::Value { field, why }) => {
            let why = format!("`{field}` is not allowed: {why}.");
            return Err(Refusal::new(code::BODY_FIELD_INVALID, why).into());
        }
    };
    let cx = identity.kernel.cx_of(&call, FORCED)?;
    cx.caller.must_be_admin(ONLY_ADMINS)?;
    let mut attempts = Attempts::of(cx.locks);
    loop {
        attempts.begin().await?;
        let (mut document, mut account) = account_of(&cx).await?;
        let before = account.key_rules;
        let (view, state) = shown(&cx, &document.head, &before)?;
        // The commit replaces the account only at the revision that was read.
        call.terms.conditions.check_state(&state, true)?;
        let rules = update.applied(before)?;
        if rules == before {
            call.terms.show_state(state);
            return Ok(Reply::Ok(view));
        }
        account.key_rules = rules;
        lockout::rules_leave_a_way_in(&cx, &document.head, (&before, &rules)).await?;
        let event = rules_event(&cx, &document.head, &before, &rules)?;
        document.head.updated_at = cx.clock.now().whole_seconds();
        let (view, state) = shown(&cx, &document.head, &rules)?;
        let written = Document {
            body: stored::write(&account)?,
            ..document
        };
        match cx.store.commit(Changes::replace(written, event)).await {
            Ok(_) => {
                call.terms.show_state(state);
                return Ok(Reply::Ok(view));
            }
            Err(CommitError::Fault(fault)) => return Err(fault.into()),
            Err(_) => {}
        }
    }
}

fn rules_event(
    cx: &Cx<'_>,
    account: &Head,
    before: &KeyRules,
    rules: &KeyRules,
) -> Result<AuditEvent, Fault> {
    let unwritable = |error| Fault::new("writing the rules of API keys", error);
    let base = cx.base.to_string();
    let fields = |rules| serde_json::to_value(View::of(rules, &base)).map_err(unwritable);
    let (old, new) = (fields(before)?, fields(rules)?);
    let mut previous = serde_json::Map::new();
    for (name, value) in old.as_object().into_iter().flatten() {
        if new.get(name) != Some(value) {
            previous.insert(name.clone(), value.clone());
        }
    }
    let previous = to_raw_value(&previous).map_err(unwritable)?;
    let at = cx.clock.now();
    let id = EventId::new(at, cx.entropy.bytes());
    let principal = audit::principal(cx);
    let audit = Audit {
        principal: Some(&principal),
        previous: Some(&previous),
        ..Audit::by_server(API_KEY_RULES_UPDATED, at, &id, &cx.caller.account)
    };
    let shown = ShownRules {
        id: &account.id,
        rules: View::of(rules, &base),
    };
    Ok(AuditEvent::Emit(audit.about(&shown)?))
}

/// A key that breaks other rules than its events say.
struct Found {
    document: Document,
    key: ApiKey,
    broken: Vec<KeyRule>,
    owner_name: String,
}

impl Identity {
    /// Reports the keys that break a rule which they did not break before.
    ///
    /// # Errors
    ///
    /// The store fails, or the rules of an account cannot be read.
    pub async fn watch_key_rules(&self, now: Timestamp) -> Result<(), Fault> {
        let store = &self.kernel.store;
        let mut rules = HashMap::new();
        for document in store.all(Account::KIND).await? {
            let account: Account = stored::read(&document)?;
            rules.insert(document.head.id, account.key_rules);
        }
        let mut owners = HashMap::new();
        for document in store.all(User::KIND).await? {
            let owner = Owner::read(&document)?;
            owners.insert(document.head.id, owner);
        }
        let mut found = Vec::new();
        let look = |document: Document| {
            let Ok(key) = stored::read::<ApiKey>(&document) else {
                return;
            };
            let rules = rules.get(&document.head.account);
            let owner = owners.get(&key.owner_id);
            let judged = JudgedKey {
                restrictions: &key.restrictions,
                issued_at: key.issued_at(&document.head),
                owner_role: owner.map_or(Role::Member, |owner| owner.role),
            };
            let broken = rules.map_or_else(Vec::new, |rules| rules.broken(judged, now));
            if broken != key.noticed && found.len() < EVENTS_MAX {
                let owner_name = owner.map_or(String::new(), |owner| owner.subject.clone());
                found.push(Found {
                    document,
                    key,
                    broken,
                    owner_name,
                });
            }
        };
        store.each_changed(ApiKey::KIND, 0, look).await?;
        for found in found {
            self.notice_broken(found).await?;
        }
        Ok(())
    }

    async fn notice_broken(&self, found: Found) -> Result<(), Fault> {
        let Found {
            document,
            mut key,
            broken,
            owner_name,
        } = found;
        let kernel = &self.kernel;
        let is_more = broken.iter().any(|rule| !key.noticed.contains(rule));
        let mut changes = Changes::default();
        if is_more {
            let owner_name = match owner_name.is_empty() {
                // Bots are not read with the users.
                true => match Owner::load(&kernel.store, &key.owner_id).await? {
                    Some((owner, _)) => owner.subject,
                    None => owner_name,
                },
                false => owner_name,
            };
            let shown = ShownKey {
                id: &document.head.id,
                owner_id: &key.owner_id,
                owner_name: &owner_name,
                description: &key.description,
                rules: &broken,
            };
            let event = kernel.server_event(API_KEY_RULE_BROKEN, &document.head.account, &shown)?;
            changes = Changes::event(event);
        }
        key.noticed = broken;
        let reason = "what its events say of a key is not shown";
        let noted = Document {
            body: stored::write(&key)?,
            ..document
        };
        let changes = Changes::replace(noted, AuditEvent::Suppress { reason }).and(changes);
        match kernel.store.commit(changes).await {
            Ok(_) | Err(CommitError::Stale) => Ok(()),
            Err(error) => Err(Fault::new("reporting a key that breaks a rule", error)),
        }
    }
}
