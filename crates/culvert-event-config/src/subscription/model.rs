//! Stored form and view of the event subscription.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_events::{EventKind, Family, kinds};
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Reference, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, OnDelete, Ref, Topic};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::destination::model::EventDestination;
use crate::event_kinds::TRAFFIC_CLASS;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct EventSubscription {
    /// Version of the stored form.
    pub format: Format<1>,
    /// What the subscription is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// The kinds of events it wants, each with a filter.
    pub sources: Vec<Source>,
    /// IDs of the destinations that get the events.
    pub destination_ids: Vec<String>,
    /// The owner whose rights decide about events about keys and credentials: the owner of the key that
    /// created the subscription, or the admin who changed it last. Empty if it was stored before this was
    /// recorded.
    #[serde(default)]
    pub owner_id: String,
}

/// One kind of event of a subscription.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Source {
    /// The kind of events, such as `api_key_created.v0`, or a class of kinds.
    #[serde(rename = "type")]
    pub kind: String,
    /// Empty for all.
    pub fields: Vec<String>,
    /// Empty for none.
    pub filter: String,
}

/// An event subscription as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventSubscription")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) metadata: &'a str,
    pub(crate) description: &'a str,
    pub(crate) sources: Vec<SourceView<'a>>,
    pub(crate) destinations: Vec<Reference<'a>>,
}

/// A source as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventSource")]
pub(crate) struct SourceView<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: &'a str,
    pub(crate) uri: String,
    /// Selected fields in the order as sent; empty for all.
    pub(crate) fields: &'a [String],
    /// The filter; empty for none.
    pub(crate) filter: &'a str,
}

impl Model for EventSubscription {
    const NAME: &'static str = "event_subscription";
    const COLLECTION: &'static str = "event_subscriptions";
    const LIST_FIELD: &'static str = "event_subscriptions";
    const ID_PREFIX: &'static str = "esb";
    const RIGHTS: Rights = Rights::PRIVATE;
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let uri = Uri {
            base,
            collection: Self::COLLECTION,
            id: &head.id,
        };
        View {
            id: &head.id,
            uri,
            created_at: head.created_at,
            metadata: &self.metadata,
            description: &self.description,
            sources: self.sources.iter().map(|source| source.view(uri)).collect(),
            destinations: self
                .destination_ids
                .iter()
                .map(|id| Reference::to(base, EventDestination::COLLECTION, id))
                .collect(),
        }
    }

    fn links(&self, _head: &Head) -> Links {
        let refs = self
            .destination_ids
            .iter()
            .map(|id| Ref::new("destination_ids", id, OnDelete::Block));
        let audited = self
            .sources
            .iter()
            .filter(|source| source.traffic().next().is_none());
        let topics = audited.flat_map(|source| {
            self.destination_ids.iter().map(|destination| Topic {
                kind: source.kind.clone(),
                destination: destination.clone(),
            })
        });
        Links {
            keys: Vec::new(),
            refs: refs.collect(),
            topics: topics.collect(),
        }
    }
}

impl Source {
    /// The traffic kinds of the source: one, all, or none if it has audit events.
    pub fn traffic(&self) -> impl Iterator<Item = &'static EventKind> {
        let is_one = |kind: &&EventKind| [kind.name, TRAFFIC_CLASS].contains(&&*self.kind);
        traffic_kinds().filter(is_one)
    }

    pub(crate) fn view<'a>(&'a self, subscription: Uri<'_>) -> SourceView<'a> {
        SourceView {
            kind: &self.kind,
            uri: format!("{subscription}/sources/{}", self.kind),
            fields: &self.fields,
            filter: &self.filter,
        }
    }
}

/// Every kind of traffic event.
pub(crate) fn traffic_kinds() -> impl Iterator<Item = &'static EventKind> {
    let is_traffic = |kind: &&'static EventKind| kind.family == Family::Traffic;
    kinds::ALL.iter().copied().filter(is_traffic)
}
