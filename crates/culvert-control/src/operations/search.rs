//! `GET /search`: the objects of all collections that have a text.

use culvert_base::{Refusal, code, id};
use culvert_resources::access::right::Right;
use culvert_resources::access::token;
use culvert_resources::audit::trace::Trace;
use culvert_resources::list::page::{Form, LIMIT_MAX, Parameter, limit};
use culvert_resources::list::search::{self, Found};
use culvert_resources::operation::{Call, Method, Operation, Reply, ResponseSpec, Run, Status};
use culvert_resources::resource::ResourceType;
use culvert_resources::stored;
use schemars::SchemaGenerator;

use crate::Error;
use crate::control::Control;

const PATH: &str = "/search";
/// Limit of the text.
pub(super) const TEXT_BYTES_MAX: usize = 256;
/// Results without `limit`.
const LIMIT: u32 = 50;

static PARAMETERS: [Parameter; 2] = [
    Parameter {
        name: "q",
        doc: "The text, of 1 to 256 bytes, which is compared without regard to case. A text that contains a token is refused.",
        repeatable: false,
        within: None,
        form: Form::Text,
    },
    Parameter {
        name: "limit",
        doc: "Maximum number of results, 1 to 100; default: 50.",
        repeatable: false,
        within: Some((1, LIMIT_MAX)),
        form: Form::Text,
    },
];

pub(crate) fn operations() -> [Operation<Control>; 1] {
    [Operation {
        name: "search",
        collection: "",
        method: Method::Get,
        path: PATH.to_owned(),
        doc: "Searches the names, URLs, hosts, IDs, descriptions and e-mail addresses of all objects that the caller may list: \
              exact matches first, then beginnings, then other matches, each newest first."
            .to_owned(),
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<Found>),
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

/// The text and the maximum number of results.
fn read(query: &[(String, String)]) -> Result<(&str, u32), Refusal> {
    let (mut text, mut most) = ("", LIMIT);
    for (index, (name, value)) in query.iter().enumerate() {
        if !PARAMETERS.iter().any(|known| known.name == name) {
            let why = "The parameters of a search are `q` and `limit`.";
            return Err(Refusal::new(code::QUERY_PARAMETER_UNKNOWN, why));
        }
        if query.iter().take(index).any(|(earlier, _)| earlier == name) {
            let why = format!("`{name}` is repeated.");
            return Err(Refusal::new(code::QUERY_PARAMETER_REPEATED, why));
        }
        match name.as_str() {
            "q" => text = value.trim(),
            _ if value.is_empty() => {}
            _ => most = limit(value)?,
        }
    }
    if token::has_token(text) {
        return Err(Refusal::of(code::SEARCH_HAS_TOKEN));
    }
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        return Err(Refusal::of(code::SEARCH_TEXT_INVALID));
    }
    Ok((text, most))
}

async fn run(control: &Control, call: Call) -> Result<Reply, Error> {
    let (text, most) = read(&call.query)?;
    let cx = control.kernel.cx(&call.caller, &call.base);
    let lists = crate::operations()
        .iter()
        .filter(|operation| operation.name == "list" && call.caller.may(operation.right));
    let collections: Vec<&str> = lists.map(|operation| operation.collection).collect();
    let prefix = id::split(text).map(|(prefix, _)| prefix);
    let mut types: Vec<&'static ResourceType> = Vec::new();
    let listed = cx.resources.iter().copied();
    for ty in listed.filter(|ty| collections.contains(&ty.collection)) {
        // Two resources may show one kind: its objects are found once, with the IDs that the text has.
        match types.iter_mut().find(|earlier| earlier.kind == ty.kind) {
            Some(earlier) if prefix == Some(ty.id_prefix) => *earlier = ty,
            Some(_) => {}
            None => types.push(ty),
        }
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let searching = search::search(&cx, &types, text, most);
    let found = control
        .searches
        .run(&call.caller.owner_id, searching)
        .await?;
    Ok(Reply::Ok(stored::write(&found)?))
}
