//! The rows of a resource in the table of operations.

use crate::access::right::{Right, Scope};
use crate::access::rights::Access;
use crate::audit::trace::Trace;
use crate::operation::{BodySpec, Method, ObjectRight, Operation, ResponseSpec, Run, Status};
use crate::resource::{Extra, Life, ResourceType};
use crate::{Kernel, Role, list, service};

/// The operations of a resource: those of the five that it has, and further ones.
pub fn of_resource<S: AsRef<Kernel> + Sync>(
    ty: &'static ResourceType,
    extras: &'static [Extra<S>],
) -> Vec<Operation<S>> {
    let is_had = |operation: &Operation<S>| match (ty.life, operation.method) {
        (Life::Configured, _) | (_, Method::Get) => true,
        (Life::Recorded, method) => method == Method::Delete,
        (Life::Observed, _) => false,
    };
    let five = five(ty).into_iter().filter(is_had);
    five.chain(extras_of(ty, extras)).collect()
}

/// Create, get, list, update and delete.
fn five<S: AsRef<Kernel> + Sync>(ty: &'static ResourceType) -> [Operation<S>; 5] {
    let collection = ty.collection;
    let one_noun = ty.with_article();
    let nouns = ty.nouns();
    let one = format!("/{collection}/{{id}}");
    let right = |method| right(ty, method);
    let of_one = |name, method: Method, doc, body, response, run| Operation {
        name,
        collection,
        method,
        path: one.clone(),
        doc,
        body,
        response,
        query: &[],
        right: right(method),
        object: Some(ObjectRight {
            kind: ty.name,
            rights: ty.rights,
            check: ty.check,
            access: match method {
                Method::Get => Access::See,
                Method::Post | Method::Patch | Method::Delete => Access::Change,
            },
        }),
        hides: Some(ty.hides),
        preview: None,
        trace: match method {
            Method::Get => Trace::Nothing,
            Method::Post | Method::Patch | Method::Delete => Trace::Objects,
        },
        run,
    };
    let body = |schema, required| Some(BodySpec { schema, required });
    let response = |status, schema| ResponseSpec { status, schema };
    let five = [
        Operation {
            name: "create",
            collection,
            method: Method::Post,
            path: format!("/{collection}"),
            doc: format!("Creates {one_noun}."),
            body: body(ty.create_schema, ty.create_needs_body),
            response: response(Status::Created, Some(ty.view_schema)),
            query: &[],
            right: right(Method::Post),
            object: None,
            hides: None,
            preview: None,
            trace: Trace::Objects,
            run: Run::new(move |subject: &S, call| {
                let kernel = subject.as_ref();
                let creating = service::create(kernel, ty, call);
                Box::pin(kernel.locks.with(&[], creating))
            }),
        },
        of_one(
            "get",
            Method::Get,
            format!("Gets {one_noun}."),
            None,
            response(Status::Ok, Some(ty.view_schema)),
            Run::new(move |subject: &S, call| Box::pin(service::get(subject.as_ref(), ty, call))),
        ),
        Operation {
            name: "list",
            collection,
            method: Method::Get,
            path: format!("/{collection}"),
            doc: format!("Lists {nouns}, newest first. {}", ty.doc),
            body: None,
            response: response(Status::Ok, Some(ty.list_schema)),
            query: ty.parameters,
            right: right(Method::Get),
            object: None,
            hides: None,
            preview: None,
            trace: Trace::Nothing,
            run: Run::new(move |subject: &S, call| {
                Box::pin(list::list(subject.as_ref(), ty, call))
            }),
        },
        of_one(
            "update",
            Method::Patch,
            format!("Updates {one_noun}. Absent and null fields are unchanged."),
            body(ty.update_schema, false),
            response(Status::Ok, Some(ty.view_schema)),
            Run::new(move |subject: &S, call| {
                let kernel = subject.as_ref();
                let update = move |call| service::update(kernel, ty, call);
                Box::pin(service::locked(kernel, ty, call, update))
            }),
        ),
        of_one(
            "delete",
            Method::Delete,
            format!("Deletes {one_noun}."),
            None,
            response(Status::NoContent, None),
            Run::new(move |subject: &S, call| {
                let kernel = subject.as_ref();
                let delete = move |call| service::delete(kernel, ty, call);
                Box::pin(service::locked(kernel, ty, call, delete))
            }),
        ),
    ];
    five.map(|operation| with_parameters(ty, operation))
}

/// The operation with its query parameters, and its dry run.
fn with_parameters<S>(ty: &ResourceType, operation: Operation<S>) -> Operation<S> {
    let query = match (operation.name, operation.method) {
        (_, Method::Post) => ty.create_parameters,
        (_, Method::Patch) => ty.update_parameters,
        (_, Method::Delete) => ty.delete_parameters,
        ("get", Method::Get) => ty.get_parameters,
        (_, Method::Get) => operation.query,
    };
    let preview = match operation.method {
        Method::Post => ty.preview_schema,
        _ => None,
    };
    Operation {
        query,
        preview,
        ..operation
    }
}

/// The rows of further operations of a resource. Another subject may run them than the one of the resource.
pub fn extras_of<S>(
    ty: &'static ResourceType,
    extras: &'static [Extra<S>],
) -> impl Iterator<Item = Operation<S>> {
    extras.iter().map(move |extra| Operation {
        name: extra.name,
        collection: ty.collection,
        method: extra.method,
        path: format!("/{}/{{id}}{}", ty.collection, extra.suffix),
        doc: extra.doc.to_owned(),
        body: extra.body,
        response: extra.response,
        query: extra.query,
        right: match ty.admin_operations.contains(&extra.name) {
            true => Right {
                role: Role::Admin,
                ..right(ty, extra.method)
            },
            false => right(ty, extra.method),
        },
        object: Some(ObjectRight {
            kind: ty.name,
            rights: ty.rights,
            check: ty.check,
            access: extra.access,
        }),
        hides: Some(ty.hides),
        preview: None,
        trace: extra.trace,
        run: Run::new(extra.run),
    })
}

/// The right to call an operation of a resource with this method.
fn right(ty: &ResourceType, method: Method) -> Right {
    let scopes = Scope::of(ty.collection);
    match method {
        Method::Get => Right {
            role: Role::ReadOnly,
            scope: scopes.map(|(read, _)| read),
        },
        Method::Post | Method::Patch | Method::Delete => Right {
            role: ty.writers,
            scope: scopes.map(|(_, write)| write),
        },
    }
}
