//! Builds the row of a resource in the table from its behaviour.

use std::marker::PhantomData;

use culvert_base::{BoxFuture, Fault, Ksuid, Refusal};
use culvert_store::{Changes, Document, Head};
use schemars::SchemaGenerator;
use serde_json::Value;

use crate::access::rights::Access;
use crate::cx::Cx;
use crate::cx::base::Base;
use crate::input::Problem;
use crate::input::names::check_names;
use crate::list::page::Fields;
use crate::operation::Call;
use crate::resource::{
    Draft, Resource, ResourceType, Reveal, StoredDraft, list_schema, refusal_with,
};
use crate::{Caller, Error, Kernel, input, service, stored};

impl ResourceType {
    /// The row of `R`.
    pub const fn of<R: Resource>() -> Self {
        Self::of_subject::<R, ()>()
    }

    /// The row of `R`, whose behaviour the subject `S` defines.
    pub const fn of_subject<R: Resource<S>, S: 'static>() -> Self {
        Self {
            name: R::NAME,
            collection: R::COLLECTION,
            list_field: R::LIST_FIELD,
            id_prefix: R::ID_PREFIX,
            doc: R::DOC,
            life: R::LIFE,
            kind: R::KIND,
            prefixes: R::PREFIXES,
            audited: R::AUDITED,
            not_in_events: R::NOT_IN_EVENTS,
            long_texts: R::LONG_TEXTS,
            times_of_use: R::TIMES_OF_USE,
            filter: R::FILTER,
            arguments: R::ARGUMENTS,
            parameters: R::PARAMETERS,
            taken: R::TAKEN,
            in_use: R::IN_USE,
            unknown: R::UNKNOWN,
            create_needs_body: R::CREATE_NEEDS_BODY,
            included: R::INCLUDED,
            read_included: read_included::<R, S>,
            get_parameters: R::GET_PARAMETERS,
            create_parameters: R::CREATE_PARAMETERS,
            update_parameters: R::UPDATE_PARAMETERS,
            delete_parameters: R::DELETE_PARAMETERS,
            writers: R::WRITERS,
            admin_operations: R::ADMIN_OPERATIONS,
            rights: R::RIGHTS,
            check: check::<R, S>,
            hides: hides::<R, S>,
            owned_by: R::OWNED_BY,
            refers_to_owner: R::REFERS_TO_OWNER,
            is_removed_with_owner: R::IS_REMOVED_WITH_OWNER,
            create: create::<R, S>,
            preview: preview::<R, S>,
            update: update::<R, S>,
            inspect_update: inspect_update::<R, S>,
            may_change: may_change::<R, S>,
            container: container::<R, S>,
            before_removal: before_removal::<R, S>,
            check_removal: check_removal::<R, S>,
            changed_secrets: changed_secrets::<R, S>,
            readable_secret: match R::READABLE_SECRET {
                Some(_) => Some(readable_secret::<R, S>),
                None => None,
            },
            permit: R::permit,
            view: view::<R, S>,
            create_schema: SchemaGenerator::subschema_for::<R::Create>,
            preview_schema: R::PREVIEW,
            update_schema: SchemaGenerator::subschema_for::<R::Update>,
            view_schema: SchemaGenerator::subschema_for::<R::View<'static>>,
            list_schema: list_schema::<R>,
        }
    }
}

fn create<'a, R: Resource<S>, S: 'static>(
    cx: &'a Cx<'a>,
    id: Ksuid,
    body: Option<Value>,
) -> BoxFuture<'a, Result<StoredDraft, Error>> {
    Box::pin(async move {
        let names = check_names(body.as_ref());
        let input = match input::create::<R::Create>(body) {
            Err(Problem::Shape(refusal)) => return Err(refusal.into()),
            read => {
                R::permit(cx.caller)?;
                read.map_err(|problem| refusal_with(problem, R::VALUE_CODES))?
            }
        };
        let draft = R::create(cx, id, input).await?;
        names?;
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

fn read_included<'a, R: Resource<S>, S: 'static>(
    cx: &'a Cx<'a>,
    documents: &'a [Document],
) -> BoxFuture<'a, Result<Vec<Fields>, Fault>> {
    Box::pin(R::included(cx, documents))
}

fn preview<'a, R: Resource<S>, S: 'static>(
    cx: &'a Cx<'a>,
    document: &'a Document,
) -> BoxFuture<'a, Result<String, Error>> {
    Box::pin(async move {
        let resource: R = stored::read(document)?;
        resource.preview(cx).await
    })
}

fn update<'a, R: Resource<S>, S: 'static>(
    cx: &'a Cx<'a>,
    document: &'a Document,
    body: Option<Value>,
) -> BoxFuture<'a, Result<StoredDraft, Error>> {
    Box::pin(async move {
        let names = check_names(body.as_ref());
        let update = match input::update::<R::Update>(body) {
            Err(Problem::Shape(refusal)) => return Err(refusal.into()),
            read => {
                R::permit(cx.caller)?;
                read.map_err(|problem| refusal_with(problem, R::VALUE_CODES))?
            }
        };
        if let (true, Some(code)) = (update.is_empty, R::EMPTY_UPDATE) {
            return Err(Refusal::of(code).into());
        }
        let before: R = stored::read(document)?;
        let draft = before.update(cx, &document.head, update.input).await?;
        names?;
        make(draft, &document.head)
    })
}

fn make<R: Resource<S>, S: 'static>(draft: Draft<R>, head: &Head) -> Result<StoredDraft, Error> {
    Ok(StoredDraft {
        body: stored::write(&draft.document)?,
        links: draft.document.links(head),
        reveal: draft.reveal,
        also: draft.also,
    })
}

fn inspect_update<R: Resource<S>, S: 'static>(body: Option<Value>) -> Result<(), Refusal> {
    match input::update::<R::Update>(body) {
        Err(Problem::Shape(refusal)) => Err(refusal),
        _ => Ok(()),
    }
}

fn may_change<'a, R: Resource<S>, S: 'static>(
    cx: &'a Cx<'a>,
    document: &'a Document,
) -> BoxFuture<'a, Result<Changes, Error>> {
    Box::pin(async move {
        let resource: R = stored::read(document)?;
        resource.may_change(cx, &document.head).await
    })
}

fn container<R: Resource<S>, S: 'static>(document: &Document) -> Result<Option<String>, Fault> {
    let resource: R = stored::read(document)?;
    Ok(resource.container().map(str::to_owned))
}

fn before_removal<'a, R: Resource<S>, S: 'static>(
    cx: &'a Cx<'a>,
    document: &'a Document,
) -> BoxFuture<'a, Result<Changes, Error>> {
    Box::pin(async move {
        let resource: R = stored::read(document)?;
        resource.before_removal(cx, &document.head).await
    })
}

fn check_removal<'a, R: Resource<S>, S: 'static>(
    cx: &'a Cx<'a>,
    document: &'a Document,
    query: &'a [(String, String)],
) -> BoxFuture<'a, Result<Changes, Error>> {
    Box::pin(async move {
        let resource: R = stored::read(document)?;
        resource.check_removal(cx, &document.head, query).await
    })
}

fn changed_secrets<R: Resource<S>, S: 'static>(
    before: &Document,
    after: &Document,
) -> Result<Vec<&'static str>, Fault> {
    let before: R = stored::read(before)?;
    Ok(before.changed_secrets(&stored::read(after)?))
}

fn readable_secret<R: Resource<S>, S: 'static>(
    document: &Document,
    cx: &Cx<'_>,
    head: &Head,
) -> Result<Option<Reveal>, Fault> {
    match R::READABLE_SECRET {
        Some(read) => read(&stored::read(document)?, cx, head),
        None => Ok(None),
    }
}

fn view<R: Resource<S>, S: 'static>(
    document: &Document,
    base: Base<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    let resource: R = stored::read(document)?;
    serde_json::to_writer(out, &resource.view(&document.head, base))
        .map_err(|error| Fault::new(format!("writing the view of {}", document.head.id), error))
}

/// The row of a resource, for the functions below.
struct Row<R, S>(PhantomData<(R, S)>);

impl<R: Resource<S>, S: 'static> Row<R, S> {
    const TYPE: &'static ResourceType = &ResourceType::of_subject::<R, S>();
}

fn hides<'a, R: Resource<S>, S: 'static>(
    kernel: &'a Kernel,
    caller: &'a Caller,
    shown: &'a str,
) -> BoxFuture<'a, Result<bool, Fault>> {
    Box::pin(async move {
        let Some(id) = Row::<R, S>::TYPE.stored_id(shown) else {
            return Ok(false);
        };
        let cx = kernel.cx(caller, &kernel.settings.base_url);
        match cx.own(R::KIND, &id).await? {
            Some(document) => Ok(!Row::<R, S>::TYPE.is_seen_by(caller, &document)?),
            None => Ok(false),
        }
    })
}

fn check<'a, R: Resource<S>, S: 'static>(
    kernel: &'a Kernel,
    access: Access,
    call: &'a Call,
) -> BoxFuture<'a, Result<(), Error>> {
    Box::pin(service::check(kernel, Row::<R, S>::TYPE, access, call))
}
