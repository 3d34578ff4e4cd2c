//! Lists of any resource: query parameters, filters and pages (contract: management API 1.9 and 1.10).
//!
//! A filter is evaluated on the view of each object that is read. The store chooses the objects to read:
//! those with a text that the filter requires, if they are few; those in the range of IDs and times that it
//! allows; else all, until evaluation has cost `FILTER_WORK_MAX`.

pub mod include;
pub mod listfilter;
pub mod page;
pub mod referrers;
pub mod search;
pub mod sorted;

use std::borrow::Cow;
use std::collections::HashMap;

use culvert_base::{Fault, Refusal, code, id};
use culvert_store::{Document, Like, PageQuery, TextQuery};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Kernel;
use crate::access::rights::See;
use crate::cx::Cx;
use crate::cx::base::PublicPorts;
use crate::list::listfilter::{Field, ID, ListFilter, Looked, Shape, Span};
use crate::list::page::{Argument, Fields, LIMIT_MAX, ListQuery, Takes};
use crate::operation::{Call, Reply};
use crate::resource::ResourceType;
use crate::{Error, Role};

/// Limit of the cost of filtering one list, if the number of objects to read is unknown. The cost is counted
/// and not timed, so that a busy machine refuses no more than an idle one. A unit is about a nanosecond.
const FILTER_WORK_MAX: u64 = 50_000_000;
/// Cost of one object, and of each byte of its view, which is written and parsed.
const OBJECT_WORK: u64 = 200;
const BYTE_WORK: u64 = 4;
/// Cost of the further fields of one object, which other documents have.
const INCLUDED_WORK: u64 = 2_000;
/// Limit of objects that are read one by one because they contain a text. If more contain it, reading the
/// newest objects fills a page as fast.
const FOUND_MAX: u32 = 1000;

/// `GET /<collection>`.
pub async fn list(kernel: &Kernel, ty: &'static ResourceType, call: Call) -> Result<Reply, Error> {
    let cx = kernel.cx(&call.caller, &call.base);
    let listed = Listed {
        uri: format!("{}/{}", cx.base, ty.collection),
        takes_filter: ty.filter.is_some(),
        arguments: ty.arguments,
        refs_to: None,
        having: None,
    };
    list_of(&cx, ty, &call.query, listed).await
}

/// The objects of a list before the caller's filters.
#[expect(missing_debug_implementations, reason = "the condition is a function")]
pub struct Listed<'a> {
    /// URI of the list.
    pub uri: String,
    /// Whether the query may have `filter`.
    pub takes_filter: bool,
    /// Parameters that only this list has.
    pub arguments: &'static [Argument],
    /// Only objects that refer to this one.
    pub refs_to: Option<String>,
    /// Only objects whose view meets this condition.
    pub having: Option<Having<'a>>,
}

/// A condition on the view of an object.
pub(crate) type Having<'a> = &'a (dyn Fn(&Value) -> bool + Send + Sync);

fn conditions(
    ty: &ResourceType,
    query: &[(String, String)],
    listed: &Listed<'_>,
) -> Result<ListQuery, Refusal> {
    let takes = Takes {
        prefixes: ty.prefixes,
        filter: listed.takes_filter,
        arguments: listed.arguments,
        included: ty.included,
    };
    ListQuery::read(query, takes)
}

/// Refuses an invalid query, without reading an object.
pub fn check_query(
    ty: &ResourceType,
    query: &[(String, String)],
    listed: &Listed<'_>,
) -> Result<(), Refusal> {
    conditions(ty, query, listed).map(drop)
}

/// A page of objects as JSON text.
pub async fn list_of(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    query: &[(String, String)],
    listed: Listed<'_>,
) -> Result<Reply, Error> {
    let wanted = conditions(ty, query, &listed)?;
    let sieve = Sieve::of(cx, ty, &wanted, &listed)?;
    let collection_uri = listed.uri;

    let limit = usize::try_from(wanted.limit).unwrap_or(usize::MAX);
    let mut body = Vec::with_capacity(4096);
    body.extend_from_slice(format!("{{\"{}\":[", ty.list_field).as_bytes());
    let Reading {
        source,
        from,
        mut before,
        refs_to,
    } = Reading::of(cx, ty, &sieve, wanted.before.as_deref(), listed.refs_to).await?;
    let mut n_listed = 0;
    let mut with_secrets = Vec::new();
    let mut last = String::new();
    let mut next_page = None;
    let mut work = 0_u64;
    'pages: loop {
        // Read one more than the page shows, to find out whether there is another page.
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
        let ObjectPage { documents, next } = source.read(cx, &query).await?;
        let mut included = match sieve.has_included(ty) || !wanted.include.is_empty() {
            true => (ty.read_included)(cx, &documents).await?,
            false => Vec::new(),
        }
        .into_iter();
        for document in &documents {
            let included = included.next();
            if from.as_ref().is_some_and(|from| document.head.id < *from) {
                break 'pages;
            }
            if !ty.is_seen_by(cx.caller, document)? {
                continue;
            }
            let start = body.len();
            if n_listed > 0 {
                body.push(b',');
            }
            let view_start = body.len();
            (ty.view)(document, cx.base, &mut body)?;
            let view = body.get(view_start..).unwrap_or_default();
            let n_bytes = u64::try_from(view.len()).unwrap_or(u64::MAX);
            work = work.saturating_add(OBJECT_WORK + n_bytes.saturating_mul(BYTE_WORK));
            if included.is_some() {
                work = work.saturating_add(INCLUDED_WORK);
            }
            if !sieve.passes(view, document, included.as_ref(), &mut work)? {
                body.truncate(start);
            } else if n_listed == limit {
                body.truncate(start);
                next_page = Some(wanted.next_page(&collection_uri, &shown_id(ty, &last)));
                break 'pages;
            } else {
                n_listed += 1;
                last.clone_from(&document.head.id);
                // After the filters, which do not see secrets.
                if let Some(reveal) = ty.readable_secret(cx, document)? {
                    let view = str::from_utf8(body.get(view_start..).unwrap_or_default())
                        .map_err(|error| Fault::new("writing a list", error))?;
                    let view = reveal.shown_in(view)?;
                    body.truncate(view_start);
                    body.extend_from_slice(view.as_bytes());
                    with_secrets.push(document.head.id.clone());
                }
                if let Some(included) = &included {
                    include::add(&mut body, &wanted.include, included)?;
                }
            }
            let is_unbounded = !sieve.is_open() && !matches!(source, ObjectSource::Ids(_));
            if is_unbounded && work > FILTER_WORK_MAX {
                return Err(too_long());
            }
        }
        let Some(next) = next else { break };
        before = Some(next);
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
    let body = String::from_utf8(body).map_err(|error| Fault::new("writing a list", error))?;
    Ok(match with_secrets.is_empty() {
        true => Reply::Ok(body),
        false => Reply::Secret {
            body,
            ids: with_secrets,
        },
    })
}

/// The objects that a list reads.
struct Reading {
    source: ObjectSource,
    /// No object before this ID matches.
    from: Option<String>,
    before: Option<String>,
    refs_to: Option<String>,
}

impl Reading {
    async fn of(
        cx: &Cx<'_>,
        ty: &'static ResourceType,
        sieve: &Sieve<'_>,
        before: Option<&str>,
        refs_to: Option<String>,
    ) -> Result<Self, Fault> {
        let mut span = sieve.span(ty, before);
        let from = span.from.take().map(|body| ty.stored_id_of(body));
        let before = span.before.take().map(|body| ty.stored_id_of(body));
        let own = only_owner(cx, ty);
        let source = match refs_to.as_ref().or(own.as_ref()) {
            // An index of the stored form would let the time of a list depend on what the caller does not see.
            None if ty.rights.see != See::All && cx.caller.role != Role::Admin => ObjectSource::All,
            None => ObjectSource::find(cx, ty, &mut span).await?,
            Some(_) => ObjectSource::All,
        };
        Ok(Self {
            source,
            from,
            before,
            refs_to: own.or(refs_to).or(span.refers_to),
        })
    }
}

/// The owner whose objects alone are read: objects that only their owner may see are read by owner, so that the objects
/// of others neither cost time nor affect the result.
fn only_owner(cx: &Cx<'_>, ty: &ResourceType) -> Option<String> {
    (ty.refers_to_owner && cx.caller.role != Role::Admin).then(|| cx.caller.owner_id.clone())
}

/// How a list reads its objects, newest first.
#[derive(Debug)]
enum ObjectSource {
    /// All objects of a kind, or those that refer to one object.
    All,
    /// Objects whose stored form contains a text.
    Containing(String),
    /// Objects with a text in a field.
    Text(&'static str, String),
    /// Objects with these IDs, newest first.
    Ids(Vec<String>),
}

/// Objects, and the ID before which the next page starts, if there is one.
struct ObjectPage {
    documents: Vec<Document>,
    next: Option<String>,
}

impl ObjectSource {
    /// The narrowest source that the store supports.
    async fn find(cx: &Cx<'_>, ty: &ResourceType, span: &mut Span) -> Result<Self, Fault> {
        if let Some(bodies) = span.ids.take() {
            let mut ids: Vec<_> = bodies.iter().map(|body| ty.stored_id_of(body)).collect();
            ids.sort_unstable_by(|a, b| b.cmp(a));
            ids.dedup();
            return Ok(Self::Ids(ids));
        }
        let mut texts = std::mem::take(&mut span.texts);
        let mut common = None;
        if !texts.is_empty() && cx.store.has_all_texts().await? {
            texts.sort_by_key(|any| any.iter().map(|one| effort(&one.like)).max());
            let mut fewest: Option<Vec<String>> = None;
            for any in texts {
                // A search through every text is not worth it if another condition already leaves few
                // objects.
                let is_far = any.iter().any(|one| matches!(one.like, Like::Contains(_)));
                if fewest.is_some() && is_far {
                    break;
                }
                match found(cx, ty, &any).await? {
                    Some(ids) if fewest.as_ref().is_none_or(|few| ids.len() < few.len()) => {
                        fewest = Some(ids);
                    }
                    Some(_) => {}
                    None => common = common.or_else(|| single(any)),
                }
            }
            if let Some(ids) = fewest {
                return Ok(Self::Ids(ids));
            }
        }
        if span.refers_to.is_some() {
            return Ok(Self::All);
        }
        Ok(match (common, span.contains.take()) {
            (Some((field, text)), _) => Self::Text(field, text),
            (None, Some(text)) => Self::Containing(text),
            (None, None) => Self::All,
        })
    }

    async fn read(&self, cx: &Cx<'_>, query: &PageQuery) -> Result<ObjectPage, Fault> {
        let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
        let documents = match self {
            Self::All => cx.store.page(query).await?,
            Self::Containing(text) => cx.store.page_containing(query, text).await?,
            Self::Text(field, text) => cx.store.page_by_text(query, field, text).await?,
            Self::Ids(ids) => {
                let is_behind = |id: &&String| query.before.as_ref().is_none_or(|end| *id < end);
                let ids: Vec<String> = ids.iter().filter(is_behind).take(limit).cloned().collect();
                let mut documents = cx.store.get_many(&ids).await?;
                documents
                    .retain(|one| one.head.kind == query.kind && one.head.account == query.account);
                let next = (ids.len() == limit).then(|| ids.last().cloned()).flatten();
                return Ok(ObjectPage { documents, next });
            }
        };
        let is_last = documents.len() < limit;
        let next = documents.last().filter(|_| !is_last);
        Ok(ObjectPage {
            next: next.map(|document| document.head.id.clone()),
            documents,
        })
    }
}

/// Views of the newest objects with this part in a text field of their view, which the store indexes. Of very many with it,
/// only the newest objects of all are read.
pub async fn newest_with(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    (field, part): (&'static str, &str),
    most: usize,
) -> Result<Vec<Value>, Fault> {
    // The index would let the time depend on what the caller does not see.
    let is_indexed = ty.rights.see == See::All || cx.caller.role == Role::Admin;
    let ids = match is_indexed && cx.store.has_all_texts().await? {
        true => {
            let like = Like::Contains(part.to_owned());
            found(cx, ty, &[Looked { field, like }]).await?
        }
        false => None,
    };
    let mut source = ids.map_or(ObjectSource::All, ObjectSource::Ids);
    if only_owner(cx, ty).is_some() {
        source = ObjectSource::All;
    }
    let query = PageQuery {
        kind: ty.kind.to_owned(),
        account: cx.caller.account.clone(),
        before: None,
        limit: LIMIT_MAX,
        refs_to: only_owner(cx, ty),
    };
    let mut views = Vec::new();
    for document in &source.read(cx, &query).await?.documents {
        if views.len() < most && ty.is_seen_by(cx.caller, document)? {
            let view: Value = serde_json::from_str(&ty.view_text(document, cx.base)?)
                .map_err(|error| Fault::new("reading a view to search it", error))?;
            let text = view[field].as_str().unwrap_or_default().to_lowercase();
            let is_found = text.contains(part);
            views.extend(is_found.then_some(view));
        }
    }
    Ok(views)
}

/// IDs of all objects with one of these texts, and possibly of others; `None` if there are too many.
async fn found(
    cx: &Cx<'_>,
    ty: &ResourceType,
    any: &[Looked],
) -> Result<Option<Vec<String>>, Fault> {
    let mut found = Vec::new();
    for Looked { field, like } in any {
        let query = TextQuery {
            kind: ty.kind,
            account: &cx.caller.account,
            field,
            like,
        };
        match cx.store.ids_by_text(query, FOUND_MAX).await? {
            Some(ids) => found.extend(ids),
            None => return Ok(None),
        }
    }
    if any.len() > 1 {
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup();
    }
    let is_few = found.len() <= usize::try_from(FOUND_MAX).unwrap_or(usize::MAX);
    Ok(is_few.then_some(found))
}

/// The text that all objects must have, if there is exactly one.
fn single(any: Vec<Looked>) -> Option<(&'static str, String)> {
    match <[Looked; 1]>::try_from(any) {
        Ok(
            [
                Looked {
                    field,
                    like: Like::OneOf(texts),
                },
            ],
        ) => match <[String; 1]>::try_from(texts) {
            Ok([text]) => Some((field, text)),
            Err(_) => None,
        },
        _ => None,
    }
}

/// Relative cost of a text search; cheaper ones run first.
const fn effort(like: &Like) -> u8 {
    match like {
        Like::OneOf(_) => 0,
        Like::Begins(_) => 1,
        Like::Contains(_) => 2,
    }
}

fn too_long() -> Error {
    Refusal::new(
        code::LIST_FILTER_INVALID,
        "The filter takes too much work on this many objects; request fewer objects or simplify the filter.",
    )
    .into()
}

fn shown_id(ty: &ResourceType, stored: &str) -> String {
    match id::split(stored) {
        Some((_, body)) => format!("{}_{body}", ty.id_prefix),
        None => stored.to_owned(),
    }
}

/// The conditions of a list.
struct Sieve<'a> {
    having: Option<Having<'a>>,
    filter: Option<ListFilter>,
    /// The values given for a field.
    arguments: Vec<(&'static str, Vec<Given>)>,
    /// Fields that these name and that views may show in another spelling than the stored one, which counts.
    spelled: Vec<Field>,
    ports: PublicPorts,
}

/// A value of a parameter.
struct Given {
    argument: &'static Argument,
    value: String,
    /// The field of the objects that it may name, as it is stored.
    stored: Vec<String>,
}

impl<'a> Sieve<'a> {
    fn of(
        cx: &Cx<'_>,
        ty: &ResourceType,
        wanted: &ListQuery,
        listed: &Listed<'a>,
    ) -> Result<Self, Refusal> {
        let ports = cx.settings.public_ports;
        let filter = match (&wanted.filter, ty.filter) {
            (Some(source), Some(fields)) => {
                Some(ListFilter::compile(source, fields, cx.clock.now())?)
            }
            _ => None,
        };
        let mut arguments: Vec<(&'static str, Vec<Given>)> = Vec::new();
        for (name, value) in &wanted.arguments {
            let mut known = listed.arguments.iter();
            let Some(argument) = known.find(|one| one.name == *name) else {
                continue;
            };
            let given = Given {
                argument,
                value: value.clone(),
                stored: (argument.stored)(ports, value),
            };
            match arguments
                .iter_mut()
                .find(|(name, _)| *name == argument.field)
            {
                Some((_, values)) => values.push(given),
                None => arguments.push((argument.field, vec![given])),
            }
        }
        let is_named = |field: &Field| {
            let mut given = arguments.iter();
            given.any(|(name, _)| *name == field.name)
                || filter
                    .as_ref()
                    .is_some_and(|it: &ListFilter| it.names(&[field.name]))
        };
        let fields = ty.filter.into_iter().flatten().copied();
        let spelled =
            fields.filter(|field| matches!(field.shape, Shape::Spelled(_)) && is_named(field));
        Ok(Self {
            spelled: spelled.collect(),
            having: listed.having,
            filter,
            arguments,
            ports,
        })
    }

    /// Whether there are no conditions.
    fn is_open(&self) -> bool {
        self.having.is_none() && self.filter.is_none() && self.arguments.is_empty()
    }

    /// Bounds of the matching objects after the previous page.
    fn span(&self, ty: &ResourceType, before: Option<&str>) -> Span {
        let filter = self.filter.as_ref();
        let mut span = filter.map_or_else(Span::default, |filter| filter.span(ty.id_prefix));
        if let Some(before) = before {
            span.bound(before.to_owned());
        }
        for (name, values) in &self.arguments {
            let field = ty
                .filter
                .into_iter()
                .flatten()
                .find(|field| field.name == *name);
            let stored = values.iter().flat_map(|given| &given.stored);
            if *name == ID.name {
                let bodies = stored.filter_map(|value| id::split(value));
                span.ids = Some(bodies.map(|(_, body)| body.to_owned()).collect());
            } else if let Some(field) = field {
                span.texts
                    .extend(Looked::one_of(*field, stored.cloned().collect()).map(|one| vec![one]));
            }
        }
        span
    }

    /// Whether the filter refers to further fields of objects.
    fn has_included(&self, ty: &ResourceType) -> bool {
        let filter = self.filter.as_ref();
        let mut parts = ty.included.iter();
        filter.is_some_and(|filter| parts.any(|part| filter.names(part.fields)))
    }

    /// Whether an object with these further fields matches. Adds the cost of the filter to `work`.
    fn passes(
        &self,
        view: &[u8],
        document: &Document,
        included: Option<&Fields>,
        work: &mut u64,
    ) -> Result<bool, Fault> {
        if self.is_open() {
            return Ok(true);
        }
        let mut object: Value = serde_json::from_slice(view)
            .map_err(|error| Fault::new("reading a view to filter it", error))?;
        if let (Some(object), Some(included)) = (object.as_object_mut(), included) {
            object.extend(included.clone());
        }
        self.spell_as_stored(document, &mut object, work)?;
        if let Some(filter) = &self.filter {
            *work = work.saturating_add(filter.work(&object));
        }
        let has_one_of = |(field, values): &(&'static str, Vec<Given>)| {
            let value = object
                .get(field)
                .and_then(Value::as_str)
                .unwrap_or_default();
            values.iter().any(|given| {
                given.stored.iter().any(|one| one == value)
                    && (given.argument.names)(self.ports, &given.value, &object)
            })
        };
        Ok(self.having.is_none_or(|having| having(&object))
            && self.arguments.iter().all(has_one_of)
            && self
                .filter
                .as_ref()
                .is_none_or(|filter| filter.matches(&object)))
    }

    /// Gives the view of an object the fields as they are stored whose spelling the view may have from the caller.
    fn spell_as_stored(
        &self,
        document: &Document,
        object: &mut Value,
        work: &mut u64,
    ) -> Result<(), Fault> {
        if self.spelled.is_empty() {
            return Ok(());
        }
        let n_bytes = u64::try_from(document.body.len()).unwrap_or(u64::MAX);
        *work = work.saturating_add(n_bytes);
        let unread = |error| Fault::new("reading a stored field to filter it", error);
        let form: HashMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(&document.body).map_err(unread)?;
        for field in &self.spelled {
            let Shape::Spelled(within) = field.shape else {
                continue;
            };
            let part = form
                .get(within)
                .map(|part| serde_json::from_str(part.get()));
            let part: Option<Value> = part.transpose().map_err(unread)?;
            object[field.name] = part.map_or(Value::Null, |mut part| part[field.name].take());
        }
        Ok(())
    }
}
