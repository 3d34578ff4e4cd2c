//! Reports of leaked tokens: `POST /leaked_tokens`.
//!
//! Any caller with a key may report tokens, and a partner that signs its reports without a key, in the form of GitHub. The
//! answer never says whether a token works: it is the same for tokens that do not exist.

pub mod found;
pub mod report;

use culvert_base::{Refusal, code};
use culvert_resources::access::right::Right;
use culvert_resources::audit::trace::Trace;
use culvert_resources::input::{self, Problem};
use culvert_resources::operation::{
    BodySpec, Call, Method, Operation, Reply, ResponseSpec, Run, Status,
};
use culvert_resources::resource::Running;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;

use crate::Identity;

/// The path of reports.
pub const LEAKED_TOKENS_PATH: &str = "/leaked_tokens";

/// Limit of tokens in one report of a caller.
pub const TOKENS_MAX: usize = 100;

/// The operations.
pub(crate) fn operations() -> [Operation<Identity>; 1] {
    [Operation {
        name: "report",
        collection: "leaked_tokens",
        method: Method::Post,
        path: LEAKED_TOKENS_PATH.to_owned(),
        doc: "Reports tokens that were found in public. Those that work are revoked or flagged, as the setting \
              `keys.leaked` says, with events for their owners. The response does not say which. A caller, \
              or a network without a key, may send 10 reports a minute."
            .to_owned(),
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<Report>,
            required: true,
        }),
        response: ResponseSpec {
            status: Status::NoContent,
            schema: None,
        },
        query: &[],
        right: Right::ANY,
        object: None,
        hides: None,
        preview: None,
        trace: Trace::Objects,
        run: Run::new(run_report),
    }]
}

/// A report.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "LeakedTokensReport", transform = input::create_schema)]
struct Report {
    /// The tokens, at most 100.
    #[schemars(length(min = 1, max = 100))]
    tokens: Vec<LeakedToken>,
}

/// A token that was found in public.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(transform = input::create_schema)]
pub struct LeakedToken {
    /// The token.
    pub token: String,
    /// Where it was found; at most 2048 bytes are kept.
    pub url: Option<String>,
    /// What it was found in, such as `commit`; at most 64 bytes are kept.
    pub source: Option<String>,
    /// What the finder takes it for. Ignored, because the token says it.
    #[serde(rename = "type")]
    _kind: Option<String>,
}

/// The tokens of a report that a partner signed: a JSON list of objects with `token`, `url` and `source`. It may have any
/// number, because a partner does not send a refused report again in parts; the bytes of the body are limited.
///
/// # Errors
///
/// 213 for another form, and 215 for no tokens.
pub fn signed_tokens(body: &[u8]) -> Result<Vec<LeakedToken>, Refusal> {
    let tokens: Vec<LeakedToken> = serde_json::from_slice(body).map_err(|_| {
        let why = "The report must be a JSON list of objects with `token`, `url` and `source`.";
        Refusal::new(code::BODY_NOT_OBJECT, why)
    })?;
    if tokens.is_empty() {
        let why = "The report has no tokens.";
        return Err(Refusal::new(code::BODY_FIELD_INVALID, why));
    }
    Ok(tokens)
}

fn checked(tokens: Vec<LeakedToken>) -> Result<Vec<LeakedToken>, Refusal> {
    if tokens.is_empty() || tokens.len() > TOKENS_MAX {
        let why = format!("`tokens` must have 1 to {TOKENS_MAX} tokens.");
        return Err(Refusal::new(code::BODY_FIELD_INVALID, why));
    }
    Ok(tokens)
}

fn run_report(identity: &Identity, call: Call) -> Running<'_> {
    Box::pin(async move {
        let refusal = |problem| match problem {
            Problem::Shape(refusal) => refusal,
            Problem::Value { field, why } => {
                let why = format!("`{field}` is not allowed: {why}.");
                Refusal::new(code::BODY_FIELD_INVALID, why)
            }
        };
        let report: Report = input::create(call.body.clone()).map_err(refusal)?;
        let tokens = checked(report.tokens)?;
        identity.report_leaks(Some(&call.caller), &tokens).await?;
        Ok(Reply::NoContent)
    })
}
