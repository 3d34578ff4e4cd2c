//! `GET /search/objects`: the objects of one collection by plain text, in the order of a field.
//!
//! Lists of collections are the newest first and take no other order; this is theirs for people, who look for words and
//! sort by a column.

use std::collections::BTreeMap;

use culvert_base::{Fault, Refusal, code};
use culvert_resources::access::right::Right;
use culvert_resources::access::token;
use culvert_resources::audit::trace::Trace;
use culvert_resources::list::page::{Form, LIMIT_MAX, Parameter, limit, with_parameter};
use culvert_resources::list::sorted::{self, Asked, Order, Place};
use culvert_resources::operation::{Call, Method, Operation, Reply, ResponseSpec, Run, Status};
use culvert_resources::resource::ResourceType;
use culvert_resources::stored;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::Error;
use crate::control::Control;
use crate::operations::search::TEXT_BYTES_MAX;

const PATH: &str = "/search/objects";
const COLLECTION: &str = "collection";
const ORDER: &str = "order";
const CURSOR: &str = "cursor";

const fn parameter(name: &'static str, doc: &'static str) -> Parameter {
    Parameter {
        name,
        doc,
        repeatable: false,
        within: None,
        form: Form::Text,
    }
}

static PARAMETERS: [Parameter; 6] = [
    parameter(
        COLLECTION,
        "The collection, such as `endpoints` or `app/users`. Required.",
    ),
    parameter(
        "q",
        "Words of at most 256 bytes together. Each must be in the ID, name, URL, host, description or e-mail address of an object, \
         in any letter case. A text that contains a token is refused.",
    ),
    parameter(
        "filter",
        "Returns only objects that match this condition on `obj`, if the list of the collection takes one.",
    ),
    parameter(
        ORDER,
        "The field that decides the order, such as `description`, or `-description` for the largest value first: any field with a \
         single value. URLs are ordered by their hosts, and objects without a value are last. Default: newest first.",
    ),
    parameter(
        CURSOR,
        "Continues behind an earlier page; the cursor is in its `next_page_uri`.",
    ),
    Parameter {
        within: Some((1, LIMIT_MAX)),
        ..parameter(
            "limit",
            "Maximum number of objects per page, 1 to 100; default: 100.",
        )
    },
];

/// Objects of one collection, in the order that was asked for.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SearchedObjects")]
struct Page {
    /// The objects, as the list of their collection shows them.
    #[schemars(with = "Vec<Map<String, Value>>")]
    objects: Vec<Box<RawValue>>,
    /// URI of the search, without its query.
    uri: String,
    /// The next page; null after the last one.
    next_page_uri: Option<String>,
    /// Whether all objects were read. If not, the oldest ones of a collection with many objects were not.
    is_complete: bool,
}

pub(crate) fn operations() -> [Operation<Control>; 1] {
    [Operation {
        name: "search_objects",
        collection: "",
        method: Method::Get,
        path: PATH.to_owned(),
        doc: "Searches the objects of one collection that the caller may list, by words and in the order of a field. \
              An object that changes between two pages may be on both, or on none."
            .to_owned(),
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<Page>),
        },
        query: &PARAMETERS,
        right: Right::ANY,
        object: None,
        hides: None,
        preview: None,
        trace: Trace::Nothing,
        run: Run::new(|control, call| Box::pin(run(control, call))),
    }]
}

/// The parameters that are not empty.
fn given(query: &[(String, String)]) -> Result<BTreeMap<&str, &str>, Refusal> {
    let mut given = BTreeMap::new();
    for (index, (name, value)) in query.iter().enumerate() {
        let shown = || name.chars().take(64).collect::<String>();
        if !PARAMETERS.iter().any(|known| known.name == name) {
            let names: Vec<_> = PARAMETERS.iter().map(|known| known.name).collect();
            let names = names.join(", ");
            let why = format!(
                "Unknown parameter `{}`; valid parameters: {names}.",
                shown()
            );
            return Err(Refusal::new(code::QUERY_PARAMETER_UNKNOWN, why));
        }
        if query.iter().take(index).any(|(earlier, _)| earlier == name) {
            let why = format!("`{}` is repeated.", shown());
            return Err(Refusal::new(code::QUERY_PARAMETER_REPEATED, why));
        }
        if !value.trim().is_empty() {
            given.insert(name.as_str(), value.trim());
        }
    }
    Ok(given)
}

fn invalid(why: impl Into<String>) -> Refusal {
    Refusal::new(code::SEARCH_QUERY_INVALID, why.into())
}

/// The resource of a collection that the caller may list.
fn resource(
    control: &Control,
    call: &Call,
    collection: &str,
) -> Result<&'static ResourceType, Refusal> {
    let mut types = control.kernel.resources.iter().copied();
    let ty = types.find(|ty| ty.collection == collection);
    let mut lists = crate::operations()
        .iter()
        .filter(|one| one.name == "list" && one.collection == collection);
    let (Some(ty), Some(list)) = (ty, lists.next()) else {
        return Err(invalid("`collection` must be a collection of objects."));
    };
    call.caller.check_scope(list.right)?;
    match call.caller.may(list.right) {
        true => Ok(ty),
        false => Err(Refusal::of(code::NOT_ADMIN)),
    }
}

async fn run(control: &Control, call: Call) -> Result<Reply, Error> {
    let given = given(&call.query)?;
    let value = |name| given.get(name).copied();
    let text = value("q").unwrap_or_default();
    if token::has_token(text) {
        return Err(Refusal::of(code::SEARCH_HAS_TOKEN).into());
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(Refusal::of(code::SEARCH_TEXT_INVALID).into());
    }
    let ty = resource(control, &call, value(COLLECTION).unwrap_or_default())?;
    if value("filter").is_some() && ty.filter.is_none() {
        let why = "The list of this collection takes no `filter`.";
        return Err(Refusal::new(code::QUERY_PARAMETER_UNKNOWN, why).into());
    }
    let order_text = value(ORDER).unwrap_or_default();
    let order = match value(ORDER).map(|text| (Order::parse(ty, text), text)) {
        Some((None, _)) => {
            let fields = sorted::fields(ty).join(", ");
            let why = format!("`order` must be one of {fields}, or one of them after `-`.");
            return Err(invalid(why).into());
        }
        Some((order, _)) => order,
        None => None,
    };
    let after = match value(CURSOR).map(|text| Place::parse(text, ty, order_text)) {
        Some(None) => {
            let why = "`cursor` must be of an earlier page with the same `collection` and `order`.";
            return Err(invalid(why).into());
        }
        after => after.flatten(),
    };
    let most = value("limit").map(limit).transpose()?.unwrap_or(LIMIT_MAX);
    let asked = Asked {
        text,
        filter: value("filter"),
        order,
        after,
        limit: usize::try_from(most).unwrap_or(usize::MAX),
    };
    let cx = control.kernel.cx(&call.caller, &call.base);
    let searching = sorted::sorted(&cx, ty, &asked);
    let found = control
        .searches
        .run(&call.caller.owner_id, searching)
        .await?;
    let uri = format!("{}{PATH}", cx.base);
    let next_page_uri = match found.next {
        Some(place) => {
            let cursor = place.cursor(ty, order_text)?;
            Some(with_parameter(&uri, &call.query, CURSOR, &cursor))
        }
        None => None,
    };
    let objects = found.views.into_iter().map(RawValue::from_string);
    let objects = objects.collect::<Result<_, _>>();
    let objects = objects.map_err(|error| Fault::new("writing found objects", error))?;
    Ok(Reply::Ok(stored::write(&Page {
        objects,
        uri,
        next_page_uri,
        is_complete: found.is_complete,
    })?))
}
