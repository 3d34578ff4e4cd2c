//! `GET /referrers`: what refers to an object.

use culvert_base::{Refusal, code, id};
use culvert_resources::access::right::Right;
use culvert_resources::audit::trace::Trace;
use culvert_resources::list::page::{Form, Parameter};
use culvert_resources::list::referrers::{Referrers, referrers};
use culvert_resources::operation::{Call, Method, Operation, Reply, ResponseSpec, Run, Status};
use culvert_resources::stored;
use schemars::SchemaGenerator;

use crate::Error;
use crate::control::Control;

const PATH: &str = "/referrers";

static PARAMETERS: [Parameter; 1] = [Parameter {
    name: "object_id",
    doc: "ID of the object.",
    repeatable: false,
    within: None,
    form: Form::Text,
}];

pub(crate) fn operations() -> [Operation<Control>; 1] {
    [Operation {
        name: "referrers",
        collection: "",
        method: Method::Get,
        path: PATH.to_owned(),
        doc: "Lists the objects that refer to an object, and whether they keep it from being deleted. Names only objects that \
              the caller may list. For callers who may change the object."
            .to_owned(),
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<Referrers>),
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

async fn run(control: &Control, call: Call) -> Result<Reply, Error> {
    let id = match call.query.as_slice() {
        [(name, id)] if name == "object_id" && !id.is_empty() => id.as_str(),
        _ => {
            let why =
                "The only query parameter of this operation is `object_id`, which is required.";
            return Err(Refusal::new(code::QUERY_PARAMETER_UNKNOWN, why).into());
        }
    };
    let cx = control.kernel.cx(&call.caller, &call.base);
    let prefix = id::split(id).map_or("", |(prefix, _)| prefix);
    let mut types = cx.resources.iter().filter(|ty| ty.id_prefix == prefix);
    let ty = types.next().ok_or_else(Refusal::not_found)?;
    for operation in crate::operations() {
        if operation.name == "list" && operation.collection == ty.collection {
            call.caller.check_scope(operation.right)?;
        }
    }
    let lists = crate::operations()
        .iter()
        .filter(|operation| operation.name == "list" && call.caller.may(operation.right));
    let collections: Vec<&str> = lists.map(|operation| operation.collection).collect();
    let uri = format!("{}{PATH}", call.base);
    let finding = referrers(&cx, id, |ty| collections.contains(&ty.collection), uri);
    let found = control.searches.run(&call.caller.owner_id, finding).await?;
    Ok(Reply::Ok(stored::write(&found)?))
}
