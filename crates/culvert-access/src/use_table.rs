//! The grants in force and the roles of owners, by which the compiled state decides who may use an object. The same
//! rule as for writes ([`access::is_user`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use culvert_base::{Fault, Timestamp};
use culvert_resources::access::Referrer;
use culvert_resources::access::bot_user::BotUser;
use culvert_resources::access::caller::Role;
use culvert_resources::access::grant::{Grant, Grantee};
use culvert_resources::access::user::User;
use culvert_resources::resource::model::Model;
use culvert_resources::stored::informer_cache::InformerCache;
use culvert_resources::{access, stored};
use culvert_store::{Document, Store};
use tracing::error;

/// Who may use what, at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UseTable {
    /// The roles of users and bots. Those deleted have none.
    roles: HashMap<String, Role>,
    /// By the ID of the object.
    by_object: HashMap<String, Vec<Given>>,
    /// By the owner and the internal name of endpoints of agents.
    by_name: HashMap<String, HashMap<String, Vec<Grantee>>>,
}

/// Whom the grant of an owner names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    /// The owner of the granted object.
    owner_id: String,
    grantee: Grantee,
}

impl UseTable {
    /// The table of these grants, users and bots. Those that cannot be read give no right.
    pub fn of_documents(
        grants: &[Document],
        users: &[Document],
        bots: &[Document],
        now: Timestamp,
    ) -> Self {
        let grants = grants
            .iter()
            .filter_map(|one| stored::read::<Grant>(one).ok());
        let grants: Vec<Grant> = grants.filter(|grant| grant.is_live(now)).collect();
        let user = |document: &Document| {
            let user: User = stored::read(document).ok()?;
            Some((document.head.id.clone(), user.role))
        };
        let bot = |document: &Document| (document.head.id.clone(), Role::Member);
        let roles = users.iter().filter_map(user);
        Self::compiled(roles.chain(bots.iter().map(bot)).collect(), grants.iter())
    }

    /// The table of these roles and grants in force.
    fn compiled<'g>(roles: HashMap<String, Role>, live: impl Iterator<Item = &'g Grant>) -> Self {
        let mut table = Self {
            roles,
            ..Self::default()
        };
        // In a stable order, so that equal grants are equal tables.
        let mut of_objects: BTreeMap<&str, Vec<Given>> = BTreeMap::new();
        for grant in live {
            match &grant.name {
                None => {
                    let of_object = of_objects.entry(&grant.object_id).or_default();
                    of_object.push(Given {
                        owner_id: grant.owner_id.clone(),
                        grantee: grant.grantee.clone(),
                    });
                }
                Some(name) => {
                    let of_owner = table.by_name.entry(grant.owner_id.clone()).or_default();
                    let of_name = of_owner.entry(name.clone()).or_default();
                    of_name.push(grant.grantee.clone());
                }
            }
        }
        let of_objects = of_objects.into_iter();
        table.by_object = of_objects
            .map(|(id, grantees)| (id.to_owned(), grantees))
            .collect();
        table
    }

    /// Whether a referring object may use an object of that owner. `ids` are those of the object, and of the vault that
    /// it is in.
    pub fn is_user(
        &self,
        referrer: Referrer<'_>,
        object_owner: Option<&str>,
        ids: &[&str],
    ) -> bool {
        let given = ids.iter().filter_map(|id| self.by_object.get(*id));
        // The owner of a vault grants the secrets of others in it only as an admin.
        let may_give = |given: &&Given| {
            object_owner == Some(&*given.owner_id)
                || self.role(&given.owner_id) == Some(Role::Admin)
        };
        let grants = given.flatten().filter(may_give).map(|one| &one.grantee);
        access::is_user(referrer, self.role(referrer.owner_id), object_owner, grants)
    }

    /// Whether a referring object may use the endpoint that an agent of that owner serves at an internal name.
    pub fn is_user_of_name(&self, referrer: Referrer<'_>, owner_id: &str, name: &str) -> bool {
        let of_owner = self.by_name.get(owner_id);
        let grants = of_owner.and_then(|names| names.get(name));
        let role = self.role(referrer.owner_id);
        access::is_user(referrer, role, Some(owner_id), grants.into_iter().flatten())
    }

    /// The role of an owner; `None` if the owner was deleted.
    pub fn role(&self, owner_id: &str) -> Option<Role> {
        match owner_id {
            // Its objects belong to the admins.
            "" => Some(Role::Admin),
            owner_id => self.roles.get(owner_id).copied(),
        }
    }
}

/// Keeps a [`UseTable`] up to date.
#[derive(Debug)]
pub struct Uses {
    grants: InformerCache<Option<Grant>>,
    /// Role of each user, and whether the user is active.
    users: InformerCache<Option<(Role, bool)>>,
    /// The bots.
    bots: InformerCache<()>,
    /// IDs of the grants in the table.
    live: BTreeSet<String>,
    /// What was read and is not in the table yet: a later read failed.
    due: UseChanges,
    /// The table as of the last refresh.
    pub table: Arc<UseTable>,
}

/// What changed in a [`UseTable`].
#[derive(Debug, Default)]
pub struct UseChanges {
    /// The owners whose role or standing changed.
    pub owners: BTreeSet<String>,
    /// The objects whose grants changed.
    pub objects: BTreeSet<String>,
}

impl UseChanges {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.objects.is_empty()
    }
}

impl Uses {
    /// Knows no owner and no grant.
    pub fn empty() -> Self {
        Self {
            grants: InformerCache::of(Grant::KIND),
            users: InformerCache::of(User::KIND),
            bots: InformerCache::of(BotUser::KIND),
            live: BTreeSet::new(),
            due: UseChanges::default(),
            table: Arc::default(),
        }
    }

    /// Whether a user is an active admin, who may receive every event.
    pub fn is_active_admin(&self, owner_id: &str) -> bool {
        let user = self.users.get(owner_id).copied().flatten();
        user == Some((Role::Admin, true))
    }

    /// When the next grant of the table expires.
    pub fn next_end(&self, now: Timestamp) -> Option<Timestamp> {
        let ends = self
            .grants
            .values()
            .flatten()
            .filter_map(|grant| grant.expires_at);
        ends.filter(|end| *end > now).min()
    }

    /// Reads what changed since the last call. A grant that cannot be read gives no right.
    pub async fn refresh(&mut self, store: &Store, now: Timestamp) -> Result<UseChanges, Fault> {
        let read = |document: Document| {
            let grant = stored::read::<Grant>(&document);
            let report = |fault: &Fault| error!(cause = %fault.chain(), "grant skipped");
            grant.inspect_err(report).ok()
        };
        for (id, before) in self.grants.refresh(store, read).await? {
            let now = self.grants.get(&id).and_then(Option::as_ref);
            let before = before.flatten();
            let objects = [before.as_ref(), now].into_iter().flatten();
            let objects = objects.map(|grant| grant.object_id.clone());
            self.due.objects.extend(objects);
        }
        let read = |document: Document| {
            let user = stored::read::<User>(&document);
            let report = |fault: &Fault| error!(cause = %fault.chain(), "user skipped");
            let user = user.inspect_err(report).ok();
            user.map(|user| (user.role, user.active))
        };
        for (id, before) in self.users.refresh(store, read).await? {
            if before.flatten() != self.users.get(&id).copied().flatten() {
                self.due.owners.insert(id);
            }
        }
        for (id, before) in self.bots.refresh(store, |_| ()).await? {
            if before.is_some() != self.bots.get(&id).is_some() {
                self.due.owners.insert(id);
            }
        }
        // Nothing fails from here on.
        let mut changes = std::mem::take(&mut self.due);
        let is_live = |grant: &Option<Grant>| grant.as_ref().is_some_and(|one| one.is_live(now));
        let live = self.grants.iter().filter(|(_, grant)| is_live(grant));
        let live: BTreeSet<String> = live.map(|(id, _)| id.clone()).collect();
        let ended = self.live.symmetric_difference(&live);
        let object = |id: &String| Some(self.grants.get(id)?.as_ref()?.object_id.clone());
        changes.objects.extend(ended.filter_map(object));
        self.live = live;
        if !changes.is_empty() {
            self.table = Arc::new(self.compiled());
        }
        Ok(changes)
    }

    fn compiled(&self) -> UseTable {
        let roles = self.users.iter();
        let roles = roles.filter_map(|(id, user)| Some((id.clone(), user.as_ref()?.0)));
        let bots = self.bots.iter().map(|(id, ())| (id.clone(), Role::Member));
        let ids = self.live.iter();
        let live = ids.filter_map(|id| self.grants.get(id)?.as_ref());
        UseTable::compiled(roles.chain(bots).collect(), live)
    }
}
