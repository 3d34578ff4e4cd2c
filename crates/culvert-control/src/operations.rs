//! The table of all operations, of the root and of each resource; and the resource information that the store
//! needs.

use std::sync::OnceLock;

use culvert_store::Texts;

use crate::operation::{BodySpec, Method, ObjectRight, Operation, ResponseSpec, Status};
use crate::resource::resource_type::{Life, ResourceType};
use crate::right::{Right, Scope};
use crate::rights::Access;
use crate::{Role, captured, event_query, node_list, resource, root, statistics};

/// All operations, by collection.
pub fn operations() -> &'static [Operation] {
    static OPERATIONS: OnceLock<Vec<Operation>> = OnceLock::new();
    OPERATIONS.get_or_init(|| {
        let of_resources = resource::ALL.iter().flat_map(|ty| of_resource(ty));
        root::operations()
            .into_iter()
            .chain(event_query::operations())
            .chain(captured::operations())
            .chain(statistics::query::operations())
            .chain(node_list::operations())
            .chain(of_resources)
            .collect()
    })
}

/// The purpose of a collection, in one or two sentences.
pub fn collection_doc(collection: &str) -> &'static str {
    match collection {
        "events" => "Events: retained audit and traffic events.",
        "nodes" => "Nodes: the server processes of the installation.",
        "statistics" => "Statistics: traffic and deliveries over time.",
        collection => {
            let found = resource::ALL.iter().find(|ty| ty.collection == collection);
            found.map_or("", |ty| ty.doc)
        }
    }
}

/// The texts of stored forms that the store indexes: those that filters may name.
pub fn texts() -> Texts {
    let fields = |ty: &&'static ResourceType| {
        let kind = ty.kind;
        let fields = ty.filter.into_iter().flatten();
        fields.filter_map(move |field| Some((kind, field.stored()?)))
    };
    resource::ALL.iter().flat_map(fields).collect()
}

pub(crate) fn of_resource(ty: &'static ResourceType) -> Vec<Operation> {
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
            rights: ty.rights,
            check: ty.check,
            access: match method {
                Method::Get => Access::See,
                Method::Post | Method::Patch | Method::Delete => Access::Change,
            },
        }),
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
            run: ty.run_create,
        },
        of_one(
            "get",
            Method::Get,
            format!("Gets {one_noun}."),
            None,
            response(Status::Ok, Some(ty.view_schema)),
            ty.run_get,
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
            run: ty.run_list,
        },
        of_one(
            "update",
            Method::Patch,
            format!("Updates {one_noun}. Absent and null fields are unchanged."),
            body(ty.update_schema, false),
            response(Status::Ok, Some(ty.view_schema)),
            ty.run_update,
        ),
        of_one(
            "delete",
            Method::Delete,
            format!("Deletes {one_noun}."),
            None,
            response(Status::NoContent, None),
            ty.run_delete,
        ),
    ];
    let five = five.map(|operation| match operation.method {
        Method::Post => Operation {
            query: ty.create_parameters,
            ..operation
        },
        Method::Patch => Operation {
            query: ty.update_parameters,
            ..operation
        },
        Method::Delete => Operation {
            query: ty.delete_parameters,
            ..operation
        },
        Method::Get => operation,
    });
    let is_had = |operation: &Operation| match (ty.life, operation.method) {
        (Life::Configured, _) | (_, Method::Get) => true,
        (Life::Recorded, method) => method == Method::Delete,
        (Life::Observed, _) => false,
    };
    let extras = ty.operations.iter().map(|extra| Operation {
        name: extra.name,
        collection,
        method: extra.method,
        path: format!("{one}{}", extra.suffix),
        doc: extra.doc.to_owned(),
        body: extra.body,
        response: extra.response,
        query: extra.query,
        right: match ty.admin_operations.contains(&extra.name) {
            true => Right {
                role: Role::Admin,
                ..right(extra.method)
            },
            false => right(extra.method),
        },
        object: Some(ObjectRight {
            rights: ty.rights,
            check: ty.check,
            access: extra.access,
        }),
        run: extra.run,
    });
    five.into_iter().filter(is_had).chain(extras).collect()
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
