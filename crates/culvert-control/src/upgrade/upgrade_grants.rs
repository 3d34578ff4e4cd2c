//! Grants for references across owners from versions without grants, so that an upgrade breaks nothing and everything
//! can be reviewed. Runs once, when a server starts. Each grant has an event, and is listed by `culvert doctor`.
//!
//! A grant for an endpoint names the endpoint, and one for a subscription its owner. A policy whose URL is computed
//! gets grants on the internal endpoints whose URLs can be the result.

use std::collections::{BTreeMap, BTreeSet};

use culvert_base::{Clock, Description, Entropy, Fault, IdMaker};
use culvert_edge_config::ACTIONS;
use culvert_endpoints::endpoint::model::{Binding, Endpoint};
use culvert_endpoints::host;
use culvert_endpoints::vault::secret;
use culvert_endpoints::vault::secret_model::VaultSecret;
use culvert_event_config::destination;
use culvert_event_config::destination::model::EventDestination;
use culvert_event_config::subscription::model::EventSubscription;
use culvert_policy::Source;
use culvert_resources::access::Referrer;
use culvert_resources::access::caller::Role;
use culvert_resources::access::grant::{Grant, GrantedRight, Grantee};
use culvert_resources::access::user::User;
use culvert_resources::audit::verb::Verb;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::ResourceType;
use culvert_resources::resource::model::Model;
use culvert_resources::stored::Format;
use culvert_resources::stored::seal::Seal;
use culvert_resources::{access, audit, stored};
use culvert_store::{Changes, CommitError, Document, Head, Store};
use tracing::{info, warn};

use crate::grant;

/// The key that stores that this has completed.
const META: &str = "grants_of_references";
const DONE: &str = "1";

/// Description of the grants.
const DESCRIPTION: &str = "Made at the upgrade for a reference that existed.";

/// What making grants needs.
pub(crate) struct Maker<'a> {
    pub(crate) store: &'a Store,
    pub(crate) seal: &'a Seal,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) entropy: &'a dyn Entropy,
    pub(crate) ids: &'a IdMaker,
    /// The context of the views in events.
    pub(crate) base: Base<'a>,
}

/// An object that is referred to, and whom it must be granted to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Needed {
    account: String,
    object_id: String,
    owner_id: String,
    name: Option<String>,
    grantee: Grantee,
    grantee_owner_id: Option<String>,
}

impl Maker<'_> {
    /// Makes the grants. Does nothing if this has completed before.
    pub(crate) async fn run(&self) -> Result<(), Fault> {
        if self.store.meta_get(META).await?.as_deref() == Some(DONE) {
            return Ok(());
        }
        let needed = self.needed().await?;
        let mut known = BTreeSet::new();
        for document in self.store.all(Grant::KIND).await? {
            // An earlier start did not complete.
            let grant: Grant = stored::read(&document)?;
            known.insert((grant.object_id, grant.grantee));
        }
        let mut n_made = 0_usize;
        for one in needed {
            if !known.contains(&(one.object_id.clone(), one.grantee.clone())) {
                n_made += usize::from(self.make(one).await?);
            }
        }
        if n_made > 0 {
            warn!(
                grants = n_made,
                "references to objects of other owners got grants; review them with `culvert doctor` or in the console"
            );
        }
        self.store.meta_set(META, DONE).await
    }

    async fn needed(&self) -> Result<BTreeSet<Needed>, Fault> {
        let mut roles = BTreeMap::new();
        for document in self.store.all(User::KIND).await? {
            let user: User = stored::read(&document)?;
            roles.insert(document.head.id, user.role);
        }
        let is_admin =
            |owner_id: &str| owner_id.is_empty() || roles.get(owner_id) == Some(&Role::Admin);
        let endpoints = self.store.all(Endpoint::KIND).await?;
        let mut internal = Vec::new();
        for document in &endpoints {
            let endpoint: Endpoint = stored::read(document)?;
            if endpoint.binding == Binding::Internal {
                internal.push((document, endpoint));
            }
        }
        let mut needed = BTreeSet::new();
        for document in &endpoints {
            let endpoint: Endpoint = stored::read(document)?;
            let owner_id = endpoint.principal_id.as_str();
            let Some(policy) = endpoint.policy.as_ref().filter(|_| !is_admin(owner_id)) else {
                continue;
            };
            // An endpoint of an agent has another ID after a restart.
            let (grantee, grantee_owner_id) = match &endpoint.served {
                Some(_) => (Grantee::Owner(owner_id.to_owned()), None),
                None => (
                    Grantee::Endpoint(document.head.id.clone()),
                    Some(owner_id.to_owned()),
                ),
            };
            let mut add = |to: &Document, owner: Option<String>, name: Option<String>| {
                if owner.as_deref() != Some(owner_id) && to.head.account == document.head.account {
                    needed.insert(Needed {
                        account: to.head.account.clone(),
                        object_id: to.head.id.clone(),
                        owner_id: owner.unwrap_or_default(),
                        name,
                        grantee: grantee.clone(),
                        grantee_owner_id: grantee_owner_id.clone(),
                    });
                }
            };
            for id in &policy.names {
                if let Some(secret) = self.store.get(VaultSecret::KIND, id).await? {
                    let owner = secret::TYPE.owner_of(&secret)?;
                    add(&secret, owner, None);
                }
            }
            let text = policy.text(self.seal, &document.head.id)?;
            let source = match Source::read(&text, ACTIONS) {
                Ok(source) => source,
                Err(error) => {
                    warn!(endpoint.id = document.head.id, %error, "the policy of an endpoint cannot be read; it gets no grants");
                    continue;
                }
            };
            let mut reached: Vec<&(&Document, Endpoint)> = Vec::new();
            for name in source.internal_hosts() {
                if let Some(held) =
                    host::internal(self.store, &document.head.account, &name).await?
                {
                    let is_it =
                        |(to, _): &&(&Document, Endpoint)| held.endpoint_ids.contains(&to.head.id);
                    reached.extend(internal.iter().filter(is_it));
                }
            }
            for prefix in source.computed_url_prefixes() {
                let may_be = |(_, to): &&(&Document, Endpoint)| {
                    let url = &to.address.url;
                    to.address.host.starts_with('*')
                        || url.starts_with(&prefix)
                        || prefix.starts_with(url)
                };
                reached.extend(internal.iter().filter(may_be));
            }
            for (to, endpoint) in reached {
                let owner = endpoint.principal_id.clone();
                let owner = (!owner.is_empty()).then_some(owner);
                let name = endpoint
                    .served
                    .as_ref()
                    .map(|_| endpoint.address.host.clone());
                add(to, owner, name);
            }
        }
        for document in self.store.all(EventSubscription::KIND).await? {
            let subscription: EventSubscription = stored::read(&document)?;
            let owner_id = subscription.owner_id;
            for id in subscription.destination_ids {
                let Some(to) = self.store.get(EventDestination::KIND, &id).await? else {
                    continue;
                };
                let owner = destination::TYPE.owner_of(&to)?;
                let referrer = Referrer {
                    owner_id: &owner_id,
                    id: &document.head.id,
                };
                let role = is_admin(&owner_id).then_some(Role::Admin);
                if !access::is_user(referrer, role, owner.as_deref(), std::iter::empty()) {
                    needed.insert(Needed {
                        account: to.head.account,
                        object_id: to.head.id,
                        owner_id: owner.unwrap_or_default(),
                        name: None,
                        grantee: Grantee::Owner(owner_id.clone()),
                        grantee_owner_id: None,
                    });
                }
            }
        }
        Ok(needed)
    }

    /// Makes a grant with its event. Whether it did: the object or the grantee may be gone.
    async fn make(&self, needed: Needed) -> Result<bool, Fault> {
        let ty: &ResourceType = &grant::TYPE;
        let id = self.ids.next(self.clock, self.entropy);
        let head = Head {
            id: ty.stored_id_of(id),
            kind: ty.kind.to_owned(),
            account: needed.account,
            revision: 0,
            created_at: id.at(),
            updated_at: id.at(),
        };
        let description = Description::try_from(DESCRIPTION.to_owned());
        let form = Grant {
            format: Format,
            description: description.unwrap_or_default(),
            metadata: Default::default(),
            object_id: needed.object_id,
            owner_id: needed.owner_id,
            name: needed.name,
            grantee: needed.grantee,
            grantee_owner_id: needed.grantee_owner_id,
            right: GrantedRight::Use,
            expires_at: None,
            is_of_upgrade: true,
        };
        let document = Document {
            body: stored::write(&form)?,
            refs: form.links(&head).refs,
            keys: Vec::new(),
            topics: Vec::new(),
            head,
        };
        let view = ty.view_text(&document, self.base)?;
        let account = document.head.account.clone();
        let draft = audit::Draft::by_server(self.clock, self.entropy, &account);
        let event = draft.event(ty, Verb::Created, &view, None)?;
        info!(
            grant.id = document.head.id,
            object.id = form.object_id,
            grantee = form.grantee.name(),
            "granted the use of an object for a reference that existed"
        );
        match self.store.commit(Changes::insert(document, event)).await {
            Ok(_) => Ok(true),
            Err(CommitError::Fault(fault)) => Err(fault),
            Err(error) => {
                warn!(%error, "a grant for a reference that existed was not made");
                Ok(false)
            }
        }
    }
}
