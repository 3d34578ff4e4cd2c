//! Create, get, list, update and delete over any resource.
//!
//! Each write reads, decides and commits; when what it read has moved on meanwhile it begins anew, at
//! most [`RUNS_MAX`] times. A write and its audit event are committed together or not at all, and
//! the answer shows the state after the commit.
//!
//! Not here: what a single resource allows (its file), what an event looks like (`audit`).

use std::time::{Duration, Instant};

use culvert_base::{Class, Code, Fault, Refusal, id};
use culvert_store::{Changes, CommitError, Document, Head, PageQuery};
use serde_json::Value;
use tokio::sync::MutexGuard;

use crate::audit::{self, Verb};
use crate::cx::Cx;
use crate::listfilter::{ListFilter, Span};
use crate::operation::{Call, Reply};
use crate::page::{Argument, LIMIT_MAX, Takes, Wanted};
use crate::resource::{Made, ResourceType, Reveal};
use crate::{Control, Error};

/// Runs of a write that others keep overtaking.
pub(crate) const RUNS_MAX: usize = 6;

/// What evaluating the filter of one list may take.
const FILTER_BUDGET: Duration = Duration::from_millis(50);

/// `POST /<collection>`.
pub(crate) async fn create(
    control: &Control,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = control.cx(&call.caller, &call.base);
    let mut _again = None;
    for run in 0..RUNS_MAX {
        if run == 1 {
            _again = Some(cx.turns.again().await);
        }
        let id = cx.new_id();
        let made = (ty.create)(&cx, id, call.body.clone()).await?;
        let document = Document {
            head: Head {
                id: ty.stored_id_of(id),
                kind: ty.kind.to_owned(),
                account: cx.caller.account.clone(),
                revision: 0,
                created_at: id.at(),
                updated_at: id.at(),
            },
            body: made.body,
            keys: made.links.keys,
            refs: made.links.refs,
            topics: made.links.topics,
        };
        let view = ty.view_text(&document, cx.base)?;
        let told = audit::told(&cx, ty, Verb::Created, &view)?;
        let changes = Changes::insert(document, told).and(made.also);
        if commit(&cx, ty, changes).await? {
            return Ok(match made.reveal {
                None => Reply::Created {
                    body: view,
                    secret: false,
                },
                Some(reveal) => Reply::Created {
                    body: revealed(&view, &reveal)?,
                    secret: true,
                },
            });
        }
    }
    Err(overtaken())
}

/// `GET /<collection>/{id}`.
pub(crate) async fn get(
    control: &Control,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = control.cx(&call.caller, &call.base);
    let document = named(&cx, ty, &call)
        .await?
        .ok_or_else(Refusal::not_found)?;
    Ok(Reply::Ok(ty.view_text(&document, cx.base)?))
}

/// `PATCH /<collection>/{id}`.
pub(crate) async fn update(
    control: &Control,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = control.cx(&call.caller, &call.base);
    let _turn = turn(&cx, ty, &call).await;
    let mut _again = None;
    for run in 0..RUNS_MAX {
        if run == 1 {
            _again = Some(cx.turns.again().await);
        }
        let Some(document) = named(&cx, ty, &call).await? else {
            // A body with wrong names is refused before an absent object is.
            (ty.inspect_update)(call.body)?;
            return Err(Refusal::not_found().into());
        };
        let made = (ty.update)(&cx, &document, call.body.clone()).await?;
        if let Some(view) = replace(&cx, ty, document.head, made).await? {
            return Ok(Reply::Ok(view));
        }
    }
    Err(overtaken())
}

/// `DELETE /<collection>/{id}`.
pub(crate) async fn delete(
    control: &Control,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = control.cx(&call.caller, &call.base);
    let _turn = turn(&cx, ty, &call).await;
    let mut _again = None;
    for run in 0..RUNS_MAX {
        if run == 1 {
            _again = Some(cx.turns.again().await);
        }
        let document = named(&cx, ty, &call)
            .await?
            .ok_or_else(Refusal::not_found)?;
        (ty.permit)(cx.caller)?;
        let before = (ty.before_removal)(&cx, &document).await?;
        let after = (ty.after_removal)(&cx, &document).await?;
        let changes = before.and(removal(&cx, ty, document)?).and(after);
        if commit(&cx, ty, changes).await? {
            return Ok(Reply::NoContent);
        }
    }
    Err(overtaken())
}

/// The removal of a document and what is told of it: its last state.
pub(crate) fn removal(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    document: Document,
) -> Result<Changes, Error> {
    let view = ty.view_text(&document, cx.base)?;
    let told = audit::told(cx, ty, Verb::Deleted, &view)?;
    Ok(Changes::remove(document.head, told))
}

/// Another body for a document beside the one that is written, and what is told of it.
pub(crate) fn rewriting(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    document: Document,
) -> Result<Changes, Error> {
    let view = ty.view_text(&document, cx.base)?;
    let told = audit::told(cx, ty, Verb::Updated, &view)?;
    Ok(Changes::replace(document, told))
}

/// Commits another state of a document and answers its view; `None` when it has moved on since it
/// was read.
pub(crate) async fn replace(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    head: Head,
    made: Made,
) -> Result<Option<String>, Error> {
    let document = Document {
        head: Head {
            updated_at: cx.clock.now().whole_seconds(),
            ..head
        },
        body: made.body,
        keys: made.links.keys,
        refs: made.links.refs,
        topics: made.links.topics,
    };
    let view = ty.view_text(&document, cx.base)?;
    let told = audit::told(cx, ty, Verb::Updated, &view)?;
    let changes = Changes::replace(document, told).and(made.also);
    Ok(commit(cx, ty, changes).await?.then_some(view))
}

/// Commits; `false` when something has moved on and the write must be decided anew.
async fn commit(cx: &Cx<'_>, ty: &ResourceType, changes: Changes) -> Result<bool, Error> {
    const WRONG: Code = Code::new(215);
    match cx.store.commit(changes).await {
        Ok(_) => Ok(true),
        Err(CommitError::Stale) => Ok(false),
        Err(CommitError::Duplicate { kind, name }) => match ty.taken {
            Some(code) if kind == ty.kind && name != "id" => Err(Refusal::of(code).into()),
            // A document beside the resource came up meanwhile: look again.
            _ => Ok(false),
        },
        Err(CommitError::Missing { field, to }) => Err(Refusal::new(
            ty.unknown.unwrap_or(WRONG),
            format!("`{field}` names `{to}`, which does not exist."),
        )
        .into()),
        Err(CommitError::InUse { by, .. }) => Err(Refusal::new(
            ty.in_use.unwrap_or(WRONG),
            format!("This object is in use by `{by}`."),
        )
        .into()),
        Err(CommitError::Fault(fault)) => Err(fault.into()),
    }
}

pub(crate) fn overtaken() -> Error {
    Refusal::uncoded(
        Class::Conflict,
        "Others kept changing this object; try again.",
    )
    .into()
}

/// The turn of the object the first path parameter names.
pub(crate) async fn turn<'a>(
    cx: &Cx<'a>,
    ty: &ResourceType,
    call: &Call,
) -> Option<MutexGuard<'a, ()>> {
    let id = ty.stored_id(call.path.first()?)?;
    cx.turns.of(&id).await
}

/// The document the first path parameter names, if it is the caller's.
pub(crate) async fn named(
    cx: &Cx<'_>,
    ty: &ResourceType,
    call: &Call,
) -> Result<Option<Document>, Fault> {
    match call.path.first().and_then(|shown| ty.stored_id(shown)) {
        Some(id) => cx.own(ty.kind, &id).await,
        None => Ok(None),
    }
}

/// A view with its secret in place.
fn revealed(view: &str, reveal: &Reveal) -> Result<String, Fault> {
    let parse = |text| {
        serde_json::from_str::<Value>(text).map_err(|error| Fault::new("revealing a secret", error))
    };
    let mut value = parse(view)?;
    let field = value
        .pointer_mut(&reveal.pointer)
        .ok_or_else(|| Fault::bare("revealing a secret: the view has no such field"))?;
    *field = parse(reveal.json.reveal())?;
    Ok(value.to_string())
}

/// `GET /<collection>`.
pub(crate) async fn list(
    control: &Control,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = control.cx(&call.caller, &call.base);
    let listed = Listed {
        uri: format!("{}/{}", cx.base, ty.collection),
        takes_filter: ty.filter.is_some(),
        arguments: ty.arguments,
        refs_to: None,
        having: None,
    };
    list_of(&cx, ty, &call.query, listed).await
}

/// Which objects a list is of, before its caller asks for fewer.
pub(crate) struct Listed<'a> {
    /// Where the list is.
    pub(crate) uri: String,
    pub(crate) takes_filter: bool,
    pub(crate) arguments: &'static [Argument],
    /// Only objects that refer to this one.
    pub(crate) refs_to: Option<String>,
    /// Only objects whose view this holds for.
    pub(crate) having: Option<Having<'a>>,
}

/// A condition on the view of an object.
pub(crate) type Having<'a> = &'a (dyn Fn(&Value) -> bool + Send + Sync);

fn wanted(
    ty: &ResourceType,
    query: &[(String, String)],
    listed: &Listed<'_>,
) -> Result<Wanted, Refusal> {
    let takes = Takes {
        prefixes: ty.prefixes,
        filter: listed.takes_filter,
        arguments: listed.arguments,
    };
    Wanted::read(query, takes)
}

/// Refuses a query that is wrong, without looking at any object.
pub(crate) fn check_query(
    ty: &ResourceType,
    query: &[(String, String)],
    listed: &Listed<'_>,
) -> Result<(), Refusal> {
    wanted(ty, query, listed).map(drop)
}

/// A page of objects, JSON text.
pub(crate) async fn list_of(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    query: &[(String, String)],
    listed: Listed<'_>,
) -> Result<Reply, Error> {
    let wanted = wanted(ty, query, &listed)?;
    let sieve = Sieve::of(cx, ty, &wanted, listed.having)?;
    let collection_uri = listed.uri;

    let limit = usize::try_from(wanted.limit).unwrap_or(usize::MAX);
    let mut body = Vec::with_capacity(4096);
    body.extend_from_slice(format!("{{\"{}\":[", ty.list_field).as_bytes());
    let span = sieve.span(ty, wanted.before.as_deref());
    let from = span.from.map(|body| ty.stored_id_of(body));
    let mut before = span.before.map(|body| ty.stored_id_of(body));
    let refs_to = listed.refs_to.or(span.refers_to);
    let mut n_listed = 0;
    let mut last = String::new();
    let mut next_page = None;
    let mut spent = Duration::ZERO;
    'pages: loop {
        // One more than is shown tells whether there is another page.
        let query = PageQuery {
            kind: ty.kind.to_owned(),
            account: cx.caller.account.clone(),
            before: before.take(),
            limit: if sieve.is_open() {
                wanted.limit + 1
            } else {
                LIMIT_MAX + 1
            },
            refs_to: refs_to.clone(),
        };
        let documents = match &span.contains {
            Some(text) if refs_to.is_none() => cx.store.page_containing(&query, text).await?,
            _ => cx.store.page(&query).await?,
        };
        let is_last = documents.len() < usize::try_from(query.limit).unwrap_or(usize::MAX);
        let began = Instant::now();
        for document in &documents {
            if from.as_ref().is_some_and(|from| document.head.id < *from) {
                break 'pages;
            }
            let start = body.len();
            if n_listed > 0 {
                body.push(b',');
            }
            let view_start = body.len();
            (ty.view)(document, cx.base, &mut body)?;
            if !sieve.passes(body.get(view_start..).unwrap_or_default())? {
                body.truncate(start);
            } else if n_listed == limit {
                body.truncate(start);
                next_page = Some(wanted.next_page(&collection_uri, &shown_id(ty, &last)));
                break 'pages;
            } else {
                n_listed += 1;
                last.clone_from(&document.head.id);
            }
            if !sieve.is_open() && spent + began.elapsed() > FILTER_BUDGET {
                return Err(too_long());
            }
        }
        spent += began.elapsed();
        if is_last {
            break;
        }
        before = documents.last().map(|document| document.head.id.clone());
    }

    let text = |value: &str| Value::from(value).to_string();
    body.extend_from_slice(b"],\"uri\":");
    body.extend_from_slice(text(&collection_uri).as_bytes());
    body.extend_from_slice(b",\"next_page_uri\":");
    body.extend_from_slice(
        next_page
            .as_deref()
            .map_or("null".to_owned(), text)
            .as_bytes(),
    );
    body.push(b'}');
    String::from_utf8(body)
        .map(Reply::Ok)
        .map_err(|error| Fault::new("writing a list", error).into())
}

fn too_long() -> Error {
    const INVALID: Code = Code::new(250);
    Refusal::new(
        INVALID,
        "The filter takes too long over this many objects; ask for fewer of them, or filter by less.",
    )
    .into()
}

fn shown_id(ty: &ResourceType, stored: &str) -> String {
    match id::split(stored) {
        Some((_, body)) => format!("{}_{body}", ty.id_prefix),
        None => stored.to_owned(),
    }
}

/// What objects must be like to be listed.
struct Sieve<'a> {
    having: Option<Having<'a>>,
    filter: Option<ListFilter>,
    /// A field and the values of which it must have one.
    arguments: Vec<(&'static str, Vec<String>)>,
}

impl<'a> Sieve<'a> {
    fn of(
        cx: &Cx<'_>,
        ty: &ResourceType,
        wanted: &Wanted,
        having: Option<Having<'a>>,
    ) -> Result<Self, Refusal> {
        let filter = match (&wanted.filter, ty.filter) {
            (Some(source), Some(fields)) => {
                Some(ListFilter::compile(source, fields, cx.clock.now())?)
            }
            _ => None,
        };
        let mut arguments: Vec<(&'static str, Vec<String>)> = Vec::new();
        for (_, field, value) in &wanted.arguments {
            match arguments.iter_mut().find(|(name, _)| name == field) {
                Some((_, values)) => values.push(value.clone()),
                None => arguments.push((field, vec![value.clone()])),
            }
        }
        Ok(Self {
            having,
            filter,
            arguments,
        })
    }

    /// Whether everything passes.
    fn is_open(&self) -> bool {
        self.having.is_none() && self.filter.is_none() && self.arguments.is_empty()
    }

    /// Where all that passes is, behind the page before.
    fn span(&self, ty: &ResourceType, before: Option<&str>) -> Span {
        let filter = self.filter.as_ref();
        let mut span = filter.map_or_else(Span::default, |filter| filter.span(ty.id_prefix));
        if let Some(before) = before {
            span.bound(before.to_owned());
        }
        span
    }

    fn passes(&self, view: &[u8]) -> Result<bool, Fault> {
        if self.is_open() {
            return Ok(true);
        }
        let object: Value = serde_json::from_slice(view)
            .map_err(|error| Fault::new("reading a view to filter it", error))?;
        let has_one_of = |(field, values): &(&'static str, Vec<String>)| {
            let value = object
                .get(field)
                .and_then(Value::as_str)
                .unwrap_or_default();
            values.iter().any(|one| one == value)
        };
        Ok(self.having.is_none_or(|having| having(&object))
            && self.arguments.iter().all(has_one_of)
            && self
                .filter
                .as_ref()
                .is_none_or(|filter| filter.matches(&object)))
    }
}
