//! Builds the audit event of a write: the kind from the resource's name, the object from its view.
//!
//! The object of an event is the view in the same order, without the fields that the resource keeps out of
//! events. So an event shows what the API shows, and cannot show anything that is not stored. The event of an update
//! also has the changed fields as they were.

pub mod counted;
pub mod previous;
pub mod refusals;
pub mod repeated;
pub mod trace;
pub mod verb;

use culvert_base::{Clock, Entropy, Fault, Timestamp};
use culvert_events::{Audit, EventId, Principal, Reference, Source};
use culvert_store::{AuditEvent, Document};
use indexmap::IndexMap;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Kernel;
use crate::access::tenant::Account;
use crate::audit::previous::Previous;
use crate::audit::verb::{Verb, kind_name};
use crate::cx::Cx;
use crate::cx::base::Base;
use crate::resource::model::Uri;
use crate::resource::{Audited, ResourceType};

/// The kind of the event of an agent that was accepted or refused.
pub const AGENT_SESSION_START: &str = "agent_session_start.v0";
/// The kind of the event of an agent's session that ended.
pub const AGENT_SESSION_STOP: &str = "agent_session_stop.v0";

/// The JSON schema (2020-12) of an event's object, for the catalogue.
pub fn schema_of<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12()
        .for_serialize()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// The event of a write that creates an object with this view, or removes it.
pub fn event(cx: &Cx<'_>, ty: &ResourceType, verb: Verb, view: &str) -> Result<AuditEvent, Fault> {
    Draft::of(cx).event(ty, verb, view, None)
}

/// The event of a write that changes an object.
pub fn updated(
    cx: &Cx<'_>,
    ty: &ResourceType,
    view: &str,
    previous: &Previous,
) -> Result<AuditEvent, Fault> {
    Draft::of(cx).event(ty, Verb::Updated, view, Some(previous))
}

/// The event of an operation that changes no object, or not only: of this kind, with this object.
pub fn operation(
    cx: &Cx<'_>,
    kind: &str,
    object: &impl Serialize,
) -> Result<culvert_base::Event, Fault> {
    let draft = Draft::of(cx);
    let audit = Audit {
        principal: draft.principal.as_ref(),
        cause: draft.cause,
        ..Audit::by_server(kind, draft.at, &draft.id, draft.account)
    };
    audit.about(object)
}

/// Who acts for a caller, as events show it.
pub fn principal(cx: &Cx<'_>) -> Principal {
    let key_id = cx.caller.key_id.as_str();
    let (source, collection) = match key_id.split_once('_') {
        // A person who signed in to the console without a key.
        None => (Source::Dashboard, None),
        Some(("cr", _)) => (Source::Agent, Some("credentials")),
        Some(("sshcr", _)) => (Source::Agent, Some("ssh_credentials")),
        Some(_) => (Source::Api, Some("api_keys")),
    };
    let credential = collection.map(|collection| Reference {
        id: key_id.to_owned(),
        uri: Uri {
            base: cx.base,
            collection,
            id: key_id,
        }
        .to_string(),
    });
    Principal {
        id: cx.caller.owner_id.clone(),
        subject: cx.caller.subject.clone(),
        source,
        credential,
        context: cx.caller.context.as_deref().cloned(),
    }
}

/// An event before its kind and object are known.
#[derive(Debug)]
pub struct Draft<'a> {
    /// `None` for the server itself.
    pub principal: Option<Principal>,
    /// `ev_…`.
    pub id: EventId,
    /// When it happened.
    pub at: Timestamp,
    /// `ac_…`.
    pub account: &'a str,
    /// `ev_…` of the event that it follows.
    pub cause: Option<&'a str>,
}

impl Kernel {
    /// An event of the server itself, of this kind, with this object.
    pub fn server_event(
        &self,
        kind: &str,
        account: &str,
        object: &impl Serialize,
    ) -> Result<culvert_base::Event, Fault> {
        let at = self.clock.now();
        let id = EventId::new(at, self.entropy.bytes());
        Audit::by_server(kind, at, &id, account).about(object)
    }

    /// The account of the installation, which has the events that are about no other one; `None` before the first start.
    pub async fn first_account(&self) -> Result<Option<String>, Fault> {
        let (key, value) = Account::FIRST;
        let found = self.store.find(Account::KIND, key, value).await?;
        Ok(found.map(|account| account.head.id))
    }

    /// The event of a write by the server itself that creates or removes a document.
    pub fn own_event(
        &self,
        ty: &ResourceType,
        verb: Verb,
        document: &Document,
    ) -> Result<AuditEvent, Fault> {
        let view = ty.view_text(document, self.base(&self.settings.base_url))?;
        let account = &document.head.account;
        let draft = Draft::by_server(&*self.clock, &*self.entropy, account);
        draft.event(ty, verb, &view, None)
    }

    /// The event of a write by the server itself that changes a document, unless only times of use change.
    pub fn own_update(
        &self,
        ty: &ResourceType,
        before: &Document,
        after: &Document,
    ) -> Result<AuditEvent, Fault> {
        let base = self.base(&self.settings.base_url);
        let draft = Draft::by_server(&*self.clock, &*self.entropy, &after.head.account);
        draft.update(ty, before, after, base)
    }
}

/// The event of a write that changes a document, unless only times of use change.
pub fn update(
    cx: &Cx<'_>,
    ty: &ResourceType,
    before: &Document,
    after: &Document,
) -> Result<AuditEvent, Fault> {
    Draft::of(cx).update(ty, before, after, cx.base)
}

impl<'a> Draft<'a> {
    /// An event of the server itself.
    pub fn by_server(clock: &dyn Clock, entropy: &dyn Entropy, account: &'a str) -> Self {
        let at = clock.now();
        Self {
            principal: None,
            id: EventId::new(at, entropy.bytes()),
            at,
            account,
            cause: None,
        }
    }

    /// The event of a write that changes a document, unless only times of use change.
    pub fn update(
        &self,
        ty: &ResourceType,
        before: &Document,
        after: &Document,
        base: Base<'_>,
    ) -> Result<AuditEvent, Fault> {
        let previous = Previous::between(ty, before, after, base)?;
        if !previous.has_changes {
            return Ok(AuditEvent::Suppress {
                reason: "nothing that its view shows has changed",
            });
        }
        let view = ty.view_text(after, base)?;
        self.event(ty, Verb::Updated, &view, Some(&previous))
    }

    fn of(cx: &Cx<'a>) -> Self {
        let at = cx.clock.now();
        Self {
            principal: (!cx.by_server).then(|| principal(cx)),
            id: EventId::new(at, cx.entropy.bytes()),
            at,
            account: &cx.caller.account,
            cause: cx.cause,
        }
    }

    /// The event of a write to an object with this view.
    pub fn event(
        &self,
        ty: &ResourceType,
        verb: Verb,
        view: &str,
        previous: Option<&Previous>,
    ) -> Result<AuditEvent, Fault> {
        if let Audited::By(_) = ty.audited {
            return Ok(AuditEvent::Suppress {
                reason: "events of other kinds report it",
            });
        }
        let unreadable = |error| Fault::new("reading a view for its event", error);
        let kind = kind_name(ty.name, verb);
        let audit = Audit {
            principal: self.principal.as_ref(),
            previous: previous.map(|previous| &*previous.fields),
            truncated: previous.map_or(&[], |previous| &previous.truncated),
            cause: self.cause,
            ..Audit::by_server(&kind, self.at, &self.id, self.account)
        };
        let event = if ty.not_in_events.is_empty() {
            let object: &RawValue = serde_json::from_str(view).map_err(unreadable)?;
            audit.about(&object)?
        } else {
            let mut object: IndexMap<&str, &RawValue> =
                serde_json::from_str(view).map_err(unreadable)?;
            object.retain(|name, _| !ty.not_in_events.contains(name));
            audit.about(&object)?
        };
        Ok(AuditEvent::Emit(event))
    }
}
