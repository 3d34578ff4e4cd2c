//! Stores the references of objects from older versions, which did not record them, so that no object in use
//! can be deleted. Runs once, when a server starts.

use std::collections::{BTreeMap, BTreeSet};

use culvert_access::ip::policy;
use culvert_access::ip::policy_rule_model::IpPolicyRule;
use culvert_base::Fault;
use culvert_endpoints::endpoint::model::Endpoint;
use culvert_endpoints::reserved_domain::model::ReservedDomain;
use culvert_endpoints::{endpoint, host, reserved_domain};
use culvert_event_config::destination::model::EventDestination;
use culvert_event_config::subscription::model::EventSubscription;
use culvert_resources::access::grant::Grant;
use culvert_resources::audit::verb::{Verb, kind_name};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Audited, Resource, ResourceType};
use culvert_resources::stored;
use culvert_resources::stored::seal::Seal;
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, Ref};
use serde::Deserialize;
use serde_json::Value;
use tracing::{info, warn};

use crate::operations::resources::ALL;

/// The key that stores which version of this has completed.
const META: &str = "references";
const DONE: &str = "1";

const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "the object stays as it is; what it names is written down beside it",
};

/// Stores the references of all objects. Does nothing if this has completed before.
pub(crate) async fn relink(store: &culvert_store::Store, seal: &Seal) -> Result<(), Fault> {
    note_owners(store).await?;
    recover_owners(store).await?;
    note_private_destinations(store).await?;
    note_references(store, seal).await?;
    note_targets(store, seal).await?;
    note_urls(store).await
}

/// Stores the URLs of endpoints as this version writes them, so that lists find them.
async fn note_urls(store: &culvert_store::Store) -> Result<(), Fault> {
    const META: &str = "endpoint_urls";
    if store.meta_get(META).await?.as_deref() == Some(DONE) {
        return Ok(());
    }
    let mut is_complete = true;
    for document in store.all(Endpoint::KIND).await? {
        let form: Endpoint = stored::read(&document)?;
        let written: Value = stored::read(&document)?;
        if written["address"]["url"] != form.address.url {
            is_complete &= replace(store, document, &form).await?;
        }
    }
    match is_complete {
        true => store.meta_set(META, DONE).await,
        false => Ok(()),
    }
}

/// Stores the references of objects, and the names of endpoints.
async fn note_references(store: &culvert_store::Store, seal: &Seal) -> Result<(), Fault> {
    if store.meta_get(META).await?.as_deref() == Some(DONE) {
        return Ok(());
    }
    let mut n_written = 0;
    for document in store.all(Endpoint::KIND).await? {
        let mut form: Endpoint = stored::read(&document)?;
        form.note_names(store, seal, &document.head).await?;
        let name = form.host_name(&document.head.account);
        host::note(store, &document.head, &name, form.principal_id()).await?;
        n_written += usize::from(write(store, &endpoint::TYPE, document, &form).await?);
    }
    for document in store.all(ReservedDomain::KIND).await? {
        let form: ReservedDomain = stored::read(&document)?;
        n_written += usize::from(write(store, &reserved_domain::TYPE, document, &form).await?);
    }
    if n_written > 0 {
        info!(objects = n_written, "indexed references of older objects");
    }
    store.meta_set(META, DONE).await
}

/// Stores whose internal endpoints the policies of earlier versions mean: those that are there.
async fn note_targets(store: &culvert_store::Store, seal: &Seal) -> Result<(), Fault> {
    const META: &str = "forward_targets";
    if store.meta_get(META).await?.as_deref() == Some(DONE) {
        return Ok(());
    }
    let mut is_complete = true;
    for document in store.all(Endpoint::KIND).await? {
        let mut form: Endpoint = stored::read(&document)?;
        let Some(policy) = &mut form.policy else {
            continue;
        };
        if let Err(fault) = policy.note_targets(store, seal, &document.head).await {
            warn!(endpoint.id = document.head.id, cause = %fault.chain(), "the policy of an endpoint cannot be read");
            is_complete = false;
            continue;
        }
        if policy.forwards_to.is_empty() {
            continue;
        }
        let body = stored::write(&form)?;
        let changed = Document { body, ..document };
        if let Err(error) = store.commit(Changes::replace(changed, NOTHING)).await {
            if let CommitError::Fault(fault) = error {
                return Err(fault);
            }
            // Another server does this concurrently.
            is_complete = false;
        }
    }
    match is_complete {
        true => store.meta_set(META, DONE).await,
        false => Ok(()),
    }
}

/// Stores the missing owners of subscriptions to events about keys and credentials: the principal of the
/// latest audit event about each. A subscription that is not in the audit log waits for an admin.
async fn note_owners(store: &culvert_store::Store) -> Result<(), Fault> {
    const META: &str = "subscription_owners";
    if store.meta_get(META).await?.as_deref() == Some(DONE) {
        return Ok(());
    }
    let mut ownerless = BTreeMap::new();
    for document in store.all(EventSubscription::KIND).await? {
        let form: EventSubscription = stored::read(&document)?;
        if form.owner_id.is_empty() && form.private_kinds().next().is_some() {
            ownerless.insert(document.head.id.clone(), (document, form));
        }
    }
    let mut seq = 0;
    while !ownerless.is_empty() {
        let rows = store.outbox_after(seq, ROWS).await?;
        let Some(last) = rows.last() else { break };
        seq = last.seq;
        for row in &rows {
            if !row.event.kind.starts_with("event_subscription_") {
                continue;
            }
            let event: AboutObject = match serde_json::from_str(&row.event.body) {
                Ok(event) => event,
                Err(_) => continue,
            };
            if let (Some((_, form)), Some(principal)) =
                (ownerless.get_mut(&event.object.id), event.principal)
            {
                form.owner_id = principal.id;
            }
        }
    }
    let mut is_complete = true;
    for (id, (document, form)) in ownerless {
        if form.owner_id.is_empty() {
            warn!(
                subscription.id = id,
                "the owner of a subscription to events about keys is not known; it gets them once an admin has updated it"
            );
            continue;
        }
        is_complete &= replace(store, document, &form).await?;
    }
    match is_complete {
        true => store.meta_set(META, DONE).await,
        false => Ok(()),
    }
}

/// Stores the missing owners of objects from versions that did not record them: the principal of the audit event of the
/// creation. What the audit log does not have belongs to the admins. Rules of IP policies belong to the owner of the
/// policy, and managed certificates to the owner of the domain.
async fn recover_owners(store: &culvert_store::Store) -> Result<(), Fault> {
    const META: &str = "owners";
    if store.meta_get(META).await?.as_deref() == Some(DONE) {
        return Ok(());
    }
    let audited = ALL.iter().filter(|ty| ty.audited == Audited::Own);
    let audited = audited.filter(|ty| ty.owned_by.is_some() && ty.kind != Grant::KIND);
    let mut ownerless = BTreeMap::new();
    let mut created = BTreeMap::new();
    for ty in audited {
        created.insert(kind_name(ty.name, Verb::Created), ());
        for document in store.all(ty.kind).await? {
            if ty.owner_of(&document)?.is_none() {
                ownerless.insert(document.head.id.clone(), (*ty, document));
            }
        }
    }
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    let mut seq = 0;
    while owners.len() < ownerless.len() {
        let rows = store.outbox_after(seq, ROWS).await?;
        let Some(last) = rows.last() else { break };
        seq = last.seq;
        for row in rows
            .iter()
            .filter(|row| created.contains_key(&row.event.kind))
        {
            let Ok(event) = serde_json::from_str::<AboutObject>(&row.event.body) else {
                continue;
            };
            if let (true, Some(principal)) =
                (ownerless.contains_key(&event.object.id), event.principal)
            {
                owners.insert(event.object.id, principal.id);
            }
        }
    }
    // These follow another object, whose owner may have been recovered just now.
    let known = async |ty: &ResourceType, id: &str| -> Result<Option<String>, Fault> {
        match (owners.get(id), store.get(ty.kind, id).await?) {
            (Some(owner), _) => Ok(Some(owner.clone())),
            (None, Some(document)) => ty.owner_of(&document),
            (None, None) => Ok(None),
        }
    };
    let mut followed = BTreeMap::new();
    for (id, (ty, document)) in &ownerless {
        if ty.kind == IpPolicyRule::KIND {
            let rule: IpPolicyRule = stored::read(document)?;
            followed.insert(id.clone(), known(&policy::TYPE, &rule.ip_policy_id).await?);
        }
    }
    for document in store.all(ReservedDomain::KIND).await? {
        let domain: ReservedDomain = stored::read(&document)?;
        if let (Some(id), Some(_)) = (&domain.certificate_id, &domain.management) {
            let owner = known(&reserved_domain::TYPE, &document.head.id).await?;
            followed.insert(id.clone(), owner);
        }
    }
    for (id, owner) in followed {
        match owner {
            Some(owner) => owners.insert(id, owner),
            None => owners.remove(&id),
        };
    }
    let mut is_complete = true;
    let mut n_unknown = 0_usize;
    for (id, (ty, document)) in ownerless {
        let (Some(owner), Some(field)) = (owners.remove(&id), ty.owned_by) else {
            n_unknown += 1;
            continue;
        };
        let mut form: serde_json::Map<String, Value> = stored::read(&document)?;
        form.insert(field.to_owned(), owner.into());
        is_complete &= replace(store, document, &form).await?;
    }
    if n_unknown > 0 {
        info!(
            objects = n_unknown,
            "the audit log does not have the owners of older objects; they belong to the admins"
        );
    }
    match is_complete {
        true => store.meta_set(META, DONE).await,
        false => Ok(()),
    }
}

/// Marks the destinations of older subscriptions to events about keys and credentials. Without the mark, any
/// owner could change such a destination once the subscription is gone, while events are still queued for it.
async fn note_private_destinations(store: &culvert_store::Store) -> Result<(), Fault> {
    const META: &str = "private_destinations";
    if store.meta_get(META).await?.as_deref() == Some(DONE) {
        return Ok(());
    }
    let mut ids = BTreeSet::new();
    for document in store.all(EventSubscription::KIND).await? {
        let form: EventSubscription = stored::read(&document)?;
        if form.private_kinds().next().is_some() {
            ids.extend(form.destination_ids);
        }
    }
    let mut is_complete = true;
    for id in ids {
        let Some(document) = store.get(EventDestination::KIND, &id).await? else {
            continue;
        };
        let mut form: EventDestination = stored::read(&document)?;
        if std::mem::replace(&mut form.has_private, true) {
            continue;
        }
        is_complete &= replace(store, document, &form).await?;
    }
    match is_complete {
        true => store.meta_set(META, DONE).await,
        false => Ok(()),
    }
}

/// Replaces a document. Whether it was replaced: if another node changed it meanwhile, the next start tries again.
async fn replace(
    store: &culvert_store::Store,
    document: Document,
    form: &impl serde::Serialize,
) -> Result<bool, Fault> {
    let body = stored::write(form)?;
    let changed = Document { body, ..document };
    match store.commit(Changes::replace(changed, NOTHING)).await {
        Ok(_) => Ok(true),
        Err(CommitError::Fault(fault)) => Err(fault),
        Err(_) => Ok(false),
    }
}

/// Audit log rows per read.
const ROWS: u32 = 500;

/// The part of an audit event about an object that names its owner.
#[derive(Deserialize)]
struct AboutObject {
    principal: Option<Named>,
    object: Named,
}

#[derive(Deserialize)]
struct Named {
    id: String,
}

/// Stores the references of a document if they differ from its stored form. Returns whether it wrote them. If
/// an object that it refers to no longer exists, the document is left unchanged and the reference is refused at
/// run time.
async fn write<R: Resource<S>, S>(
    store: &culvert_store::Store,
    ty: &ResourceType,
    document: Document,
    form: &R,
) -> Result<bool, Fault> {
    let refs: Vec<Ref> = form.links(&document.head).refs;
    if refs == document.refs {
        return Ok(false);
    }
    let Head { id, .. } = document.head.clone();
    let changed = Document {
        body: stored::write(form)?,
        refs,
        ..document
    };
    match store.commit(Changes::replace(changed, NOTHING)).await {
        Ok(_) => Ok(true),
        Err(CommitError::Fault(fault)) => Err(fault),
        Err(error) => {
            warn!(object = id, kind = ty.kind, %error, "indexing the references of an object failed");
            Ok(false)
        }
    }
}
