//! The operation that checks what the certificate of a name needs, on demand.
//!
//! It changes nothing. Only the owner of a name and admins may check it, and each owner has a share of the checks that run
//! at a time.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{FairPermits, Refusal, Share, Timestamp, code};
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::{OperationKind, Trace};
use culvert_resources::operation::{Call, Handler, Method, Reply, ResponseSpec, Status};
use culvert_resources::resource::{Extra, Resource, ResourceType};
use culvert_resources::{Error, Role, service, stored};
use culvert_tls::acme::check::{Check, CheckedName, Checks, Finding, Level};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;

use crate::CertificateManager;
use crate::management::Managed;
use crate::management::model::{Job, JobError};

pub(crate) static CERTIFICATE_CHECKED: OperationKind = OperationKind {
    name: "certificate_checked.v0",
    doc: "A caller checked what the certificate of a name needs.",
    shows_body: false,
};

/// Checks that run at a time. One owner gets at most half of them.
const AT_ONCE: usize = 4;
/// Time limit of a check.
const WITHIN: Duration = Duration::from_secs(20);

/// The checks of this process.
#[derive(Debug)]
pub struct Checking {
    node: String,
    checks: Option<Arc<dyn Checks>>,
    permits: FairPermits,
}

impl Checking {
    /// Checks run by `checks` on the node with this name; `None` in a process without the API.
    pub fn new(node: String, checks: Option<Arc<dyn Checks>>) -> Self {
        Self {
            node,
            checks,
            permits: FairPermits::new(AT_ONCE),
        }
    }

    async fn run(&self, owner_id: &str, name: CheckedName<'_>) -> Result<Vec<Finding>, Refusal> {
        let Ok(_permit) = self.permits.try_acquire(Share::of_owner(owner_id)) else {
            let why = "Too many checks of certificates are running; try again in a few seconds.";
            return Err(Refusal::new(code::TOO_MANY_REQUESTS, why));
        };
        let Some(checks) = &self.checks else {
            return Ok(Vec::new());
        };
        let checking = checks.check(name);
        Ok(tokio::time::timeout(WITHIN, checking)
            .await
            .unwrap_or_else(|_late| {
                let text = format!("the checks took longer than {} s", WITHIN.as_secs());
                let mend = "check again; the log of the server may say what hangs";
                vec![Finding::fail(Check::Authority, text, mend)]
            }))
    }
}

/// The result of the checks of a name.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CertificateCheck")]
struct View<'a> {
    /// Name of the node that checked.
    node: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    checked_at: Timestamp,
    checks: Vec<CheckView<'a>>,
}

/// One check.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CertificateCheckResult")]
struct CheckView<'a> {
    /// `name`: whether the name leads to this installation. `ports`: whether the public ports are 80 or 443, to which CAs
    /// connect. `authority`: whether the server reaches the CA. `dns_provider`: whether TXT records can be written, and the
    /// alias of a wildcard exists. `validation`: what the CA said when it last connected to the name.
    #[schemars(extend("enum" = Check::NAMES))]
    check: &'static str,
    #[schemars(extend("enum" = Level::NAMES))]
    result: &'static str,
    /// What was found.
    text: &'a str,
    /// What was seen: addresses, a status, the message of another party.
    evidence: &'a [String],
    /// What to do; null if it is in order.
    remedy: Option<&'a str>,
}

/// The operation `check_certificate` of a resource.
pub const fn check_operation<S>(run: Handler<S>) -> Extra<S> {
    Extra {
        name: "check_certificate",
        method: Method::Post,
        suffix: "/certificate/check",
        doc: "Checks what a managed certificate needs: whether the name leads to this installation, \
              what the CA said when it connected to port 80 or 443, whether the server reaches the \
              CA, and whether a DNS provider is set. Changes nothing, and connects to nothing that \
              the name resolves to. Callers who are no admins do not see private addresses.",
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<View<'static>>),
        },
        query: &[],
        access: Access::Change,
        trace: Trace::Hourly(&CERTIFICATE_CHECKED),
        run,
    }
}

/// Runs `check_certificate`.
pub async fn run_check<R: Resource + Managed>(
    manager: &CertificateManager,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = manager.kernel.cx_of(&call, &[])?;
    let document = service::named(&cx, ty, &call).await?;
    let document = document.ok_or_else(Refusal::not_found)?;
    let holder: R = stored::read(&document)?;
    let name = CheckedName {
        name: holder.name(),
        target: holder.alias_target(),
        challenge_target: holder.challenge_target(),
        is_managed: holder.management().is_some(),
        by_operator: cx.caller.role == Role::Admin,
    };
    let mut found = manager.checking.run(&cx.caller.owner_id, name).await?;
    // It may be deleted by now, and an attempt to get the certificate may have ended.
    let document = service::named(&cx, ty, &call).await?;
    let document = document.ok_or_else(Refusal::not_found)?;
    found.push(validated(&stored::read::<R>(&document)?));
    let view = View {
        node: &manager.checking.node,
        checked_at: cx.clock.now(),
        checks: found.iter().map(CheckView::of).collect(),
    };
    Ok(Reply::Ok(stored::write(&view)?))
}

impl<'a> CheckView<'a> {
    fn of(finding: &'a Finding) -> Self {
        Self {
            check: finding.check.name(),
            result: finding.level.name(),
            text: &finding.text,
            evidence: &finding.evidence,
            remedy: finding.mend.as_deref(),
        }
    }
}

/// What the authority said when it last connected to the name.
fn validated(holder: &dyn Managed) -> Finding {
    const CHECK: Check = Check::Validation;
    let Some(management) = holder.management() else {
        let text = match holder.certificate_id() {
            Some(id) => format!("`{id}` was uploaded, so no CA is asked"),
            None => {
                "the certificate of the installation is presented, so no CA is asked".to_owned()
            }
        };
        return Finding::ok(CHECK, text);
    };
    let is_wildcard = holder.name().starts_with("*.");
    let Some(job) = &management.job else {
        let text = match is_wildcard {
            true => "the CA found the DNS record and issued the certificate",
            false => "the CA reached port 80 or 443 of the name and issued the certificate",
        };
        let issued = holder
            .certificate_id()
            .map(|id| format!("the certificate is `{id}`"));
        return Finding::ok(CHECK, text).with(issued);
    };
    let at = job.failed_at.map(|at| format!("last attempt: {at}"));
    let again = job.retries_at.map(|at| format!("next attempt: {at}"));
    let said = |job: &Job| [job.msg.clone()].into_iter().chain(at).chain(again);
    match job.error {
        None => Finding::warn(
            CHECK,
            "the CA has not answered yet: an attempt is running or due",
            "check again in a few seconds",
        )
        .with(said(job)),
        Some(JobError::Dns) => Finding::fail(
            CHECK,
            match is_wildcard {
                true => "the CA did not find the DNS record, or may not issue for the name",
                false => "the CA did not reach the server at the name, or may not issue for it",
            },
            match is_wildcard {
                true => "create the record that the check of the DNS provider names, then try again now",
                false => "let port 80 or 443 of the name lead to the server from outside, then try again now",
            },
        )
        .with(said(job)),
        Some(JobError::Internal) => Finding::fail(
            CHECK,
            "the last attempt ended before the CA connected to the name",
            "see the other checks; the server repeats its attempts",
        )
        .with(said(job)),
    }
}
