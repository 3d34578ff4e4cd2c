//! Event subscription: which events, with which fields, go to which destinations (contract:
//! management API 2.5 and 2.6, events 10).
//!
//! A subscription's sources are parts of it and have operations of their own; the type is their key.
//! Sources of traffic kinds are checked by the code that will run them.

pub mod model;

use std::collections::HashSet;

use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Refusal, code};
use culvert_events::{Filter, Selection};
use culvert_resources::access::Referrer;
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::Trace;
use culvert_resources::cx::Cx;
use culvert_resources::cx::base::Base;
use culvert_resources::input::Problem;
use culvert_resources::list::listfilter;
use culvert_resources::list::listfilter::Field;
use culvert_resources::list::page::reference;
use culvert_resources::operation::{BodySpec, Call, Method, Reply, ResponseSpec, Status};
use culvert_resources::resource::model::{Model, Uri};
use culvert_resources::resource::{
    Draft, Extra, Resource, ResourceType, Running, StoredDraft, value_refusal,
};
use culvert_resources::service::RUNS_MAX;
use culvert_resources::stored::Format;
use culvert_resources::{Caller, Error, Role, access, input, service, stored};
use culvert_store::{Changes, Document, Head};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::destination::model::EventDestination;
use crate::event_kinds::{CLASSES, event_types};
use crate::subscription::model::{EventSubscription, Source, SourceView};
use crate::{EventConfig, destination, event_kinds};

/// The row of event subscriptions in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<EventSubscription>();

/// A new event subscription.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EventSubscriptionCreate", transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Event types of the subscription, each at most once; `audit` and `traffic` stand for all of a class.
    sources: Vec<SourceInput>,
    /// IDs of the event destinations that receive the events.
    #[schemars(extend("items" = {"type": "string", "pattern": input::id_pattern(EventDestination::PREFIXES)}))]
    destination_ids: Vec<String>,
}

/// Changes to an event subscription.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EventSubscriptionUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// Replaces all sources; an empty list changes nothing.
    sources: Option<Vec<SourceInput>>,
    /// Replaces all destinations; an empty list removes them.
    #[schemars(extend("items" = {"type": "string", "pattern": input::id_pattern(EventDestination::PREFIXES)}))]
    destination_ids: Option<Vec<String>>,
}

/// An event type of a subscription.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EventSourceCreate", extend("required" = ["type"]), transform = input::create_schema)]
struct SourceInput {
    /// A name of the event catalogue with its version, such as `http_request_complete.v0`. `audit` and `traffic` stand for
    /// all types of a class, those of later versions too; only admins subscribe to `audit`.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = source_types()))]
    kind: String,
    /// Fields to include, only for one type of traffic events; empty for all fields.
    fields: Option<Vec<String>>,
    /// CEL filter over `ev`, only for traffic events; empty for all events.
    filter: Option<String>,
}

/// Changes to a source.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EventSourceUpdate", transform = input::update_schema)]
struct SourceUpdate {
    /// Event type of the path; it cannot be changed.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = source_types()))]
    kind: Option<String>,
    /// Fields to include, only for traffic events; empty for all fields.
    fields: Option<Vec<String>>,
    /// CEL filter over `ev`, only for traffic events; empty for all events.
    filter: Option<String>,
}

impl Resource for EventSubscription {
    const DOC: &'static str = "Event subscriptions: rules that send events to destinations. Only admins subscribe to \
        events about keys, credentials and agent sessions.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::DELIVERY_VALUE_INVALID),
        ("metadata", code::DELIVERY_VALUE_INVALID),
    ];
    const UNKNOWN: Option<Code> = Some(code::DESTINATION_UNKNOWN);
    const CREATE_NEEDS_BODY: bool = false;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let sources = check_sources(input.sources)?;
        may_have(cx.caller, &sources)?;
        let id = format!("{}_{id}", Self::ID_PREFIX);
        let referrer = Referrer {
            owner_id: &cx.caller.owner_id,
            id: &id,
        };
        let (destination_ids, held) =
            check_destinations(cx, referrer, input.destination_ids, &[]).await?;
        let subscription = Self {
            format: Format,
            description: input.description,
            metadata: input.metadata,
            sources,
            destination_ids,
            owner_id: cx.caller.owner_id.clone(),
        };
        Ok(Draft {
            also: subscription.noted(cx).await?.and(held),
            ..Draft::of(subscription)
        })
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        // One client sends an empty list for a field that its caller did not set.
        if let Some(sources) = input.sources.filter(|sources| !sources.is_empty()) {
            let sources = check_sources(sources)?;
            may_add(cx.caller, &self.sources, &sources)?;
            self.sources = sources;
        }
        self.adopt(cx.caller);
        let mut held = Changes::default();
        if let Some(ids) = input.destination_ids {
            let referrer = Referrer {
                owner_id: &self.owner_id,
                id: &head.id,
            };
            (self.destination_ids, held) =
                check_destinations(cx, referrer, ids, &self.destination_ids).await?;
        }
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        Ok(Draft {
            also: self.noted(cx).await?.and(held),
            ..Draft::of(self)
        })
    }
}

impl Source {
    /// Checks the source and removes duplicate fields. `place` is a prefix of error messages.
    fn check(mut self, place: &str) -> Result<Self, Refusal> {
        let at = |refusal: Refusal| Refusal {
            message: format!("{place}{}", refusal.message).into(),
            ..refusal
        };
        let traffic = self.traffic().next();
        if CLASSES.contains(&&*self.kind) {
            // The fields of its types differ.
            if !self.fields.is_empty() {
                return Err(at(Refusal::of(code::FIELDS_NOT_TRAFFIC)));
            }
            if !self.filter.is_empty() {
                return Err(at(Refusal::of(code::FILTER_NOT_TRAFFIC)));
            }
        } else if let Some(kind) = traffic {
            let mut seen = HashSet::new();
            self.fields.retain(|field| seen.insert(field.clone()));
            Selection::parse(kind, &self.fields).map_err(at)?;
            if !self.filter.is_empty() {
                Filter::compile(kind, &self.filter).map_err(at)?;
            }
        } else if event_kinds::is_kind(&self.kind) {
            if !self.fields.is_empty() {
                return Err(at(Refusal::of(code::FIELDS_NOT_TRAFFIC)));
            }
            if !self.filter.is_empty() {
                return Err(at(Refusal::of(code::FILTER_NOT_TRAFFIC)));
            }
        } else {
            let valid = format!("; valid types: {}", source_types().join(", "));
            return Err(at(event_kinds::unknown(&self.kind, &valid)));
        }
        Ok(self)
    }
}

impl From<SourceInput> for Source {
    fn from(input: SourceInput) -> Self {
        Self {
            kind: input.kind,
            fields: input.fields.unwrap_or_default(),
            filter: input.filter.unwrap_or_default(),
        }
    }
}

/// Refuses a subscription to events about keys and credentials (630), unless the caller is an admin.
fn may_have(caller: &Caller, sources: &[Source]) -> Result<(), Refusal> {
    match sources
        .iter()
        .find(|one| event_kinds::is_private(&one.kind))
    {
        Some(source) => event_kinds::may_follow(caller, &source.kind),
        None => Ok(()),
    }
}

/// Refuses sources for admins (630) that a subscription did not have. Its owner may lose the role and keep the
/// subscription, which delivers no such events then.
fn may_add(caller: &Caller, before: &[Source], sources: &[Source]) -> Result<(), Refusal> {
    let is_new = |source: &&Source| before.iter().all(|other| other.kind != source.kind);
    let new: Vec<Source> = sources.iter().filter(is_new).cloned().collect();
    may_have(caller, &new)
}

/// Whether a stored subscription includes events about keys and credentials.
pub fn is_private(document: &Document) -> Result<bool, Fault> {
    Ok(stored::read::<EventSubscription>(document)?.has_private())
}

fn check_sources(given: Vec<SourceInput>) -> Result<Vec<Source>, Refusal> {
    let mut sources: Vec<Source> = Vec::new();
    for (index, input) in given.into_iter().enumerate() {
        let place = match source_types().contains(&input.kind) {
            true => format!("Source {} (`{}`): ", index + 1, input.kind),
            false => format!("Source {}: ", index + 1),
        };
        // Each type is known and listed once, which limits the list to the catalogue.
        let source = Source::from(input).check(&place)?;
        check_repeated(&sources, &source, &place)?;
        sources.push(source);
    }
    Ok(sources)
}

/// Refuses a type that one of these sources has, named or in a class: its events would be delivered twice.
fn check_repeated(sources: &[Source], source: &Source, place: &str) -> Result<(), Refusal> {
    let kinds = event_kinds::kinds_of(&source.kind);
    let is_shared = |other: &&Source| {
        let others = event_kinds::kinds_of(&other.kind);
        others.iter().any(|kind| kinds.contains(kind))
    };
    let why = match sources.iter().find(is_shared) {
        None => return Ok(()),
        Some(other) if other.kind == source.kind => "the event type is repeated".to_owned(),
        Some(other) => format!(
            "`{}` and `{}` have the same events",
            other.kind, source.kind
        ),
    };
    let message = format!("{place}{why}.");
    Err(Refusal::new(code::EVENT_TYPE_REPEATED, message))
}

/// The types that a source may have.
fn source_types() -> Vec<String> {
    let classes = CLASSES.map(str::to_owned).into_iter();
    event_types().into_iter().chain(classes).collect()
}

/// Removes duplicates; refuses IDs that are not destinations of the caller's account, and those that the owner of the
/// subscription may not use. `before` are the destinations that it has.
pub(crate) async fn check_destinations(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    given: Vec<String>,
    before: &[String],
) -> Result<(Vec<String>, Changes), Error> {
    let mut seen = HashSet::new();
    let mut ids = Vec::new();
    let mut held = Changes::default();
    for (index, id) in given.into_iter().enumerate() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let ty = &destination::TYPE;
        reference(&format!("destination_ids[{index}]"), &id, ty.prefixes)?;
        let document = cx.own(ty.kind, &id).await?.ok_or_else(|| {
            let why = format!("The event destination `{id}` does not exist.");
            Refusal::new(code::DESTINATION_UNKNOWN, why)
        })?;
        let is_known = before.contains(&id);
        held = held.and(access::may_use(cx, referrer, ty, &document, is_known).await?);
        ids.push(id);
    }
    Ok((ids, held))
}

/// The operations of sources, and the health.
pub const OPERATIONS: &[Extra<EventConfig>] = &[
    Extra {
        name: "get_health",
        method: Method::Get,
        suffix: "/health",
        doc: "Gets whether an event subscription delivers: whether its owner may use each of its destinations.",
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<HealthView<'static>>),
        },
        query: &[],
        access: Access::See,
        trace: Trace::Nothing,
        run: run_health,
    },
    Extra {
        name: "create_source",
        method: Method::Post,
        suffix: "/sources",
        doc: "Adds an event type to an event subscription.",
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<SourceInput>,
            required: true,
        }),
        response: ResponseSpec {
            status: Status::Created,
            schema: Some(SchemaGenerator::subschema_for::<SourceView<'static>>),
        },
        query: &[],
        access: Access::Change,
        trace: Trace::Objects,
        run: run_create_source,
    },
    Extra {
        name: "list_sources",
        method: Method::Get,
        suffix: "/sources",
        doc: "Lists the event types of an event subscription.",
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(sources_schema),
        },
        query: &[],
        access: Access::See,
        trace: Trace::Nothing,
        run: run_list_sources,
    },
    Extra {
        name: "get_source",
        method: Method::Get,
        suffix: "/sources/{type}",
        doc: "Gets an event type of an event subscription.",
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<SourceView<'static>>),
        },
        query: &[],
        access: Access::See,
        trace: Trace::Nothing,
        run: run_get_source,
    },
    Extra {
        name: "update_source",
        method: Method::Patch,
        suffix: "/sources/{type}",
        doc: "Updates the fields or the filter of an event type of an event subscription.",
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<SourceUpdate>,
            required: false,
        }),
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<SourceView<'static>>),
        },
        query: &[],
        access: Access::Change,
        trace: Trace::Objects,
        run: run_update_source,
    },
    Extra {
        name: "delete_source",
        method: Method::Delete,
        suffix: "/sources/{type}",
        doc: "Removes an event type from an event subscription.",
        body: None,
        response: ResponseSpec {
            status: Status::NoContent,
            schema: None,
        },
        query: &[],
        access: Access::Change,
        trace: Trace::Objects,
        run: run_delete_source,
    },
];

/// Whether a subscription delivers.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventSubscriptionHealth")]
struct HealthView<'a> {
    /// `ok`, or `withheld` if some destinations get nothing.
    #[schemars(extend("enum" = ["ok", "withheld"]))]
    state: &'static str,
    destinations: Vec<DestinationView<'a>>,
}

/// Whether a destination of a subscription gets its events.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventSubscriptionDestinationHealth")]
struct DestinationView<'a> {
    /// ID of the destination.
    id: &'a str,
    /// `ok`, or `withheld` if the owner of the subscription may not use the destination: a grant is missing or
    /// has ended.
    #[schemars(extend("enum" = ["ok", "withheld"]))]
    state: &'static str,
}

fn run_health(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let cx = events.kernel.cx(&call.caller, &call.base);
        let (subscription, document) = of_call(events, &call).await?;
        let referrer = Referrer {
            owner_id: &subscription.owner_id,
            id: &document.head.id,
        };
        let mut destinations = Vec::new();
        for id in &subscription.destination_ids {
            let ty = &destination::TYPE;
            let is_used = match cx.own(ty.kind, id).await? {
                Some(document) => access::is_used_by(&cx, referrer, ty, &document).await?,
                None => false,
            };
            destinations.push(DestinationView {
                id,
                state: if is_used { "ok" } else { "withheld" },
            });
        }
        let is_ok = destinations.iter().all(|one| one.state == "ok");
        Ok(Reply::Ok(stored::write(&HealthView {
            state: if is_ok { "ok" } else { "withheld" },
            destinations,
        })?))
    })
}

fn sources_schema(generator: &mut SchemaGenerator) -> Schema {
    let source = generator.subschema_for::<SourceView<'static>>();
    json_schema!({
        "type": "object",
        "required": ["sources", "uri"],
        "properties": {
            "sources": { "type": "array", "items": source },
            "uri": { "type": "string" },
        },
    })
}

fn run_create_source(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let input: SourceInput = input::create(call.body.clone()).map_err(shape)?;
        let source = Source::from(input);
        let body = change(events, &call, |subscription| {
            let source = source.clone().check("")?;
            check_repeated(&subscription.sources, &source, "")?;
            subscription.sources.push(source);
            Ok(Some(subscription.sources.len() - 1))
        })
        .await?;
        Ok(Reply::Created {
            body,
            secret: false,
        })
    })
}

fn run_list_sources(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        // The one list without pages.
        if !call.query.is_empty() {
            return Err(Refusal::new(
                code::QUERY_PARAMETER_UNKNOWN,
                "This list has no parameters.",
            )
            .into());
        }
        let (subscription, Document { head, .. }) = of_call(events, &call).await?;
        let view = subscription.view(&head, events.kernel.base(&call.base));
        let list = SourceList {
            uri: format!("{}/sources", view.uri),
            sources: view.sources,
        };
        Ok(Reply::Ok(stored::write(&list)?))
    })
}

fn run_get_source(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let (subscription, document) = of_call(events, &call).await?;
        let index = subscription.position(&call)?;
        call.terms.conditions.check(&document, false)?;
        call.terms.show(&document);
        let head = document.head;
        Ok(Reply::Ok(subscription.source_text(
            index,
            &head,
            events.kernel.base(&call.base),
        )?))
    })
}

fn run_update_source(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let input = input::update::<SourceUpdate>(call.body.clone())
            .map_err(shape)?
            .input;
        let named = call.path.get(1).map(String::as_str);
        if input.kind.is_some() && input.kind.as_deref() != named {
            return Err(Refusal::new(
                code::BODY_FIELD_INVALID,
                "`type` must match the type in the path; it cannot be changed.",
            )
            .into());
        }
        let body = change(events, &call, |subscription| {
            let index = subscription.position(&call)?;
            let mut source = subscription.sources.remove(index);
            source.fields = input.fields.clone().unwrap_or(source.fields);
            source.filter = input.filter.clone().unwrap_or(source.filter);
            subscription.sources.insert(index, source.check("")?);
            Ok(Some(index))
        })
        .await?;
        Ok(Reply::Ok(body))
    })
}

fn run_delete_source(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        change(events, &call, |subscription| {
            let index = subscription.position(&call)?;
            subscription.sources.remove(index);
            Ok(None)
        })
        .await?;
        Ok(Reply::NoContent)
    })
}

#[derive(Serialize)]
struct SourceList<'a> {
    sources: Vec<SourceView<'a>>,
    uri: String,
}

impl EventSubscription {
    /// Whether it includes events about keys and credentials.
    fn has_private(&self) -> bool {
        self.private_kinds().next().is_some()
    }

    /// The kinds of such events that it includes.
    pub fn private_kinds(&self) -> impl Iterator<Item = &str> {
        let kinds = self.sources.iter().map(|source| source.kind.as_str());
        kinds.filter(|kind| event_kinds::is_private(kind))
    }

    /// Makes an admin, who may receive such events, the owner of a subscription that includes them.
    fn adopt(&mut self, caller: &Caller) {
        if self.has_private() && caller.role == Role::Admin {
            self.owner_id.clone_from(&caller.owner_id);
        }
    }

    /// The write that records at the destinations that they receive events about keys and credentials, if they do.
    async fn noted(&self, cx: &Cx<'_>) -> Result<Changes, Error> {
        match self.has_private() {
            true => destination::note_private(cx, &self.destination_ids).await,
            false => Ok(Changes::default()),
        }
    }

    /// The index of the source that the path names.
    fn position(&self, call: &Call) -> Result<usize, Refusal> {
        let named = call.path.get(1).map(String::as_str);
        self.sources
            .iter()
            .position(|source| Some(source.kind.as_str()) == named)
            .ok_or_else(|| Refusal::of(code::EVENT_SOURCE_UNKNOWN))
    }

    /// The view of one source, JSON text.
    fn source_text(&self, index: usize, head: &Head, base: Base<'_>) -> Result<String, Error> {
        let uri = Uri {
            base,
            collection: Self::COLLECTION,
            id: &head.id,
        };
        let source = self.sources.get(index);
        let source = source.ok_or_else(|| Refusal::of(code::EVENT_SOURCE_UNKNOWN))?;
        Ok(stored::write(&source.view(uri))?)
    }
}

/// The caller's subscription that the path names.
async fn of_call(
    events: &EventConfig,
    call: &Call,
) -> Result<(EventSubscription, Document), Error> {
    let cx = events.kernel.cx(&call.caller, &call.base);
    let document = service::named(&cx, &TYPE, call).await?;
    let document = document.ok_or_else(|| Refusal::of(code::SUBSCRIPTION_UNKNOWN))?;
    Ok((stored::read(&document)?, document))
}

/// Changes the sources of the subscription that the path names. `edit` returns the index of the source to
/// show.
async fn change(
    events: &EventConfig,
    call: &Call,
    edit: impl Fn(&mut EventSubscription) -> Result<Option<usize>, Refusal>,
) -> Result<String, Error> {
    let change = |call| change_locked(events, call, edit);
    service::locked(&events.kernel, &TYPE, call, change).await
}

async fn change_locked(
    events: &EventConfig,
    call: &Call,
    edit: impl Fn(&mut EventSubscription) -> Result<Option<usize>, Refusal>,
) -> Result<String, Error> {
    let cx = events.kernel.cx_of(call, &[])?;
    for _ in 0..RUNS_MAX {
        let (mut subscription, document) = of_call(events, call).await?;
        EventSubscription::permit(cx.caller)?;
        let held = access::may_change(&cx, &TYPE, &document).await?;
        let before = subscription.sources.clone();
        let index = edit(&mut subscription)?;
        may_add(cx.caller, &before, &subscription.sources)?;
        let shown = match index {
            Some(index) => subscription.source_text(index, &document.head, cx.base)?,
            None => String::new(),
        };
        subscription.adopt(cx.caller);
        let also = subscription.noted(&cx).await?.and(held);
        let made = StoredDraft {
            body: stored::write(&subscription)?,
            links: subscription.links(&document.head),
            reveal: None,
            also,
        };
        // The one that may be repeated with a key adds a source.
        let answer = |_: &str| Ok((shown.clone(), true));
        if service::replace_answered(&cx, &TYPE, document, made, answer)
            .await?
            .is_some()
        {
            return Ok(shown);
        }
    }
    Err(service::overtaken())
}

/// Sources have no error codes for single values: both problems are errors of the body.
fn shape(problem: Problem) -> Refusal {
    value_refusal::<EventSubscription>(problem)
}
