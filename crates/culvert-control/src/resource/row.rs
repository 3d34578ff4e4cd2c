//! Builds the row of a resource in the table from its behaviour.

use std::marker::PhantomData;

use culvert_base::{BoxFuture, Fault, Ksuid, Refusal};
use culvert_store::{Changes, Document, Head};
use schemars::SchemaGenerator;
use serde_json::Value;

use crate::base::Base;
use crate::control::Control;
use crate::cx::Cx;
use crate::input::{self, Problem};
use crate::names::check_names;
use crate::operation::Call;
use crate::resource::resource_type::{
    Draft, Resource, ResourceType, Reveal, Running, StoredDraft, list_schema, value_refusal,
};
use crate::rights::Access;
use crate::{Error, list, service, stored};

impl ResourceType {
    /// The row of `R`.
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
            create_parameters: R::CREATE_PARAMETERS,
            update_parameters: R::UPDATE_PARAMETERS,
            delete_parameters: R::DELETE_PARAMETERS,
            writers: R::WRITERS,
            admin_operations: R::ADMIN_OPERATIONS,
            rights: R::RIGHTS,
            check: check::<R>,
            owned_by: R::OWNED_BY,
            refers_to_owner: R::REFERS_TO_OWNER,
            create: create::<R>,
            update: update::<R>,
            inspect_update: inspect_update::<R>,
            before_removal: before_removal::<R>,
            check_removal: check_removal::<R>,
            after_removal: after_removal::<R>,
            readable_secret: readable_secret::<R>,
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
}

pub(crate) fn create<'a, R: Resource>(
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
                read.map_err(value_refusal::<R>)?
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

pub(crate) fn update<'a, R: Resource>(
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
                read.map_err(value_refusal::<R>)?
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

pub(crate) fn make<R: Resource>(draft: Draft<R>, head: &Head) -> Result<StoredDraft, Error> {
    Ok(StoredDraft {
        body: stored::write(&draft.document)?,
        links: draft.document.links(head),
        reveal: draft.reveal,
        also: draft.also,
    })
}

pub(crate) fn inspect_update<R: Resource>(body: Option<Value>) -> Result<(), Refusal> {
    match input::update::<R::Update>(body) {
        Err(Problem::Shape(refusal)) => Err(refusal),
        _ => Ok(()),
    }
}

pub(crate) fn before_removal<'a, R: Resource>(
    cx: &'a Cx<'a>,
    document: &'a Document,
) -> BoxFuture<'a, Result<Changes, Error>> {
    Box::pin(async move {
        let resource: R = stored::read(document)?;
        resource.before_removal(cx, &document.head).await
    })
}

pub(crate) fn check_removal<'a, R: Resource>(
    cx: &'a Cx<'a>,
    document: &'a Document,
    query: &'a [(String, String)],
) -> BoxFuture<'a, Result<Changes, Error>> {
    Box::pin(async move {
        let resource: R = stored::read(document)?;
        resource.check_removal(cx, &document.head, query).await
    })
}

pub(crate) fn after_removal<'a, R: Resource>(
    cx: &'a Cx<'a>,
    document: &'a Document,
) -> BoxFuture<'a, Result<Changes, Error>> {
    Box::pin(async move {
        let resource: R = stored::read(document)?;
        resource.after_removal(cx, &document.head).await
    })
}

pub(crate) fn readable_secret<R: Resource>(
    cx: &Cx<'_>,
    document: &Document,
) -> Result<Option<Reveal>, Fault> {
    stored::read::<R>(document)?.readable_secret(cx, &document.head)
}

pub(crate) fn view<R: Resource>(
    document: &Document,
    base: Base<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    let resource: R = stored::read(document)?;
    serde_json::to_writer(out, &resource.view(&document.head, base))
        .map_err(|error| Fault::new(format!("writing the view of {}", document.head.id), error))
}

/// The row of a resource, for the functions below.
pub(crate) struct Row<R>(PhantomData<R>);

impl<R: Resource> Row<R> {
    pub(crate) const TYPE: &'static ResourceType = &ResourceType::of::<R>();
}

fn check<'a, R: Resource>(
    control: &'a Control,
    access: Access,
    call: &'a Call,
) -> BoxFuture<'a, Result<(), Error>> {
    Box::pin(service::check(control, Row::<R>::TYPE, access, call))
}

pub(crate) fn run_create<R: Resource>(control: &Control, call: Call) -> Running<'_> {
    let creating = service::create(control, Row::<R>::TYPE, call);
    Box::pin(control.locks.with(&[], creating))
}

pub(crate) fn run_get<R: Resource>(control: &Control, call: Call) -> Running<'_> {
    Box::pin(service::get(control, Row::<R>::TYPE, call))
}

pub(crate) fn run_list<R: Resource>(control: &Control, call: Call) -> Running<'_> {
    Box::pin(list::list(control, Row::<R>::TYPE, call))
}

pub(crate) fn run_update<R: Resource>(control: &Control, call: Call) -> Running<'_> {
    let ty = Row::<R>::TYPE;
    let update = move |call| service::update(control, ty, call);
    Box::pin(service::locked(control, ty, call, update))
}

pub(crate) fn run_delete<R: Resource>(control: &Control, call: Call) -> Running<'_> {
    let ty = Row::<R>::TYPE;
    let delete = move |call| service::delete(control, ty, call);
    Box::pin(service::locked(control, ty, call, delete))
}
