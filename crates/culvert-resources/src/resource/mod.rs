//! The behaviour of a resource as a trait, and its row in the table of resources.

pub mod model;
pub mod operations;
mod row;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;

use culvert_base::{BoxFuture, Code, Fault, Ksuid, Refusal, Secret, code};
use culvert_store::{Changes, Document, Head};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::access::grant::Grant;
use crate::access::rights::{Access, Rights, See};
use crate::audit::trace::Trace;
use crate::cx::Cx;
use crate::cx::base::Base;
use crate::input::Problem;
use crate::list::listfilter::Field;
use crate::list::page;
use crate::list::page::{Argument, Fields, Part};
use crate::operation::{
    BodySpec, CheckObject, Handler, Hides, Method, Reply, ResponseSpec, SchemaOf,
};
use crate::resource::model::{Links, Model};
use crate::{Caller, Error, Parameter, Role, stored};

/// The behaviour of a resource.
///
/// `S` is the subject that defines the behaviour of a model of this crate: users, bots and grants have theirs in higher
/// crates, and such an implementation must name a type of its crate. For all others it is `()`.
pub trait Resource<S = ()>: Model {
    /// One sentence for the reference.
    const DOC: &'static str;
    /// How its objects are created, which decides its operations.
    const LIFE: Life = Life::Configured;
    /// The events of its changes.
    const AUDITED: Audited = Audited::Own;
    /// Fields of the view that its events do not have.
    const NOT_IN_EVENTS: &'static [&'static str] = &[];
    /// Fields with long texts, whose changes events show as a unified diff too.
    const LONG_TEXTS: &'static [&'static str] = &[];
    /// Fields that change with each use. A change of only these has no event.
    const TIMES_OF_USE: &'static [&'static str] = &[];
    /// Fields its list filter may name; `None` has no filter.
    const FILTER: Option<&'static [Field]>;
    /// List parameters that only this resource has.
    const ARGUMENTS: &'static [Argument] = &[];
    /// All list parameters, as the reference shows them.
    const PARAMETERS: &'static [Parameter] = page::FILTERED;
    /// Codes for values of the right type that are not allowed, by field. The default is 215.
    const VALUE_CODES: &'static [(&'static str, Code)] = &[];
    /// Code for an update that names no field. Without one, the update changes nothing and succeeds.
    const EMPTY_UPDATE: Option<Code> = None;
    /// Code for a unique value that another object has.
    const TAKEN: Option<Code> = None;
    /// Code for the removal of an object that others need.
    const IN_USE: Option<Code> = None;
    /// Code for a reference to an object that does not exist.
    const UNKNOWN: Option<Code> = None;
    /// Schema of [`Self::preview`], if creations have a dry run.
    const PREVIEW: Option<SchemaOf> = None;
    /// The secret field of the view, if the caller may read it back. It is added to responses, after filters, and to no
    /// event and no log.
    const READABLE_SECRET: Option<SecretOf<Self>> = None;
    /// Whether a create must give some field.
    const CREATE_NEEDS_BODY: bool;
    /// Groups of further fields, which clients get only if they ask for them. The view has them as optional fields.
    const INCLUDED: &'static [Part] = &[];
    /// Query parameters of the get operation.
    const GET_PARAMETERS: &'static [Parameter] = &[];
    /// Query parameters of the create operation.
    const CREATE_PARAMETERS: &'static [Parameter] = &[];
    /// Query parameters of the update operation.
    const UPDATE_PARAMETERS: &'static [Parameter] = &[];
    /// Query parameters of the delete operation.
    const DELETE_PARAMETERS: &'static [Parameter] = &[];
    /// The lowest role that may write. [`Self::permit`] checks it.
    const WRITERS: Role = Role::Member;
    /// Whether the objects of an owner are removed with it.
    const IS_REMOVED_WITH_OWNER: bool = false;
    /// Names of further operations that only admins may call, whatever [`Self::WRITERS`].
    const ADMIN_OPERATIONS: &'static [&'static str] = &[];

    /// The body of a create.
    type Create: DeserializeOwned + JsonSchema + Send;
    /// The body of an update.
    type Update: DeserializeOwned + JsonSchema + Send;

    /// Decides the stored form of a new object. Only reads.
    fn create(
        cx: &Cx<'_>,
        id: Ksuid,
        input: Self::Create,
    ) -> impl Future<Output = Result<Draft<Self>, Error>> + Send;

    /// All further fields of these objects, in their order. Only reads.
    fn included(
        _cx: &Cx<'_>,
        _documents: &[Document],
    ) -> impl Future<Output = Result<Vec<Fields>, Fault>> + Send {
        async { Ok(Vec::new()) }
    }

    /// The response to a dry run of a creation, as JSON: what the object could do.
    fn preview(&self, _cx: &Cx<'_>) -> impl Future<Output = Result<String, Error>> + Send {
        async { Err(Fault::bare("running a creation dry that has no dry run").into()) }
    }

    /// Decides the stored form after an update. Only reads.
    fn update(
        self,
        cx: &Cx<'_>,
        head: &Head,
        input: Self::Update,
    ) -> impl Future<Output = Result<Draft<Self>, Error>> + Send;

    /// The removals and changes that must precede this removal, with their audit events.
    fn before_removal(
        &self,
        _cx: &Cx<'_>,
        _head: &Head,
    ) -> impl Future<Output = Result<Changes, Error>> + Send {
        async { Ok(Changes::default()) }
    }

    /// Checks the query of a delete, after [`Self::before_removal`]. Refuses the removal, or returns writes
    /// to add to it.
    fn check_removal(
        &self,
        _cx: &Cx<'_>,
        _head: &Head,
        _query: &[(String, String)],
    ) -> impl Future<Output = Result<Changes, Error>> + Send {
        async { Ok(Changes::default()) }
    }

    /// Names of secrets that differ between this form and a later one. Events name them without a value.
    fn changed_secrets(&self, _after: &Self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Refuses a change by the owner, if it is no admin, or returns the conditions under which it is allowed at the commit.
    fn may_change(
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
}

/// How objects of a resource are created and removed, which decides which of the five operations it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Callers create, change and remove them.
    Configured,
    /// The server creates them; callers can read and remove them.
    Recorded,
    /// The server creates and removes them; callers can read them.
    Observed,
}

/// The events of the changes of a resource's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audited {
    /// `<name>_created`, `<name>_updated` and `<name>_deleted`.
    Own,
    /// Events with these names, which are committed with the same changes.
    By(&'static [&'static str]),
}

/// The input of an operation that a resource does not have: there is no such value.
#[derive(Debug, Deserialize, JsonSchema)]
pub enum Never {}

/// The decision of a handler.
#[derive(Debug)]
pub struct Draft<R> {
    /// The stored form.
    pub document: R,
    /// Shown only in the response to this create.
    pub reveal: Option<Reveal>,
    /// Writes to other documents that belong to this one.
    pub also: Changes,
}

impl<R> Draft<R> {
    /// A draft of only the document.
    pub fn of(document: R) -> Self {
        Self {
            document,
            reveal: None,
            also: Changes::default(),
        }
    }
}

/// Reads the secret of an object that a caller may read back.
pub type SecretOf<R> = fn(&R, &Cx<'_>, &Head) -> Result<Option<Reveal>, Fault>;

/// A secret that is added to the body of a response. It is in no view, so it cannot reach an event or a log.
#[derive(Debug)]
pub struct Reveal {
    /// JSON pointer of the field it replaces.
    pub pointer: String,
    /// JSON text.
    pub json: Secret,
}

impl Reveal {
    /// The text of a view with the secret.
    pub(crate) fn shown_in(&self, view: &str) -> Result<String, Fault> {
        let parse = |text| {
            serde_json::from_str::<Value>(text)
                .map_err(|error| Fault::new("revealing a secret", error))
        };
        let mut value = parse(view)?;
        let field = value
            .pointer_mut(&self.pointer)
            .ok_or_else(|| Fault::bare("revealing a secret: the view lacks the field"))?;
        *field = parse(self.json.reveal())?;
        Ok(value.to_string())
    }
}

/// An operation beyond the five. `S` is the subject that runs it.
#[derive(Debug)]
pub struct Extra<S: 'static> {
    /// Name of the operation, such as `rotate`.
    pub name: &'static str,
    /// Method of the request.
    pub method: Method,
    /// Path suffix after `/<collection>/{id}`; parameters are in braces.
    pub suffix: &'static str,
    /// Its purpose, for the reference.
    pub doc: &'static str,
    /// The body that it takes; `None` for no body.
    pub body: Option<BodySpec>,
    /// What it returns.
    pub response: ResponseSpec,
    /// The accepted query parameters; others are refused.
    pub query: &'static [Parameter],
    /// What it needs of the object. It is checked before it runs.
    pub access: Access,
    /// What a successful call leaves in the audit log.
    pub trace: Trace,
    /// Runs it.
    pub run: Handler<S>,
}

/// A resource with its types erased, for the table of resources.
#[derive(Debug)]
pub struct ResourceType {
    /// Singular, with underscores; the stem of its events.
    pub name: &'static str,
    /// The path segment.
    pub collection: &'static str,
    /// The key of the items of a list.
    pub list_field: &'static str,
    /// Prefix of the IDs that it shows, without the underscore.
    pub id_prefix: &'static str,
    /// One sentence for the reference.
    pub doc: &'static str,
    /// How its objects are created, which decides its operations.
    pub life: Life,
    /// Kind of its documents. Two resources may show one kind.
    pub kind: &'static str,
    /// ID prefixes that its paths accept; the first one is stored.
    pub prefixes: &'static [&'static str],
    /// The events of its changes.
    pub audited: Audited,
    /// Fields of the view that its events do not have.
    pub not_in_events: &'static [&'static str],
    /// Fields with long texts, whose changes events show as a unified diff too.
    pub long_texts: &'static [&'static str],
    /// Fields that change with each use. A change of only these has no event.
    pub times_of_use: &'static [&'static str],
    /// Fields its list filter may name; `None` has no filter.
    pub filter: Option<&'static [Field]>,
    /// List parameters that only this resource has.
    pub arguments: &'static [Argument],
    /// All list parameters, as the reference shows them.
    pub parameters: &'static [Parameter],
    /// Code for a unique value that another object has.
    pub taken: Option<Code>,
    pub(crate) in_use: Option<Code>,
    /// Code for a reference to an object that does not exist.
    pub unknown: Option<Code>,
    pub(crate) create_needs_body: bool,
    pub(crate) included: &'static [Part],
    pub(crate) read_included: ReadIncluded,
    pub(crate) get_parameters: &'static [Parameter],
    pub(crate) create_parameters: &'static [Parameter],
    pub(crate) update_parameters: &'static [Parameter],
    pub(crate) delete_parameters: &'static [Parameter],
    pub(crate) writers: Role,
    pub(crate) admin_operations: &'static [&'static str],
    /// Who may see, use and change an object.
    pub rights: Rights,
    /// Checks the right of a caller to the object in a path.
    pub check: CheckObject,
    /// Whether an object exists that the caller may not see.
    pub hides: Hides,
    /// The field of the stored form with the ID of the owner, if it has one.
    pub owned_by: Option<&'static str>,
    /// Whether the stored form has a reference to its owner.
    pub refers_to_owner: bool,
    /// Whether the objects of an owner are removed with it.
    pub is_removed_with_owner: bool,

    pub(crate) create: Create,
    pub(crate) preview: Preview,
    /// Decides the stored form after an update.
    pub update: Update,
    /// Refuses a body with wrong names or types, without reading an object.
    pub(crate) inspect_update: fn(Option<Value>) -> Result<(), Refusal>,
    pub(crate) may_change: Removal,
    pub(crate) container: fn(&Document) -> Result<Option<String>, Fault>,
    /// Decides the writes that must precede a removal.
    pub before_removal: Removal,
    pub(crate) check_removal: CheckRemoval,
    /// Names of secrets that differ between two forms of a document.
    pub(crate) changed_secrets: fn(&Document, &Document) -> Result<Vec<&'static str>, Fault>,
    /// The secret field of a view, for kinds that have one.
    pub(crate) readable_secret: Option<SecretOf<Document>>,
    pub(crate) permit: fn(&Caller) -> Result<(), Refusal>,
    /// Writes the view of a document as JSON.
    pub view: fn(&Document, Base<'_>, &mut Vec<u8>) -> Result<(), Fault>,

    /// Schema of the body of a create.
    pub create_schema: SchemaOf,
    /// Schema of the response to a dry run of a create, if there are some.
    pub preview_schema: Option<SchemaOf>,
    /// Schema of the body of an update.
    pub update_schema: SchemaOf,
    /// Schema of one object as it is shown.
    pub view_schema: SchemaOf,
    /// Schema of a page of its list.
    pub list_schema: SchemaOf,
}

/// Decides a new object from the body of an ID and a request body.
pub type Create =
    for<'a> fn(&'a Cx<'a>, Ksuid, Option<Value>) -> BoxFuture<'a, Result<StoredDraft, Error>>;

/// Reads all further fields of documents.
pub(crate) type ReadIncluded =
    for<'a> fn(&'a Cx<'a>, &'a [Document]) -> BoxFuture<'a, Result<Vec<Fields>, Fault>>;

/// Writes the response to a dry run of a creation from the stored form.
pub(crate) type Preview =
    for<'a> fn(&'a Cx<'a>, &'a Document) -> BoxFuture<'a, Result<String, Error>>;

/// Decides the next state of a document from a request body.
pub type Update = for<'a> fn(
    &'a Cx<'a>,
    &'a Document,
    Option<Value>,
) -> BoxFuture<'a, Result<StoredDraft, Error>>;

pub(crate) type CheckRemoval = for<'a> fn(
    &'a Cx<'a>,
    &'a Document,
    &'a [(String, String)],
) -> BoxFuture<'a, Result<Changes, Error>>;

/// Decides the writes around the removal of a document.
pub type Removal = for<'a> fn(&'a Cx<'a>, &'a Document) -> BoxFuture<'a, Result<Changes, Error>>;

/// A [`Draft`] in stored form.
#[derive(Debug)]
pub struct StoredDraft {
    /// The stored form as JSON.
    pub body: String,
    /// Unique values and references.
    pub links: Links,
    /// Shown only in the response to this write.
    pub reveal: Option<Reveal>,
    /// Writes to other documents that belong to this one.
    pub also: Changes,
}

impl StoredDraft {
    /// The same with further writes and events.
    pub fn and(self, more: Changes) -> Self {
        Self {
            also: self.also.and(more),
            ..self
        }
    }
}

impl ResourceType {
    /// The secret of an object that the caller may read back.
    pub(crate) fn readable_secret(
        &self,
        cx: &Cx<'_>,
        document: &Document,
    ) -> Result<Option<Reveal>, Fault> {
        match self.readable_secret {
            Some(read) => read(document, cx, &document.head),
            None => Ok(None),
        }
    }

    /// Whether a document of the caller's account exists for the caller.
    pub(crate) fn is_seen_by(&self, caller: &Caller, document: &Document) -> Result<bool, Fault> {
        if caller.role == Role::Admin {
            return Ok(true);
        }
        Ok(match self.rights.see {
            See::All | See::Outline => true,
            See::Owner => self.owner_of(document)?.as_deref() == Some(&*caller.owner_id),
            See::Parties => {
                let grant: Grant = stored::read(document)?;
                grant.is_seen_by(&caller.owner_id, caller.role >= Role::Member)
            }
        })
    }

    /// ID of the owner of a document; `None` if it belongs to the admins.
    pub fn owner_of(&self, document: &Document) -> Result<Option<String>, Fault> {
        let Some(field) = self.owned_by else {
            return Ok(None);
        };
        let unreadable =
            |error| Fault::new(format!("reading the owner of {}", document.head.id), error);
        // Names of fields have no escapes.
        let form: HashMap<&str, &RawValue> =
            serde_json::from_str(&document.body).map_err(unreadable)?;
        let owner = form.get(field).map(|raw| serde_json::from_str(raw.get()));
        let owner: Option<String> = owner.transpose().map_err(unreadable)?;
        Ok(owner.filter(|id| !id.is_empty()))
    }

    /// The display name of one object: `SSH public key`.
    pub(crate) fn noun(&self) -> String {
        const SPELLED: [&str; 5] = ["api", "ip", "ssh", "tcp", "tls"];
        let words = self.name.split('_').map(|word| match word {
            _ if SPELLED.contains(&word) => word.to_ascii_uppercase(),
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// The display name with its article: `an SSH public key`.
    pub fn with_article(&self) -> String {
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

    /// The plural display name: `SSH certificate authorities`.
    pub(crate) fn nouns(&self) -> String {
        let noun = self.noun();
        match noun.strip_suffix('y') {
            Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
            _ if noun.ends_with('s') => format!("{noun}es"),
            _ => format!("{noun}s"),
        }
    }

    /// The stored ID for an ID in a path; `None` when it is malformed or has another prefix.
    pub(crate) fn stored_id(&self, shown: &str) -> Option<String> {
        let (prefix, body) = culvert_base::id::split(shown)?;
        self.prefixes
            .contains(&prefix)
            .then(|| self.stored_id_of(body))
    }

    /// The stored ID with this body.
    pub fn stored_id_of(&self, body: impl fmt::Display) -> String {
        let prefix = self.prefixes.first().copied().unwrap_or(self.id_prefix);
        format!("{prefix}_{body}")
    }

    /// The view of a document as JSON text.
    pub fn view_text(&self, document: &Document, base: Base<'_>) -> Result<String, Fault> {
        let mut text = Vec::with_capacity(512);
        (self.view)(document, base, &mut text)?;
        String::from_utf8(text).map_err(|error| Fault::new("writing a view", error))
    }
}

/// The refusal of a value of the right type that is not allowed in a body of `R`.
pub fn value_refusal<R: Resource>(problem: Problem) -> Refusal {
    refusal_with(problem, R::VALUE_CODES)
}

/// The refusal of a problem with a body, with the codes of a resource for its values.
pub(crate) fn refusal_with(problem: Problem, codes: &[(&str, Code)]) -> Refusal {
    match problem {
        Problem::Shape(refusal) => refusal,
        Problem::Value { field, why } => {
            let code = codes
                .iter()
                .find_map(|(name, code)| (*name == field).then_some(*code))
                .unwrap_or(code::BODY_FIELD_INVALID);
            Refusal::new(code, format!("`{field}` is invalid: {why}."))
        }
    }
}

/// The schema of a list of `R`.
pub fn list_schema<R: Model>(generator: &mut SchemaGenerator) -> Schema {
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

/// The run of an operation.
pub type Running<'a> = BoxFuture<'a, Result<Reply, Error>>;
