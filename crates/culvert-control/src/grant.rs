//! Grant: the right of one owner, of all members, or of one endpoint to use an object of another owner (contract:
//! rights 2).
//!
//! Objects that only their owners use can be granted: internal endpoints, vaults and their secrets, and event
//! destinations. A grant on a vault or secret is as good as reading the values, because the policies of the grantee
//! send them to upstreams that the grantee chooses.

use std::borrow::Cow;

use culvert_base::{Code, Description, Ksuid, Metadata, Refusal, Timestamp, code, id};
use culvert_endpoints::endpoint;
use culvert_endpoints::endpoint::model::{Binding, Endpoint};
use culvert_endpoints::vault::model::Vault;
use culvert_endpoints::vault::secret_model::VaultSecret;
use culvert_endpoints::vault::{self, secret};
use culvert_event_config::destination;
use culvert_event_config::destination::model::EventDestination;
use culvert_event_config::subscription::model::EventSubscription;
use culvert_resources::access::bot_user::BotUser;
use culvert_resources::access::caller::Role;
use culvert_resources::access::grant::{Grant, GrantedRight, Grantee};
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::access::user::User;
use culvert_resources::access::{self, Referrer};
use culvert_resources::cx::Cx;
use culvert_resources::input;
use culvert_resources::input::force::{FORCE, forced};
use culvert_resources::list::listfilter::{self, Field, Shape, field};
use culvert_resources::list::page;
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::{self, Format};
use culvert_store::{Changes, Document, Head, PageQuery};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::control::Control;
use crate::{Error, Parameter};

pub(crate) static TYPE: ResourceType = ResourceType::of_subject::<Grant, Control>();

/// Limits of the grants on one object, and of those on all objects of one owner. Concurrent creations may exceed them
/// by their number.
const OF_OBJECT_MAX: usize = 200;
const OF_OWNER_MAX: usize = 2000;

/// Prefixes of the objects that can be granted.
const OBJECTS: &[&str] = &["ep", "vault", "secret", "ed"];

/// A new grant.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "GrantCreate", extend("required" = ["object_id", "grantee"]), transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// ID of the object: an internal endpoint, a vault, a secret or an event destination. A grant on a vault holds for
    /// all its secrets. The policies of the grantee can send the values of a vault anywhere. Required.
    #[schemars(extend("pattern" = input::id_pattern(OBJECTS)))]
    object_id: String,
    /// Who gets the right: the ID of a user or bot, `role:member` for all owners with that role, or the ID of an
    /// endpoint, whose policy alone gets it. Required.
    grantee: String,
    /// `use`, the default: to refer to the object.
    #[schemars(extend("enum" = ["use"]))]
    right: String,
    /// When the grant ends, an RFC 3339 time in the future, which is shown in UTC; by default never.
    #[schemars(extend("format" = "date-time"))]
    expires_at: String,
}

/// Changes to a grant.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "GrantUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// When the grant ends, an RFC 3339 time in the future, which is shown in UTC; empty for never.
    #[schemars(extend("pattern" = input::patterns::TIME_OR_EMPTY))]
    expires_at: Option<String>,
}

impl Resource<Control> for Grant {
    const DOC: &'static str = "Grants: the right of others to use an internal endpoint, a vault, a secret or an \
        event destination. The owner of the object and admins give it. A grant on a vault or a secret is as good as \
        reading the values.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("object_id", Shape::Text),
        field("grantee", Shape::Text),
        field("right", Shape::Text),
    ]);
    const IN_USE: Option<Code> = Some(code::GRANT_IN_USE);
    const CREATE_NEEDS_BODY: bool = true;
    const DELETE_PARAMETERS: &'static [Parameter] = &[Parameter {
        doc: "Whether to delete the grant although objects need it: `true` or `false` (default). They stop working.",
        ..FORCE
    }];

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let (ty, object) = named(cx, &input.object_id).await?;
        may_give(cx, ty)?;
        let held = access::may_change(cx, ty, &object).await?;
        if !matches!(input.right.as_str(), "" | "use") {
            let why = "`right` must be `use`.";
            return Err(Refusal::new(code::BODY_FIELD_INVALID, why).into());
        }
        let name = match ty.kind {
            Endpoint::KIND => internal_name(&object)?,
            _ => None,
        };
        let owner_id = ty.owner_of(&object)?.unwrap_or_default();
        let (grantee, grantee_owner_id, there) = grantee(cx, &input.grantee).await?;
        let has_it = match &grantee {
            Grantee::Members => false,
            Grantee::Owner(id) => *id == owner_id,
            Grantee::Endpoint(_) => grantee_owner_id.as_deref() == Some(&*owner_id),
        };
        if has_it {
            let why = "`grantee` belongs to the owner of the object, who has the right.";
            return Err(Refusal::new(code::BODY_FIELD_INVALID, why).into());
        }
        let expires_at = end(cx, &input.expires_at)?;
        check_room(cx, &object.head, &owner_id).await?;
        let draft = Draft::of(Self {
            format: Format,
            description: input.description,
            metadata: input.metadata,
            object_id: object.head.id.clone(),
            owner_id,
            name,
            grantee,
            grantee_owner_id,
            right: GrantedRight::Use,
            expires_at,
            is_of_upgrade: false,
        });
        let also = held.and(Changes::while_at(&object.head)).and(there);
        Ok(Draft { also, ..draft })
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        if let Some(text) = input.expires_at {
            may_give(cx, type_of(&self.object_id)?)?;
            self.expires_at = end(cx, &text)?;
        }
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        Ok(Draft::of(self))
    }

    /// Refuses to delete a grant that an object needs (651), unless the query has `force=true`.
    async fn check_removal(
        &self,
        cx: &Cx<'_>,
        head: &Head,
        query: &[(String, String)],
    ) -> Result<Changes, Error> {
        let is_forced = forced(query)?;
        if is_forced || !self.is_live(cx.clock.now()) {
            return Ok(Changes::default());
        }
        match user(self, cx, head).await? {
            None => Ok(Changes::default()),
            Some(by) => {
                let why = format!(
                    "`{by}` needs the grant. To delete it, send `force=true` in the query (`--force true`); `{by}` then stops working as it does now."
                );
                Err(Refusal::new(code::GRANT_IN_USE, why).into())
            }
        }
    }
}

/// ID of an object that refers to the granted one and could not without this grant.
async fn user(grant: &Grant, cx: &Cx<'_>, head: &Head) -> Result<Option<String>, Error> {
    let (ty, object) = match named(cx, &grant.object_id).await {
        Ok(named) => named,
        // The endpoint of an agent that is offline.
        Err(Error::Refused(_)) => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let mut users: Vec<(Document, String)> = Vec::new();
    let mut add = |documents: Vec<Document>, ty: &ResourceType| -> Result<(), Error> {
        for document in documents {
            let owner_id = ty.owner_of(&document)?.unwrap_or_default();
            users.push((document, owner_id));
        }
        Ok(())
    };
    match ty.kind {
        EventDestination::KIND => add(
            cx.referring(EventSubscription::KIND, &object.head).await?,
            &culvert_event_config::subscription::TYPE,
        )?,
        VaultSecret::KIND => add(
            cx.referring(Endpoint::KIND, &object.head).await?,
            &endpoint::TYPE,
        )?,
        Vault::KIND => {
            for secret in cx.referring(VaultSecret::KIND, &object.head).await? {
                let naming = cx.referring(Endpoint::KIND, &secret.head).await?;
                add(naming, &endpoint::TYPE)?;
            }
        }
        _ => {
            let to: Endpoint = stored::read(&object)?;
            let naming = forwarding(cx, &to.address.host).await?;
            add(naming, &endpoint::TYPE)?;
        }
    }
    let others = others(grant, cx, head, &object).await?;
    for (document, owner_id) in users {
        let referrer = Referrer {
            owner_id: &owner_id,
            id: &document.head.id,
        };
        let role = access::role_of(cx, &owner_id, true).await?;
        let by = |grants: &[Grantee]| {
            let owner = (!grant.owner_id.is_empty()).then_some(&*grant.owner_id);
            access::is_user(referrer, role, owner, grants.iter())
        };
        let is_with = by(&[others.clone(), vec![grant.grantee.clone()]].concat());
        if is_with && !by(&others) {
            return Ok(Some(document.head.id));
        }
    }
    Ok(None)
}

/// The grantees of the other grants on the object that are in force.
async fn others(
    grant: &Grant,
    cx: &Cx<'_>,
    head: &Head,
    object: &Document,
) -> Result<Vec<Grantee>, Error> {
    let mut granted = cx.referring(Grant::KIND, &object.head).await?;
    if grant.name.is_some() {
        granted.extend(cx.store.all(Grant::KIND).await?);
    }
    let mut grantees = Vec::new();
    for document in granted {
        let other: Grant = stored::read(&document)?;
        let is_same = other.object_id == grant.object_id
            || other.name.is_some() && other.name == grant.name && other.owner_id == grant.owner_id;
        if is_same && document.head.id != head.id && other.is_live(cx.clock.now()) {
            grantees.push(other.grantee);
        }
    }
    Ok(grantees)
}

/// The endpoints whose policies may forward to this internal host. They contain it as text, or as computed by an
/// expression, which is not known here.
async fn forwarding(cx: &Cx<'_>, host: &str) -> Result<Vec<Document>, Error> {
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let query = PageQuery {
            kind: Endpoint::KIND.to_owned(),
            account: cx.caller.account.clone(),
            before,
            limit: page::LIMIT_MAX,
            refs_to: None,
        };
        let page = cx.store.page(&query).await?;
        let Some(last) = page.last() else {
            return Ok(found);
        };
        before = Some(last.head.id.clone());
        for document in page {
            let endpoint: Endpoint = stored::read(&document)?;
            let Some(policy) = &endpoint.policy else {
                continue;
            };
            if policy
                .internal_names(cx.seal, &document.head.id)?
                .iter()
                .any(|name| covers(host, name))
            {
                found.push(document);
            }
        }
    }
}

/// Whether the host of an endpoint, which may be a wildcard, covers a name.
fn covers(host: &str, name: &str) -> bool {
    match host.strip_prefix('*') {
        Some(end) => name.ends_with(end),
        None => host == name,
    }
}

/// The resource of an object that can be granted. Codes 223 and 243.
fn type_of(object_id: &str) -> Result<&'static ResourceType, Refusal> {
    page::reference("object_id", object_id, OBJECTS)?;
    Ok(match id::split(object_id) {
        Some(("ep", _)) => &endpoint::TYPE,
        Some(("vault", _)) => &vault::TYPE,
        Some(("secret", _)) => &secret::TYPE,
        _ => &destination::TYPE,
    })
}

/// The object that a grant names.
async fn named(cx: &Cx<'_>, object_id: &str) -> Result<(&'static ResourceType, Document), Error> {
    let ty = type_of(object_id)?;
    let document = cx.own(ty.kind, object_id).await?.ok_or_else(|| {
        let why = format!("The object `{object_id}` in `object_id` does not exist.");
        Refusal::new(code::BODY_FIELD_INVALID, why)
    })?;
    Ok((ty, document))
}

/// Refuses a key that may not write objects of this kind (642): it would give what it does not have.
fn may_give(cx: &Cx<'_>, ty: &ResourceType) -> Result<(), Refusal> {
    cx.caller.check_scope(Right {
        role: Role::Member,
        scope: Scope::of(ty.collection).map(|(_, write)| write),
    })
}

/// Refuses an endpoint that is not internal: nothing else forwards to it. Returns the name of an agent's endpoint.
fn internal_name(document: &Document) -> Result<Option<String>, Error> {
    let endpoint: Endpoint = stored::read(document)?;
    if endpoint.binding != Binding::Internal {
        let why =
            "`object_id` must name an endpoint with the binding `internal`; others need no grant.";
        return Err(Refusal::new(code::BODY_FIELD_INVALID, why).into());
    }
    Ok(endpoint.served.map(|_| endpoint.address.host))
}

/// The grantee, the owner of an endpoint that is one, and the condition that it is still there at the commit.
async fn grantee(cx: &Cx<'_>, text: &str) -> Result<(Grantee, Option<String>, Changes), Error> {
    const PREFIXES: &[&str] = &["usr", "bot", "service", "ep"];
    if text == Grantee::MEMBERS {
        return Ok((Grantee::Members, None, Changes::default()));
    }
    let body = page::reference("grantee", text, PREFIXES)?;
    let unknown = || {
        let why = format!("The `grantee` `{text}` does not exist.");
        Refusal::new(code::BODY_FIELD_INVALID, why)
    };
    let (kind, stored_id): (&str, Cow<'_, str>) = match id::split(text) {
        Some(("ep", _)) => (Endpoint::KIND, text.into()),
        Some(("usr", _)) => (User::KIND, text.into()),
        _ => (BotUser::KIND, format!("bot_{body}").into()),
    };
    let found = cx.own(kind, &stored_id).await?.ok_or_else(unknown)?;
    let there = Changes::while_at(&found.head);
    if kind != Endpoint::KIND {
        return Ok((Grantee::Owner(stored_id.into_owned()), None, there));
    }
    let endpoint: Endpoint = stored::read(&found)?;
    if endpoint.served.is_some() {
        let why = "`grantee` must not be the endpoint of an agent, which has another ID after a restart; name its owner.";
        return Err(Refusal::new(code::BODY_FIELD_INVALID, why).into());
    }
    let owner_id = endpoint.principal_id;
    Ok((Grantee::Endpoint(text.to_owned()), Some(owner_id), there))
}

/// When a grant ends. A grant does not outlive the key that gives it (643). Codes 215 and 241.
fn end(cx: &Cx<'_>, text: &str) -> Result<Option<Timestamp>, Refusal> {
    let end = match text {
        "" => None,
        text => {
            let end = Timestamp::parse(text).ok_or_else(|| {
                let why = "`expires_at` must be an RFC 3339 time.";
                Refusal::new(code::TIME_MALFORMED, why)
            })?;
            if end <= cx.clock.now() {
                let why = "`expires_at` must be in the future; delete the grant to end it now.";
                return Err(Refusal::new(code::BODY_FIELD_INVALID, why));
            }
            Some(end)
        }
    };
    match cx.caller.ends_at() {
        Some(key_end) if end.is_none_or(|end| end > key_end) => {
            let why = "The grant would outlive the API key; send an `expires_at` before the end of the key.";
            Err(Refusal::new(code::API_KEY_CANNOT_WIDEN, why))
        }
        _ => Ok(end),
    }
}

/// Refuses more grants than the limits (652).
async fn check_room(cx: &Cx<'_>, object: &Head, owner_id: &str) -> Result<(), Error> {
    let too_many = |why: String| Error::from(Refusal::new(code::GRANTS_TOO_MANY, why));
    let (mut of_object, mut of_owner) = (0, 0);
    for document in cx.store.all(Grant::KIND).await? {
        let grant: Grant = stored::read(&document)?;
        of_object += usize::from(grant.object_id == object.id);
        let is_of_account = document.head.account == object.account;
        of_owner += usize::from(is_of_account && grant.owner_id == owner_id);
    }
    if of_object >= OF_OBJECT_MAX {
        return Err(too_many(format!(
            "The object has {OF_OBJECT_MAX} grants, which is the limit; `role:member` grants it to all members."
        )));
    }
    if of_owner >= OF_OWNER_MAX {
        return Err(too_many(format!(
            "The owner of the object has given {OF_OWNER_MAX} grants, which is the limit."
        )));
    }
    Ok(())
}
