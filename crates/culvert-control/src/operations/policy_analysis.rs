//! `POST /traffic_policy_analysis`: the problems of a traffic policy while it is written, and completion and hover at a
//! position.
//!
//! Nothing is stored. The analysis names no object: one that a policy names and that does not exist is reported like
//! one that the endpoint's owner may not use.

use culvert_base::{Refusal, code};
use culvert_edge_config::ACTIONS;
use culvert_endpoints::endpoint;
use culvert_endpoints::endpoint::model::Endpoint;
use culvert_endpoints::traffic_policy::model::StoredPolicy;
use culvert_endpoints::traffic_policy::{Given, PolicyTarget};
use culvert_policy::{REDACTED, Scheme, Source};
use culvert_policy_editor::check::{Diagnostic, Place, Severity, check, of_refusal};
use culvert_policy_editor::complete::{self, complete};
use culvert_policy_editor::hover::hover;
use culvert_policy_editor::{LineIndex, Position, Unit};
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::audit::trace::Trace;
use culvert_resources::cx::Cx;
use culvert_resources::operation::{
    BodySpec, Call, Method, Operation, Reply, ResponseSpec, Run, Status,
};
use culvert_resources::resource::value_refusal;
use culvert_resources::{Error, Role, access, input, service, stored};
use culvert_store::Document;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::control::Control;

const PATH: &str = "/traffic_policy_analysis";

/// What an object of others and one that does not exist have in common.
const UNUSABLE: &str =
    "The policy names an object that does not exist, or that the owner of the endpoint may not use";

pub(crate) fn operations() -> [Operation<Control>; 1] {
    [Operation {
        name: "traffic_policy_analysis",
        collection: "",
        method: Method::Post,
        path: PATH.to_owned(),
        doc: "Checks a traffic policy while it is written: all problems with their positions, without storing anything. \
              With `position`, the response has completions and a description of that position instead."
            .to_owned(),
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<Input>,
            required: false,
        }),
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<View>),
        },
        query: &[],
        right: Right {
            role: Role::Member,
            scope: Some(Scope::EndpointsWrite),
        },
        object: None,
        hides: None,
        preview: None,
        trace: Trace::Nothing,
        run: Run::new(|control, call| Box::pin(run(control, call))),
    }]
}

/// What to analyze.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "TrafficPolicyAnalysisCreate", transform = input::create_schema)]
struct Input {
    /// Traffic policy in YAML or JSON, as a string or an object.
    traffic_policy: Given,
    /// ID of the endpoint whose policy it is; empty for a new one. Requires the right to change the endpoint (630).
    endpoint_id: String,
    /// URL of a new endpoint, as far as it is written; default: an https endpoint.
    url: String,
    /// Address of the upstream. Without one, the policy must handle all requests.
    upstream_url: String,
    /// Position for completions and a description.
    position: Option<PositionView>,
}

/// A position in the text.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TrafficPolicyPosition")]
struct PositionView {
    /// Line, from 1.
    #[schemars(range(min = 1))]
    line: u32,
    /// Column, from 1, in UTF-16 code units, as editors count.
    #[schemars(range(min = 1))]
    column: u32,
}

/// The analysis of a policy.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "TrafficPolicyAnalysis")]
struct View {
    /// Problems in the order of the text, at most 50; empty with `position`.
    problems: Vec<ProblemView>,
    /// What may stand at the position.
    completions: Vec<CompletionView>,
    /// The part of the text that a completion replaces; null without completions.
    replaces: Option<RangeView>,
    /// What stands at the position; null if there is nothing to say.
    hover: Option<HoverView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TrafficPolicyRange")]
struct RangeView {
    start: PositionView,
    /// The position behind the last character.
    end: PositionView,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TrafficPolicyProblem")]
struct ProblemView {
    range: RangeView,
    /// `error`: a write of the policy is refused. `warning`: a likely mistake.
    #[schemars(extend("enum" = ["error", "warning"]))]
    severity: &'static str,
    /// Code of the error that a write has; empty for a warning.
    error_code: String,
    /// The problem, in one sentence, with what was probably meant.
    message: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TrafficPolicyCompletion")]
struct CompletionView {
    /// Its name.
    label: String,
    #[schemars(extend("enum" = ["template", "field", "action", "value", "variable", "function"]))]
    kind: &'static str,
    /// Type of a variable or field, or how a function is called; may be empty.
    detail: String,
    /// Its description, in Markdown; may be empty.
    doc: String,
    /// The text to insert.
    insert: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TrafficPolicyHover")]
struct HoverView {
    range: RangeView,
    /// Its description, in Markdown.
    doc: String,
}

async fn run(control: &Control, mut call: Call) -> Result<Reply, Error> {
    call.caller.may_write()?;
    let input: Input = input::create(call.body.take()).map_err(value_refusal::<Endpoint>)?;
    let cx = control.kernel.cx(&call.caller, &call.base);
    let text = input.traffic_policy.0.as_str();
    let of_endpoint = match input.endpoint_id.as_str() {
        "" => None,
        id => {
            call.path = vec![id.to_owned()];
            let document = service::named(&cx, &endpoint::TYPE, &call)
                .await?
                .ok_or_else(Refusal::not_found)?;
            access::may_change(&cx, &endpoint::TYPE, &document).await?;
            Some(document)
        }
    };
    let index = LineIndex::new(text);
    let analysis = async {
        Ok::<_, Error>(match input.position {
            Some(position) => at(text, &index, position)?,
            None => View {
                problems: Box::pin(problems(&cx, &input, text, of_endpoint.as_ref()))
                    .await?
                    .into_iter()
                    .map(|problem| problem_view(&index, problem))
                    .collect(),
                ..View::default()
            },
        })
    };
    // One owner that types, or sends large texts, keeps no other one waiting.
    let view = control
        .analyses
        .run(&call.caller.owner_id, analysis)
        .await?;
    Ok(Reply::Ok(stored::write(&view)?))
}

/// Completions and the description of a position.
fn at(text: &str, index: &LineIndex<'_>, position: PositionView) -> Result<View, Refusal> {
    let PositionView { line, column } = position;
    let from_zero = |number: u32| {
        number
            .checked_sub(1)
            .and_then(|it| usize::try_from(it).ok())
    };
    let (Some(line), Some(column)) = (from_zero(line), from_zero(column)) else {
        let why = "`position`: lines and columns begin at 1.";
        return Err(Refusal::new(code::BODY_FIELD_INVALID, why));
    };
    let byte = index.byte(Position { line, column }, Unit::Utf16);
    let completions = complete(text, byte);
    let at = completions.at;
    let views: Vec<_> = completions.items.into_iter().map(completion_view).collect();
    let hover = hover(text, byte).map(|hover| HoverView {
        range: range(index, &hover.at),
        doc: hover.doc,
    });
    Ok(View {
        problems: Vec::new(),
        replaces: (!views.is_empty()).then(|| range(index, &at)),
        completions: views,
        hover,
    })
}

/// The problems of the text; if it has none in itself, what a write of it would be refused for.
async fn problems(
    cx: &Cx<'_>,
    input: &Input,
    text: &str,
    of_endpoint: Option<&Document>,
) -> Result<Vec<Diagnostic>, Error> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let endpoint: Option<Endpoint> = of_endpoint.map(stored::read).transpose()?;
    let host = host_of(&input.url);
    let target = match &endpoint {
        Some(endpoint) => {
            let is_served = endpoint.served.is_some() || endpoint.upstream.is_some();
            let has_upstream = is_served || !input.upstream_url.is_empty();
            let owner = &endpoint.principal_id;
            endpoint.address.policy_target(owner, has_upstream)
        }
        None => PolicyTarget {
            owner_id: &cx.caller.owner_id,
            scheme: scheme_of(&input.url),
            host: &host,
            has_upstream: !input.upstream_url.is_empty(),
        },
    };
    let place = Place {
        scheme: target.scheme,
        has_upstream: target.has_upstream,
        resources: match Source::read(text, ACTIONS) {
            Ok(source) => StoredPolicy::resources(cx, target.host, &source).await?,
            Err(_) => Default::default(),
        },
    };
    let mut found = check(text, &place);
    if endpoint.is_some() {
        // The stored secrets stand where the text has this.
        found.retain(|problem| {
            text.get(problem.at.clone())
                .is_none_or(|at| !at.contains(REDACTED))
        });
    }
    if found
        .iter()
        .any(|problem| problem.severity == Severity::Error)
    {
        return Ok(found);
    }
    let id = of_endpoint.map_or("", |document| &document.head.id);
    let before = endpoint
        .as_ref()
        .and_then(|endpoint| endpoint.policy.as_ref());
    match StoredPolicy::check(cx, id, target, text, before).await {
        Ok(_) => {}
        Err(Error::Refused(refusal)) => {
            let says_why = [code::API_KEY_LACKS_SCOPE, code::POLICY_SECRET_REFUSED];
            let refusal = match refusal.code {
                Some(code) if says_why.contains(&code) => refusal,
                _ => Refusal {
                    message: UNUSABLE.into(),
                    code: None,
                    ..refusal
                },
            };
            found.push(of_refusal(text, &refusal));
        }
        Err(error) => return Err(error),
    }
    Ok(found)
}

/// The scheme of a URL that may be incomplete.
fn scheme_of(url: &str) -> Scheme {
    let before = url.split_once("://").map(|(scheme, _)| scheme);
    let named = Scheme::ALL
        .into_iter()
        .find(|scheme| Some(scheme.name()) == before);
    named.unwrap_or(Scheme::Https)
}

/// The host of a URL that may be incomplete.
fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.split(['/', ':', '?', '#']).next().unwrap_or_default();
    host.to_ascii_lowercase()
}

fn range(index: &LineIndex<'_>, at: &std::ops::Range<usize>) -> RangeView {
    let position = |byte| {
        let Position { line, column } = index.position(byte, Unit::Utf16);
        let from_one = |number: usize| u32::try_from(number + 1).unwrap_or(u32::MAX);
        PositionView {
            line: from_one(line),
            column: from_one(column),
        }
    };
    RangeView {
        start: position(at.start),
        end: position(at.end),
    }
}

fn problem_view(index: &LineIndex<'_>, problem: Diagnostic) -> ProblemView {
    ProblemView {
        range: range(index, &problem.at),
        severity: problem.severity.name(),
        error_code: problem
            .code
            .map_or(String::new(), |code| format!("ERR_NGROK_{code}")),
        message: problem.message,
    }
}

fn completion_view(completion: complete::Completion) -> CompletionView {
    CompletionView {
        kind: completion.kind.name(),
        label: completion.label,
        detail: completion.detail,
        doc: completion.doc,
        insert: completion.insert,
    }
}
