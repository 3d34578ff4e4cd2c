//! Resources: what the management API makes, shows, changes and removes.
//!
//! A resource is one file with its input, its stored form, its view and its rules, and two lines
//! here. Operations, OpenAPI, audit kinds and coverage tests are loops over [`ALL`].

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;

use culvert_base::{BoxFuture, Code, Fault, Ksuid, Refusal, Secret, code};
use culvert_store::{Changes, Document, Head, Key, Ref, Topic};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::base::Base;
use crate::cx::Cx;
use crate::input::{self, Problem};
use crate::listfilter::Field;
use crate::operation::{Answer, BodySpec, Call, Method, Reply, Run, SchemaOf};
use crate::page::{self, Argument};
use crate::{Caller, Control, Error, Parameter, Role, list, service, stored};

pub(crate) mod agent_ingress;
pub(crate) mod api_key;
pub(crate) mod application_session;
pub(crate) mod application_user;
pub(crate) mod bot_user;
pub(crate) mod certificate_authority;
pub(crate) mod endpoint;
pub(crate) mod event_destination;
pub(crate) mod event_subscription;
pub(crate) mod ip_policy;
pub(crate) mod ip_policy_rule;
pub(crate) mod ip_restriction;
pub(crate) mod kubernetes_operator;
pub(crate) mod reserved_addr;
pub(crate) mod reserved_domain;
pub(crate) mod service_user;
pub(crate) mod ssh_certificate_authority;
pub(crate) mod ssh_host_certificate;
pub(crate) mod ssh_public_key;
pub(crate) mod ssh_user_certificate;
pub(crate) mod tls_certificate;
pub(crate) mod tunnel;
pub(crate) mod tunnel_credential;
pub(crate) mod tunnel_session;
pub(crate) mod vault;
pub(crate) mod vault_secret;

/// Every resource.
pub(crate) static ALL: &[&ResourceType] = &[
    &agent_ingress::TYPE,
    &api_key::TYPE,
    &application_session::TYPE,
    &application_user::TYPE,
    &bot_user::TYPE,
    &certificate_authority::TYPE,
    &endpoint::TYPE,
    &event_destination::TYPE,
    &event_subscription::TYPE,
    &ip_policy::TYPE,
    &ip_policy_rule::TYPE,
    &ip_restriction::TYPE,
    &kubernetes_operator::TYPE,
    &reserved_addr::TYPE,
    &reserved_domain::TYPE,
    &service_user::TYPE,
    &ssh_certificate_authority::TYPE,
    &ssh_host_certificate::TYPE,
    &ssh_public_key::TYPE,
    &ssh_user_certificate::TYPE,
    &tls_certificate::TYPE,
    &tunnel::TYPE,
    &tunnel_credential::TYPE,
    &tunnel_session::TYPE,
    &vault::TYPE,
    &vault_secret::TYPE,
];

/// A resource; `Self` is its stored form.
pub(crate) trait Resource: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Singular, with underscores; the stem of its events.
    const NAME: &'static str;
    /// The path segment.
    const COLLECTION: &'static str;
    /// The key of a list's items.
    const LIST_FIELD: &'static str;
    /// Of the ids it shows, without the underscore.
    const ID_PREFIX: &'static str;
    /// One sentence for the reference.
    const DOC: &'static str;
    /// Which of the five operations it has.
    const LIFE: Life = Life::Configured;

    /// What its documents are stored as. Two resources may show one kind.
    const KIND: &'static str = Self::NAME;
    /// Prefixes of the ids its paths take; the first is the one that is stored.
    const PREFIXES: &'static [&'static str] = &[Self::ID_PREFIX];
    /// Why its writes are told to nobody; `None` for a resource with audit events.
    const SILENT: Option<&'static str> = None;
    /// Fields of the view that its events do not have.
    const NOT_IN_EVENTS: &'static [&'static str] = &[];
    /// Fields its list filter may name; `None` has no filter.
    const FILTER: Option<&'static [Field]>;
    /// List parameters of its own.
    const ARGUMENTS: &'static [Argument] = &[];
    /// All list parameters, as the reference shows them.
    const PARAMETERS: &'static [Parameter] = page::FILTERED;
    /// Codes for values of the right type that are not allowed, by field; others are 215.
    const VALUE_CODES: &'static [(&'static str, Code)] = &[];
    /// Code for an update that names no field; without one it changes nothing and succeeds.
    const EMPTY_UPDATE: Option<Code> = None;
    /// Code for a unique value that another object has.
    const TAKEN: Option<Code> = None;
    /// Code for the removal of an object that others need.
    const IN_USE: Option<Code> = None;
    /// Code for a reference to an object that does not exist.
    const UNKNOWN: Option<Code> = None;
    /// Whether a create must give some field.
    const CREATE_NEEDS_BODY: bool;
    /// Operations beyond the five.
    const OPERATIONS: &'static [Extra] = &[];
    /// Query parameters of the delete operation.
    const DELETE_PARAMETERS: &'static [Parameter] = &[];
    /// Whether only its owner and admins may see, change and delete an object. To others it does not
    /// exist. The stored form of such a resource has the field `owner_id`, and a reference to that
    /// owner.
    const IS_PRIVATE: bool = false;

    /// What a caller sends to create one.
    type Create: DeserializeOwned + JsonSchema + Send;
    /// What a caller sends to change one.
    type Update: DeserializeOwned + JsonSchema + Send;
    /// The wire form: what API and events show.
    type View<'a>: Serialize + JsonSchema;

    /// Decides what is stored. Reads only.
    fn create(
        cx: &Cx<'_>,
        id: Ksuid,
        input: Self::Create,
    ) -> impl Future<Output = Result<Draft<Self>, Error>> + Send;

    /// Decides what is stored after a change. Reads only.
    fn update(
        self,
        cx: &Cx<'_>,
        head: &Head,
        input: Self::Update,
    ) -> impl Future<Output = Result<Draft<Self>, Error>> + Send;

    /// What must go, or change, before this one can be removed, with what is told of it.
    fn before_removal(
        &self,
        _cx: &Cx<'_>,
        _head: &Head,
    ) -> impl Future<Output = Result<Changes, Error>> + Send {
        async { Ok(Changes::default()) }
    }

    /// What the query of a delete says, beyond [`Self::before_removal`]: the removal is refused, or
    /// these writes belong to it.
    fn check_removal(
        &self,
        _cx: &Cx<'_>,
        _head: &Head,
        _query: &[(String, String)],
    ) -> impl Future<Output = Result<Changes, Error>> + Send {
        async { Ok(Changes::default()) }
    }

    /// What changes because this one is removed, told after its removal.
    fn after_removal(
        &self,
        _cx: &Cx<'_>,
        _head: &Head,
    ) -> impl Future<Output = Result<Changes, Error>> + Send {
        async { Ok(Changes::default()) }
    }

    /// Whether `caller` may create, change or remove objects of this resource.
    fn permit(caller: &Caller) -> Result<(), Refusal> {
        caller.may_write()
    }

    /// The wire form.
    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> Self::View<'a>;

    /// Unique values and references.
    fn links(&self, _head: &Head) -> Links {
        Links::default()
    }
}

/// How objects of a resource come and go, and with it which of the five operations it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Callers make, change and remove them.
    Configured,
    /// They come up while the server works; callers look at them and may remove them.
    Recorded,
    /// They come and go while the server works; callers look at them.
    Observed,
}

/// The input of an operation that a resource does not have: there is no such value.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) enum Never {}

/// What a handler decided.
#[derive(Debug)]
pub(crate) struct Draft<R> {
    pub(crate) document: R,
    /// Shown in the answer of this one create and nowhere else.
    pub(crate) reveal: Option<Reveal>,
    /// Writes to other documents that belong to this one.
    pub(crate) also: Changes,
}

impl<R> Draft<R> {
    /// The document and nothing else.
    pub(crate) fn of(document: R) -> Self {
        Self {
            document,
            reveal: None,
            also: Changes::default(),
        }
    }
}

/// A secret that is added to the 201 body. It is in no stored form and in no view, so it cannot
/// reach an event or a log.
#[derive(Debug)]
pub(crate) struct Reveal {
    /// JSON pointer of the field it replaces.
    pub(crate) pointer: String,
    /// JSON text.
    pub(crate) json: Secret,
}

/// What the store enforces about a document.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) keys: Vec<Key>,
    pub(crate) refs: Vec<Ref>,
    pub(crate) topics: Vec<Topic>,
}

/// An operation beyond the five.
#[derive(Debug)]
pub(crate) struct Extra {
    pub(crate) name: &'static str,
    pub(crate) method: Method,
    /// Behind `/<collection>/{id}`; its parameters are in braces.
    pub(crate) suffix: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) body: Option<BodySpec>,
    pub(crate) answer: Answer,
    /// The query parameters it takes; it refuses others.
    pub(crate) query: &'static [Parameter],
    pub(crate) run: Run,
}

/// A resource with its types erased, so that it can stand in a table.
#[derive(Debug)]
pub(crate) struct ResourceType {
    pub(crate) name: &'static str,
    pub(crate) collection: &'static str,
    pub(crate) list_field: &'static str,
    pub(crate) id_prefix: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) life: Life,
    pub(crate) kind: &'static str,
    pub(crate) prefixes: &'static [&'static str],
    pub(crate) silent: Option<&'static str>,
    pub(crate) not_in_events: &'static [&'static str],
    pub(crate) filter: Option<&'static [Field]>,
    pub(crate) arguments: &'static [Argument],
    pub(crate) parameters: &'static [Parameter],
    pub(crate) taken: Option<Code>,
    pub(crate) in_use: Option<Code>,
    pub(crate) unknown: Option<Code>,
    pub(crate) create_needs_body: bool,
    pub(crate) operations: &'static [Extra],
    pub(crate) delete_parameters: &'static [Parameter],
    pub(crate) is_private: bool,

    pub(crate) create: Create,
    pub(crate) update: Update,
    /// Refuses a body whose names or types are wrong, without looking at any object.
    pub(crate) inspect_update: fn(Option<Value>) -> Result<(), Refusal>,
    pub(crate) before_removal: Removal,
    pub(crate) check_removal: CheckRemoval,
    pub(crate) after_removal: Removal,
    pub(crate) permit: fn(&Caller) -> Result<(), Refusal>,
    /// Writes the view of a document, JSON.
    pub(crate) view: fn(&Document, Base<'_>, &mut Vec<u8>) -> Result<(), Fault>,

    pub(crate) create_schema: SchemaOf,
    pub(crate) update_schema: SchemaOf,
    pub(crate) view_schema: SchemaOf,
    pub(crate) list_schema: SchemaOf,

    pub(crate) run_create: Run,
    pub(crate) run_get: Run,
    pub(crate) run_list: Run,
    pub(crate) run_update: Run,
    pub(crate) run_delete: Run,
}

type Create = for<'a> fn(&'a Cx<'a>, Ksuid, Option<Value>) -> BoxFuture<'a, Result<Made, Error>>;
type Update =
    for<'a> fn(&'a Cx<'a>, &'a Document, Option<Value>) -> BoxFuture<'a, Result<Made, Error>>;
type CheckRemoval = for<'a> fn(
    &'a Cx<'a>,
    &'a Document,
    &'a [(String, String)],
) -> BoxFuture<'a, Result<Changes, Error>>;
type Removal = for<'a> fn(&'a Cx<'a>, &'a Document) -> BoxFuture<'a, Result<Changes, Error>>;

/// A [`Draft`] in stored form.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) body: String,
    pub(crate) links: Links,
    pub(crate) reveal: Option<Reveal>,
    pub(crate) also: Changes,
}

impl ResourceType {
    /// The entry of `R`.
    pub(crate) const fn of<R: Resource>() -> Self {
        Self {
            name: R::NAME,
            collection: R::COLLECTION,
            list_field: R::LIST_FIELD,
            id_prefix: R::ID_PREFIX,
            doc: R::DOC,
            life: R::LIFE,
            kind: R::KIND,
            prefixes: R::PREFIXES,
            silent: R::SILENT,
            not_in_events: R::NOT_IN_EVENTS,
            filter: R::FILTER,
            arguments: R::ARGUMENTS,
            parameters: R::PARAMETERS,
            taken: R::TAKEN,
            in_use: R::IN_USE,
            unknown: R::UNKNOWN,
            create_needs_body: R::CREATE_NEEDS_BODY,
            operations: R::OPERATIONS,
            delete_parameters: R::DELETE_PARAMETERS,
            is_private: R::IS_PRIVATE,
            create: create::<R>,
            update: update::<R>,
            inspect_update: inspect_update::<R>,
            before_removal: before_removal::<R>,
            check_removal: check_removal::<R>,
            after_removal: after_removal::<R>,
            permit: R::permit,
            view: view::<R>,
            create_schema: SchemaGenerator::subschema_for::<R::Create>,
            update_schema: SchemaGenerator::subschema_for::<R::Update>,
            view_schema: SchemaGenerator::subschema_for::<R::View<'static>>,
            list_schema: list_schema::<R>,
            run_create: run_create::<R>,
            run_get: run_get::<R>,
            run_list: run_list::<R>,
            run_update: run_update::<R>,
            run_delete: run_delete::<R>,
        }
    }

    /// Whether the caller may see, change and delete a document of its account.
    pub(crate) fn is_seen_by(&self, caller: &Caller, document: &Document) -> Result<bool, Fault> {
        #[derive(Deserialize)]
        struct Owned {
            owner_id: String,
        }
        if !self.is_private || caller.role == Role::Admin {
            return Ok(true);
        }
        let owned: Owned = stored::read(document)?;
        Ok(owned.owner_id == caller.owner_id)
    }

    /// What people call one of it: `SSH public key`.
    fn noun(&self) -> String {
        const SPELLED: [&str; 5] = ["api", "ip", "ssh", "tcp", "tls"];
        let words = self.name.split('_').map(|word| match word {
            _ if SPELLED.contains(&word) => word.to_ascii_uppercase(),
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// The same with its article: `an SSH public key`.
    pub(crate) fn with_article(&self) -> String {
        let noun = self.noun();
        let is_open = noun
            .to_ascii_lowercase()
            .starts_with(['a', 'e', 'i', 'o', 'u']);
        let article = if is_open || noun.starts_with("SSH ") {
            "an"
        } else {
            "a"
        };
        format!("{article} {noun}")
    }

    /// Several: `SSH certificate authorities`.
    pub(crate) fn nouns(&self) -> String {
        let noun = self.noun();
        match noun.strip_suffix('y') {
            Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
            _ if noun.ends_with('s') => format!("{noun}es"),
            _ => format!("{noun}s"),
        }
    }

    /// The stored id a path names; `None` when its shape or prefix is wrong.
    pub(crate) fn stored_id(&self, shown: &str) -> Option<String> {
        let (prefix, body) = culvert_base::id::split(shown)?;
        self.prefixes
            .contains(&prefix)
            .then(|| self.stored_id_of(body))
    }

    /// The stored id with this body.
    pub(crate) fn stored_id_of(&self, body: impl fmt::Display) -> String {
        let prefix = self.prefixes.first().copied().unwrap_or(self.id_prefix);
        format!("{prefix}_{body}")
    }

    /// The view of a document, JSON text.
    pub(crate) fn view_text(&self, document: &Document, base: Base<'_>) -> Result<String, Fault> {
        let mut text = Vec::with_capacity(512);
        (self.view)(document, base, &mut text)?;
        String::from_utf8(text).map_err(|error| Fault::new("writing a view", error))
    }
}

fn create<'a, R: Resource>(
    cx: &'a Cx<'a>,
    id: Ksuid,
    body: Option<Value>,
) -> BoxFuture<'a, Result<Made, Error>> {
    Box::pin(async move {
        let input = match input::create::<R::Create>(body) {
            Err(Problem::Shape(refusal)) => return Err(refusal.into()),
            read => {
                R::permit(cx.caller)?;
                read.map_err(value_refusal::<R>)?
            }
        };
        let draft = R::create(cx, id, input).await?;
        let head = Head {
            id: format!("{}_{id}", R::PREFIXES[0]),
            kind: R::KIND.to_owned(),
            account: cx.caller.account.clone(),
            revision: 0,
            created_at: id.at(),
            updated_at: id.at(),
        };
        make(draft, &head)
    })
}

fn update<'a, R: Resource>(
    cx: &'a Cx<'a>,
    document: &'a Document,
    body: Option<Value>,
) -> BoxFuture<'a, Result<Made, Error>> {
    Box::pin(async move {
        let update = match input::update::<R::Update>(body) {
            Err(Problem::Shape(refusal)) => return Err(refusal.into()),
            read => {
                R::permit(cx.caller)?;
                read.map_err(value_refusal::<R>)?
            }
        };
        if let (true, Some(code)) = (update.is_empty, R::EMPTY_UPDATE) {
            return Err(Refusal::of(code).into());
        }
        let before: R = stored::read(document)?;
        let draft = before.update(cx, &document.head, update.input).await?;
        make(draft, &document.head)
    })
}

fn make<R: Resource>(draft: Draft<R>, head: &Head) -> Result<Made, Error> {
    Ok(Made {
        body: stored::write(&draft.document)?,
        links: draft.document.links(head),
        reveal: draft.reveal,
        also: draft.also,
    })
}

fn inspect_update<R: Resource>(body: Option<Value>) -> Result<(), Refusal> {
    match input::update::<R::Update>(body) {
        Err(Problem::Shape(refusal)) => Err(refusal),
        _ => Ok(()),
    }
}

fn before_removal<'a, R: Resource>(
    cx: &'a Cx<'a>,
    document: &'a Document,
) -> BoxFuture<'a, Result<Changes, Error>> {
    Box::pin(async move {
        let resource: R = stored::read(document)?;
        resource.before_removal(cx, &document.head).await
    })
}

fn check_removal<'a, R: Resource>(
    cx: &'a Cx<'a>,
    document: &'a Document,
    query: &'a [(String, String)],
) -> BoxFuture<'a, Result<Changes, Error>> {
    Box::pin(async move {
        let resource: R = stored::read(document)?;
        resource.check_removal(cx, &document.head, query).await
    })
}

fn after_removal<'a, R: Resource>(
    cx: &'a Cx<'a>,
    document: &'a Document,
) -> BoxFuture<'a, Result<Changes, Error>> {
    Box::pin(async move {
        let resource: R = stored::read(document)?;
        resource.after_removal(cx, &document.head).await
    })
}

/// The refusal of a value of the right type that is not allowed.
pub(crate) fn value_refusal<R: Resource>(problem: Problem) -> Refusal {
    match problem {
        Problem::Shape(refusal) => refusal,
        Problem::Value { field, why } => {
            let code = R::VALUE_CODES
                .iter()
                .find_map(|(name, code)| (*name == field).then_some(*code))
                .unwrap_or(code::BODY_FIELD_INVALID);
            Refusal::new(code, format!("`{field}` is not allowed: {why}."))
        }
    }
}

fn view<R: Resource>(document: &Document, base: Base<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
    let resource: R = stored::read(document)?;
    serde_json::to_writer(out, &resource.view(&document.head, base))
        .map_err(|error| Fault::new(format!("writing the view of {}", document.head.id), error))
}

/// The schema of a list of `R`.
pub(crate) fn list_schema<R: Resource>(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<R::View<'static>>();
    let mut schema = json_schema!({
        "type": "object",
        "required": [R::LIST_FIELD, "uri", "next_page_uri"],
        "properties": {
            "uri": { "type": "string" },
            "next_page_uri": { "type": ["string", "null"] },
        },
    });
    let items = json_schema!({ "type": "array", "items": item });
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert(R::LIST_FIELD.to_owned(), items.to_value());
    }
    schema
}

/// The one entry of a resource, for the functions below.
struct Entry<R>(PhantomData<R>);

impl<R: Resource> Entry<R> {
    const TYPE: &'static ResourceType = &ResourceType::of::<R>();
}

pub(crate) type Running<'a> = BoxFuture<'a, Result<Reply, Error>>;

fn run_create<R: Resource>(control: &Control, call: Call) -> Running<'_> {
    Box::pin(service::create(control, Entry::<R>::TYPE, call))
}

fn run_get<R: Resource>(control: &Control, call: Call) -> Running<'_> {
    Box::pin(service::get(control, Entry::<R>::TYPE, call))
}

fn run_list<R: Resource>(control: &Control, call: Call) -> Running<'_> {
    Box::pin(list::list(control, Entry::<R>::TYPE, call))
}

fn run_update<R: Resource>(control: &Control, call: Call) -> Running<'_> {
    Box::pin(service::update(control, Entry::<R>::TYPE, call))
}

fn run_delete<R: Resource>(control: &Control, call: Call) -> Running<'_> {
    Box::pin(service::delete(control, Entry::<R>::TYPE, call))
}

/// `<base>/<collection>/<id>`, written when it is serialised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uri<'a> {
    pub(crate) base: Base<'a>,
    pub(crate) collection: &'static str,
    pub(crate) id: &'a str,
}

impl fmt::Display for Uri<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.base, self.collection, self.id)
    }
}

impl Serialize for Uri<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A reference to another object.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Reference<'a> {
    pub(crate) id: &'a str,
    /// Always `""` for users and bot users.
    pub(crate) uri: String,
}

impl<'a> Reference<'a> {
    /// An object with a page of its own.
    pub(crate) fn to(base: Base<'_>, collection: &'static str, id: &'a str) -> Self {
        let uri = Uri {
            base,
            collection,
            id,
        };
        Self {
            id,
            uri: uri.to_string(),
        }
    }

    /// A user or bot.
    pub(crate) fn to_owner(id: &'a str) -> Self {
        Self {
            id,
            uri: String::new(),
        }
    }
}
