//! The table of operations of the management API. The HTTP server routes it, the OpenAPI document lists it,
//! and the command line offers it. Each row holds the function that runs it.
//!
//! Rows know nothing of HTTP: a row receives an authenticated and parsed [`Call`] and returns a [`Reply`].

pub mod once;
pub mod terms;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use culvert_base::{BoxFuture, Class, Fault, Refusal, code};
use culvert_store::{Changes, CommitError};
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use crate::access::right::Right;
use crate::access::rights::{Access, Rights};
use crate::audit::trace::{OperationKind, POLICY_READ_WITH_SECRETS, Performed, Trace};
use crate::list::page::Parameter;
use crate::operation::once::Claim;
use crate::operation::terms::Terms;
use crate::{Caller, Error, Kernel, audit};

/// One operation: a method on a path. `S` runs it: a subject, or the whole control plane.
#[derive(Debug)]
pub struct Operation<S: 'static> {
    /// `create`, `get`, `list`, `update`, `delete`, or the name of a further operation.
    pub name: &'static str,
    /// The collection it belongs to, as in the path: `api_keys`; `""` for the root and `self`.
    pub collection: &'static str,
    /// HTTP method.
    pub method: Method,
    /// Path with its parameters in braces: `/api_keys/{id}`.
    pub path: String,
    /// Its purpose, in one sentence.
    pub doc: String,
    /// The accepted body; `None` refuses every non-empty body.
    pub body: Option<BodySpec>,
    /// The response on success.
    pub response: ResponseSpec,
    /// Schema of the response to a dry run, if it has one.
    pub preview: Option<SchemaOf>,
    /// The accepted query parameters; others are refused.
    pub query: &'static [Parameter],
    /// The right it needs.
    pub right: Right,
    /// What it needs of the object in its path; `None` without such an object.
    pub object: Option<ObjectRight>,
    /// Whether what its path names is hidden from a caller; `None` if it hides nothing.
    pub hides: Option<Hides>,
    /// What a successful call leaves in the audit log.
    pub trace: Trace,
    /// Runs it, without a check of its scope.
    pub run: Run<S>,
}

impl<S: AsRef<Kernel> + Sync> Operation<S> {
    /// Runs it for a caller whose key has its scope (642), and who has the right to the object in the path (630).
    /// Success and refusal leave their traces in the audit log.
    pub fn call<'a>(&'a self, subject: &'a S, call: Call) -> BoxFuture<'a, Result<Reply, Error>> {
        Box::pin(async move {
            let kernel = subject.as_ref();
            let about = About {
                caller: Arc::new(call.caller.clone()),
                base: call.base.clone(),
                object_id: call.path.first().cloned(),
                asked: call.body.clone().filter(|_| self.shows_body()),
            };
            let mut is_repeated = false;
            let terms = Arc::clone(&call.terms);
            let mut unrecorded = Unrecorded {
                kernel,
                about: &about,
                operation: self.id(),
                kind: match self.trace {
                    Trace::Each(kind) => Some(kind),
                    _ => None,
                },
            };
            let outcome = match self.claimed(kernel, &call) {
                false => self.guarded(subject, call).await,
                true => Box::pin(self.once(subject, call, &mut is_repeated)).await,
            };
            let outcome = outcome.map_err(|error| self.naming(&about, error));
            match &outcome {
                // It was recorded with the request that it repeats.
                Ok(_) if is_repeated => unrecorded.kind = None,
                // The response to a creation shows what the caller sent.
                Ok(Reply::Secret { ids, .. }) if self.name != "create" => {
                    let id = about.object_id.as_deref().unwrap_or_default();
                    let (kind, caller) = (&POLICY_READ_WITH_SECRETS, &about.caller);
                    let read = (id, ids.clone());
                    kernel.record_read(kind, caller, &self.id(), read).await?;
                }
                Ok(reply) => {
                    self.record(kernel, &about, reply, &terms).await?;
                    unrecorded.kind = None;
                }
                Err(Error::Refused(refusal)) => {
                    unrecorded.kind = None;
                    self.note(kernel, &about, refusal).await?;
                }
                Err(Error::Faulted(_)) => {}
            }
            outcome
        })
    }

    /// Commits the event of a successful call, if it has one beside those of objects. Without it the caller gets no
    /// response, so nothing is revealed unseen.
    async fn record(
        &self,
        kernel: &Kernel,
        about: &About,
        reply: &Reply,
        terms: &Terms,
    ) -> Result<(), Error> {
        let operation = self.id();
        let id = about.object_id.as_deref().unwrap_or_default();
        let kind = match self.trace {
            Trace::Nothing | Trace::Objects | Trace::Also(_) => return Ok(()),
            Trace::Hourly(kind) => {
                let caller = &about.caller;
                let read = (id, Vec::new());
                return kernel.record_read(kind, caller, &operation, read).await;
            }
            Trace::HourlyList(kind, ids_of) => {
                let ids = match reply {
                    Reply::Ok(body) => ids_of(body),
                    _ => Vec::new(),
                };
                let (caller, read) = (&about.caller, ("", ids));
                return kernel.record_read(kind, caller, &operation, read).await;
            }
            Trace::Each(kind) => kind,
        };
        let performed = Performed {
            asked: about.asked.as_ref(),
            ..Performed::of(id, &operation)
        };
        let cx = kernel.cx(&about.caller, &about.base);
        let event = audit::operation(&cx, kind.name, &performed)?;
        let mut changes = Changes::event(event);
        if let Some(claim) = terms.claim.get() {
            // It ran outside of the database, so its key is stored and its answer is not.
            changes = changes.and(claim.ended(&about.caller, reply)?);
        }
        let written = kernel.store.commit(changes).await;
        written.map_err(|error| Fault::new("recording an operation", error))?;
        Ok(())
    }

    /// Notes a refused call. A call about what does not exist is an error of the caller, and no refusal.
    async fn note(&self, kernel: &Kernel, about: &About, refusal: &Refusal) -> Result<(), Error> {
        let id = about.object_id.as_deref().and_then(shown_id);
        if refusal.class == Class::NotFound {
            let (Some(hides), Some(id)) = (self.hides, id) else {
                return Ok(());
            };
            if !hides(kernel, &about.caller, id).await? {
                return Ok(());
            }
        }
        kernel.note_refused(&about.caller, &self.id(), refusal, id);
        Ok(())
    }

    /// Claims the key of a call whose effect must not be repeated. Returns whether it has one.
    fn claimed(&self, kernel: &Kernel, call: &Call) -> bool {
        if self.method != Method::Post || call.terms.key.is_none() {
            return false;
        }
        let is_read = match self.trace {
            Trace::Objects | Trace::Also(_) | Trace::Each(_) => false,
            Trace::Nothing | Trace::Hourly(_) | Trace::HourlyList(..) => true,
        };
        match Claim::of(kernel, &self.id(), call) {
            Some(claim) if !is_read => call.terms.claim.set(claim).is_ok(),
            _ => false,
        }
    }

    /// Runs a call with a key, unless the same call was answered before. Sets whether it was.
    async fn once(&self, subject: &S, call: Call, is_repeated: &mut bool) -> Result<Reply, Error> {
        let kernel = subject.as_ref();
        let (terms, caller) = (Arc::clone(&call.terms), call.caller.clone());
        let Some(claim) = terms.claim.get() else {
            return self.guarded(subject, call).await;
        };
        // Who may never do it claims nothing, and is refused as without a key.
        if caller.role < self.right.role {
            return self.guarded(subject, call).await;
        }
        // An answer needs the rights of its request.
        caller.check_scope(self.right)?;
        if let Some(object) = self.object {
            match (object.check)(kernel, object.access, &call).await {
                // The request that is repeated may have made it false.
                Err(Error::Refused(refusal)) if refusal.code == Some(code::PRECONDITION_FAILED) => {
                }
                checked => checked?,
            }
        }
        if let Some(reply) = claim.answered(kernel, &caller, &terms).await? {
            *is_repeated = true;
            return Ok(reply);
        }
        let is_outside = matches!(self.trace, Trace::Each(_));
        if is_outside {
            match kernel.store.commit(claim.begun(&caller)?).await {
                Ok(_) => claim.set_kept(),
                Err(error) => return Err(refused_claim(error)),
            }
        }
        let outcome = self.guarded(subject, call).await;
        match &outcome {
            Err(Error::Refused(_)) if is_outside => {
                let removed = kernel.store.commit(claim.refused()).await;
                removed.map_err(|error| Fault::new("removing a kept answer", error))?;
            }
            // The same request may have been committed meanwhile, and be the cause of the refusal.
            Err(Error::Refused(_)) => {
                if let Some(reply) = claim.answered(kernel, &caller, &terms).await? {
                    *is_repeated = true;
                    return Ok(reply);
                }
            }
            // A creation keeps its answer with the object; a dry run of one keeps none.
            Ok(reply) if !is_outside && !claim.is_kept() && self.name != "create" => {
                if let Some(late) = claim.late(&caller, reply)? {
                    match kernel.store.commit(late).await {
                        // The effect is there, so the caller gets its outcome, also if that cannot be kept.
                        Ok(_) | Err(CommitError::Kept | CommitError::NoRoom) => {}
                        Err(error) => return Err(refused_claim(error)),
                    }
                }
            }
            _ => {}
        }
        outcome
    }

    /// Runs a call whose conditions the operation can check.
    fn guarded<'a>(&'a self, subject: &'a S, call: Call) -> BoxFuture<'a, Result<Reply, Error>> {
        let conditions = &call.terms.conditions;
        let has_state = has_state(self.object, self.collection);
        if !has_state && self.method != Method::Get && conditions.guard() {
            let why = "The operation changes no object that exists, so it has no conditions.";
            let refusal = Refusal::new(code::PRECONDITION_INVALID, why);
            return Box::pin(std::future::ready(Err(refusal.into())));
        }
        self.checked(subject, call)
    }

    /// Names the object in the refusal of a call about what does not exist.
    fn naming(&self, about: &About, error: Error) -> Error {
        match (error, self.object) {
            (Error::Refused(refusal), Some(object))
                if refusal.class == Class::NotFound && refusal.code.is_none() =>
            {
                let refusal = refusal.with("kind", object.kind);
                // Other text may be a token in the wrong place, which no response repeats.
                match about.object_id.as_deref().and_then(shown_id) {
                    Some(id) => refusal.with("id", id).into(),
                    None => refusal.into(),
                }
            }
            (error, _) => error,
        }
    }

    fn checked<'a>(&'a self, subject: &'a S, call: Call) -> BoxFuture<'a, Result<Reply, Error>> {
        if let Err(refusal) = call.caller.check_scope(self.right) {
            return Box::pin(std::future::ready(Err(refusal.into())));
        }
        match self.object {
            Some(object) if object.access != Access::See && !self.is_one_of_five() => {
                Box::pin(async move {
                    (object.check)(subject.as_ref(), object.access, &call).await?;
                    (self.run.0)(subject, call).await
                })
            }
            // It checks the right beside the errors of the request.
            _ => (self.run.0)(subject, call),
        }
    }

    /// The same operation for a whole that this subject is a part of.
    pub fn within<T: 'static>(self, part: fn(&T) -> &S) -> Operation<T> {
        let run = self.run.0;
        Operation {
            name: self.name,
            collection: self.collection,
            method: self.method,
            path: self.path,
            doc: self.doc,
            body: self.body,
            response: self.response,
            preview: self.preview,
            query: self.query,
            right: self.right,
            object: self.object,
            hides: self.hides,
            trace: self.trace,
            run: Run::new(move |whole, call| run(part(whole), call)),
        }
    }
}

/// What a client needs to know of an operation.
#[derive(Debug)]
pub struct OperationSpec {
    /// `create`, `get`, `list`, `update`, `delete`, or the name of a further operation.
    pub name: &'static str,
    /// The collection it belongs to; `""` for the root and `self`.
    pub collection: &'static str,
    /// HTTP method.
    pub method: Method,
    /// Path with its parameters in braces: `/api_keys/{id}`.
    pub path: String,
    /// Its purpose, in one sentence.
    pub doc: String,
    /// The accepted body; `None` if it accepts none.
    pub body: Option<BodySpec>,
    /// The response on success.
    pub response: ResponseSpec,
    /// Schema of the response to a dry run, if it has one.
    pub preview: Option<SchemaOf>,
    /// The accepted query parameters.
    pub query: &'static [Parameter],
    /// The right it needs.
    pub right: Right,
    /// What it needs of the object in its path; `None` without such an object.
    pub object: Option<ObjectRight>,
}

impl OperationSpec {
    /// Its unique ID: `api_keys_create`.
    pub fn id(&self) -> String {
        id_of(self.collection, self.name)
    }

    /// Whether its path names something with a state, which has an entity tag and takes conditions.
    pub fn has_state(&self) -> bool {
        has_state(self.object, self.collection)
    }
}

/// The collections that are one object, which has their path.
const SINGLE: &[&str] = &["api_key_rules"];

fn has_state(object: Option<ObjectRight>, collection: &str) -> bool {
    object.is_some() || SINGLE.contains(&collection)
}

/// The path of the list of events, which can also be followed.
pub const EVENTS_PATH: &str = "/events";

/// The error of a commit that stores a key or an answer.
fn refused_claim(error: CommitError) -> Error {
    match once::refusal_of(&error) {
        Some(refusal) => refusal.into(),
        None => Fault::new("keeping an answer", error).into(),
    }
}

/// Reports an operation whose call ended before its event was committed: the client left, the time was over, or the
/// operation failed after it had done something.
struct Unrecorded<'a> {
    kernel: &'a Kernel,
    about: &'a About,
    operation: String,
    /// `None` once there is nothing to report.
    kind: Option<&'static OperationKind>,
}

impl Drop for Unrecorded<'_> {
    fn drop(&mut self) {
        if let Some(kind) = self.kind {
            let id = self.about.object_id.as_deref().unwrap_or_default();
            let caller = &self.about.caller;
            self.kernel
                .note_performed(kind, caller, &self.operation, id);
        }
    }
}

/// Limit of an ID in an event about a refusal.
const ID_BYTES_MAX: usize = 80;

/// The prefixes of IDs in paths: those of all resources, and of events.
pub const ID_PREFIXES: &[&str] = &[
    "agin", "ah", "ak", "alr", "arl", "as", "au", "bot", "ca", "cert", "cr", "ed", "ep", "esb",
    "ev", "grant", "ipp", "ipr", "ipx", "k8sop", "ra", "rd", "secret", "service", "shcrt", "sshca",
    "sshcr", "sucrt", "tn", "ts", "usr", "vault",
];

/// What a refused call named in its path, for its event. Text that cannot be an ID of ours is not repeated: it may be a
/// token in the wrong place.
pub fn shown_id(named: &str) -> Option<&str> {
    let (prefix, _) = culvert_base::id::split(named)?;
    (named.len() <= ID_BYTES_MAX && ID_PREFIXES.contains(&prefix)).then_some(named)
}

/// What the trace of a call needs, after the call is over.
struct About {
    caller: Arc<Caller>,
    base: String,
    object_id: Option<String>,
    asked: Option<Value>,
}

impl<S> Operation<S> {
    /// What a client needs to know of it.
    pub fn spec(&self) -> OperationSpec {
        OperationSpec {
            name: self.name,
            collection: self.collection,
            method: self.method,
            path: self.path.clone(),
            doc: self.doc.clone(),
            body: self.body,
            response: self.response,
            preview: self.preview,
            query: self.query,
            right: self.right,
            object: self.object,
        }
    }

    fn shows_body(&self) -> bool {
        self.trace.kind().is_some_and(|kind| kind.shows_body)
    }

    /// Whether `service` runs it, which checks the right in its place among the other errors.
    fn is_one_of_five(&self) -> bool {
        matches!(self.name, "get" | "update" | "delete")
    }

    /// Its unique ID: `api_keys_create`.
    pub fn id(&self) -> String {
        id_of(self.collection, self.name)
    }
}

fn id_of(collection: &str, name: &str) -> String {
    match collection {
        "" => name.to_owned(),
        // Some collections have two segments, but client generators need plain names.
        collection => format!("{}_{name}", collection.replace('/', "_")),
    }
}

/// The right that an operation needs to the object in its path.
#[derive(Clone, Copy, Debug)]
pub struct ObjectRight {
    /// Singular name of the resource, with underscores: `api_key`.
    pub kind: &'static str,
    /// The rights to the objects of the resource.
    pub rights: Rights,
    /// What it needs of the object.
    pub access: Access,
    /// Checks that the caller has it.
    pub check: CheckObject,
}

/// Whether the account of a caller has something with this ID, as a path shows it, that the caller may not see. A call
/// about it is refused as if it did not exist.
pub type Hides = for<'a> fn(&'a Kernel, &'a Caller, &'a str) -> BoxFuture<'a, Result<bool, Fault>>;

/// Refuses a call whose caller does not have this right to the object in the path.
pub(crate) type CheckObject =
    for<'a> fn(&'a Kernel, Access, &'a Call) -> BoxFuture<'a, Result<(), Error>>;

/// A function of a subject that runs an operation.
pub type Handler<S> = for<'a> fn(&'a S, Call) -> BoxFuture<'a, Result<Reply, Error>>;

/// What runs an operation.
pub struct Run<S: 'static>(Box<RunFn<S>>);

type RunFn<S> =
    dyn for<'a> Fn(&'a S, Call) -> BoxFuture<'a, Result<Reply, Error>> + Send + Sync + 'static;

impl<S> Run<S> {
    /// Runs an operation of the subject `S`.
    pub fn new(
        run: impl for<'a> Fn(&'a S, Call) -> BoxFuture<'a, Result<Reply, Error>> + Send + Sync + 'static,
    ) -> Self {
        Self(Box::new(run))
    }
}

impl<S> fmt::Debug for Run<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Run")
    }
}

/// A JSON schema as a function, so that a table can hold it.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// HTTP methods in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Reads.
    Get,
    /// Makes.
    Post,
    /// Changes.
    Patch,
    /// Removes.
    Delete,
}

impl Method {
    /// As on the wire: `GET`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// The body of an operation.
#[derive(Clone, Copy, Debug)]
pub struct BodySpec {
    /// Schema of the object.
    pub schema: SchemaOf,
    /// Whether a field is required, so that a call without a body is refused.
    pub required: bool,
}

/// The response of a success.
#[derive(Clone, Copy, Debug)]
pub struct ResponseSpec {
    /// Its status.
    pub status: Status,
    /// Schema of its body; `None` for no body.
    pub schema: Option<SchemaOf>,
}

/// Status of a successful response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// 200.
    Ok,
    /// 201.
    Created,
    /// 204.
    NoContent,
}

/// One call of an operation.
#[derive(Debug)]
pub struct Call {
    /// The caller.
    pub caller: Caller,
    /// Values of the path parameters in order, percent-decoded.
    pub path: Vec<String>,
    /// Query parameters in order, decoded.
    pub query: Vec<(String, String)>,
    /// The body: a JSON object, strictly parsed (no key twice, depth at most 32).
    pub body: Option<Value>,
    /// Public base of `uri` fields, without a trailing slash.
    pub base: String,
    /// The address of the caller, not of a proxy.
    pub address: IpAddr,
    /// `ev_…` of the event about the object that an update follows, as the caller says: one that restores the state at
    /// an event.
    pub cause: Option<String>,
    /// What its headers ask for beside the operation, and what the headers of the response say.
    pub terms: Arc<Terms>,
}

/// The response of a successful operation. Bodies are JSON text.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// 201 with the new object.
    Created {
        /// The object.
        body: String,
        /// Whether the body carries a secret that is shown only once and must not be cached.
        secret: bool,
    },
    /// 200 with an object or a list.
    Ok(String),
    /// 200 with an object or a list that carries secrets and must not be cached.
    Secret {
        /// The object or the list.
        body: String,
        /// For a list, the IDs of its objects with secrets.
        ids: Vec<String>,
    },
    /// 204.
    NoContent,
}
