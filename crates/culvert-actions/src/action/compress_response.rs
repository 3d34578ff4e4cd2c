//! compress-response: compresses the response for clients that accept a coding.

use culvert_base::{Refusal, code};
use culvert_cel::Value;
use culvert_http::coding::{self, Coding};
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

pub(crate) static TYPE: ActionType = ActionType {
    name: "compress-response",
    doc: "Compresses the response body with the algorithm that the client's `Accept-Encoding` prefers; ties go to the first of `algorithms`. The edge does not compress a response if the client accepts none of the algorithms or prefers an uncompressed body, if the response is already compressed, has no body or a partial body, is an event stream or has `no-transform`, or if the edge is short of memory. A strong `ETag` becomes weak, and `Vary` includes `Accept-Encoding`.",
    phases: &[Phase::Response],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |context| {
        let config: Config = context.config()?;
        let algorithms = match config.algorithms {
            None => vec![Coding::Gzip, Coding::Deflate],
            Some(names) => codings(context, &names)?,
        };
        Ok(Box::new(CompressResponse { algorithms }))
    },
    ..ActionType::PLAIN
};

fn codings(context: &PolicyContext<'_>, names: &[String]) -> Result<Vec<Coding>, Refusal> {
    context.count("algorithms", names.len(), Coding::ALL.len())?;
    let mut found: Vec<Coding> = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        if name == "compress" {
            let why = format!("`algorithms[{index}]`: `compress` is not supported");
            return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
        }
        let coding = Coding::ALL.into_iter().find(|coding| coding.name() == name);
        let Some(coding) = coding else {
            let why = format!("`algorithms[{index}]` must be one of gzip, deflate and br");
            return Err(context.refuse(code::POLICY_COMPRESSION_UNKNOWN, &why));
        };
        if found.contains(&coding) {
            let why = format!("`algorithms` has the duplicate `{name}`");
            return Err(context.refuse(code::POLICY_LIST_DUPLICATE, &why));
        }
        found.push(coding);
    }
    Ok(found)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CompressResponse")]
struct Config {
    /// `gzip`, `deflate` and `br` in order of preference; default `[gzip, deflate]`.
    #[serde(default)]
    #[schemars(schema_with = "algorithms")]
    algorithms: Option<Vec<String>>,
}

fn algorithms(_: &mut SchemaGenerator) -> Schema {
    let names = Coding::ALL.map(Coding::name);
    json_schema!({ "type": "array", "items": { "type": "string", "enum": names } })
}

#[derive(Debug)]
struct CompressResponse {
    algorithms: Vec<Coding>,
}

impl Action for CompressResponse {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let (Some(request), Some(response)) = (x.request, x.response) else {
            return Flow::Continue.into();
        };
        let is_encoded = coding::is_encoded(&response.headers);
        let chosen = coding::negotiate(&request.headers, &self.algorithms);
        if x.wants_results() {
            let may = coding::may_encode(response) && request.method != http::Method::HEAD;
            let name = chosen.filter(|_| may).map_or("none", Coding::name);
            let fields = vec![
                ("already_compressed", Value::Bool(is_encoded)),
                ("negotiated_algorithm", Value::from(name)),
            ];
            x.result("compress", fields);
        }
        // The exchange checks whether the response may be encoded after all other changes. The last
        // action with a coding that the client accepts decides.
        x.edits.coding = chosen.or(x.edits.coding);
        x.edits.negotiates_coding = true;
        Flow::Continue.into()
    }
}
