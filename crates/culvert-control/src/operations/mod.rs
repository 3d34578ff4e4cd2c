//! The table of all operations, of the root and of each resource; and the resource information that the store
//! needs.

pub(crate) mod certificate_checks;
pub(crate) mod dry_run;
pub(crate) mod node_list;
mod noted_upstreams;
pub(crate) mod policy_analysis;
pub(crate) mod referrers;
pub(crate) mod resources;
pub(crate) mod root;
pub(crate) mod search;
pub(crate) mod search_objects;
pub(crate) mod upstreams;

use std::sync::OnceLock;

use culvert_endpoints::endpoint;
use culvert_resources::operation::{self, OperationSpec};
use culvert_resources::resource::ResourceType;
use culvert_resources::resource::operations::{extras_of, of_resource};
use culvert_store::Texts;

use crate::control::Control;
use crate::{audit_hold, grant};

/// One operation of the management API.
pub type Operation = operation::Operation<Control>;

/// All operations, by collection.
pub fn operations() -> &'static [Operation] {
    static OPERATIONS: OnceLock<Vec<Operation>> = OnceLock::new();
    OPERATIONS.get_or_init(|| {
        let identity = culvert_identity::operations().into_iter();
        let certificates = culvert_certificates::operations().into_iter();
        let endpoints = culvert_endpoints::operations().into_iter();
        let events = culvert_event_config::operations().into_iter();
        let agents = culvert_agents::operations().into_iter();
        let mut operations: Vec<Operation> = Vec::from_iter(root::operations());
        operations.extend(search::operations());
        operations.extend(referrers::operations());
        operations.extend(search_objects::operations());
        operations.extend(policy_analysis::operations());
        operations.extend(of_resource(&audit_hold::TYPE, &[]));
        operations.extend(of_resource(&grant::TYPE, &[]));
        operations.extend(identity.map(|one| one.within(|control: &Control| &*control.identity)));
        operations
            .extend(certificates.map(|one| one.within(|control: &Control| &*control.certificates)));
        operations.extend(endpoints.map(|one| one.within(|control: &Control| &*control.endpoints)));
        operations.extend(events.map(|one| one.within(|control: &Control| &*control.events)));
        operations.extend(extras_of(&endpoint::TYPE, dry_run::OPERATIONS));
        operations.extend(extras_of(&endpoint::TYPE, upstreams::OPERATIONS));
        operations.extend(
            certificate_checks::operations()
                .map(|one| one.within(|control: &Control| &*control.certificates)),
        );
        operations.extend(agents.map(|one| one.within(|control: &Control| &*control.agents)));
        operations.extend(node_list::operations());
        // Collections that are no resources come first.
        operations.sort_by_key(|operation| {
            resources::ALL
                .iter()
                .position(|ty| ty.collection == operation.collection)
                .map_or(0, |position| position + 1)
        });
        operations
    })
}

/// What clients need to know of all operations, by collection.
pub fn operation_specs() -> &'static [OperationSpec] {
    static SPECS: OnceLock<Vec<OperationSpec>> = OnceLock::new();
    SPECS.get_or_init(|| operations().iter().map(Operation::spec).collect())
}

/// The purpose of a collection, in one or two sentences.
pub fn collection_doc(collection: &str) -> &'static str {
    match collection {
        "api_key_rules" => {
            "Rules of API keys: how old they may get, and what they must be restricted to."
        }
        "events" => "Events: retained audit and traffic events.",
        "leaked_tokens" => "Leaked tokens: reports of tokens that were found in public.",
        "nodes" => "Nodes: the server processes of the installation.",
        "statistics" => "Statistics: traffic and deliveries over time.",
        collection => {
            let found = resources::ALL.iter().find(|ty| ty.collection == collection);
            found.map_or("", |ty| ty.doc)
        }
    }
}

/// The texts of stored forms that the store indexes: those that filters may name.
pub fn texts() -> Texts {
    let fields = |ty: &&'static ResourceType| {
        let kind = ty.kind;
        let fields = ty.filter.into_iter().flatten();
        fields.filter_map(move |field| Some((kind, field.stored()?)))
    };
    resources::ALL.iter().flat_map(fields).collect()
}
