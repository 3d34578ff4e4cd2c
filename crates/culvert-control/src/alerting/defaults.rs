//! The default rules, which the first evaluation makes once for the account of the installation. Deleted ones do not
//! come back.

use culvert_base::{Description, Fault, Metadata};
use culvert_event_config::alert::condition::Condition;
use culvert_event_config::alert::rule;
use culvert_event_config::alert::rule_model::{AlertRule, RuleName, Severity};
use culvert_resources::audit::verb::Verb;
use culvert_resources::input::period::Period;
use culvert_resources::resource::model::Model;
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, Document, Head};
use serde::{Deserialize, Serialize};

use super::AlertEvaluator;
use culvert_server_log::mark::{Mark, MarkKind};

/// The mark that they were made.
const MADE: MarkKind = MarkKind {
    kind: "default_alert_rules",
    prefix: "dalrt",
};
const OF: &str = "made";

#[derive(Debug, Deserialize, Serialize)]
struct Made {
    format: Format<1>,
}

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;

/// Name, severity and condition of each.
fn rules() -> [(&'static str, Severity, Condition); 7] {
    let minutes = |n: u64| Period::of_seconds(n * MINUTE);
    let days = |n: u64| Period::of_seconds(n * DAY);
    [
        (
            "Agent offline",
            Severity::Warning,
            Condition::AgentOffline {
                lasting: minutes(5),
            },
        ),
        (
            "Certificate expires",
            Severity::Critical,
            Condition::CertificateExpiring { within: days(14) },
        ),
        (
            "Event destination fails",
            Severity::Critical,
            Condition::DestinationFailing {
                lasting: minutes(10),
            },
        ),
        (
            "Endpoint without upstream",
            Severity::Critical,
            Condition::EndpointWithoutUpstream {
                over: minutes(5),
                min_requests: 5,
            },
        ),
        (
            "Many requests fail",
            Severity::Critical,
            Condition::ErrorRate {
                above: 0.1,
                over: minutes(5),
                min_requests: 100,
            },
        ),
        (
            "API key expires",
            Severity::Warning,
            Condition::KeyExpiring { within: days(7) },
        ),
        (
            "Many sign-ins are refused",
            Severity::Warning,
            Condition::SignInsFailed {
                count: 20,
                over: minutes(5),
            },
        ),
    ]
}

impl AlertEvaluator {
    /// Makes the default rules, unless they were made. Returns whether there is an account, and they are made.
    pub(super) async fn make_defaults(&self) -> Result<bool, Fault> {
        let Some(account) = self.log.account().await? else {
            return Ok(false);
        };
        let made: Option<Mark<Made>> = self.log.mark(MADE, OF).await?;
        if made.is_some() {
            return Ok(true);
        }
        let reason = "the events of the rules report it";
        let state = Made { format: Format };
        // Of two nodes, only one can write the mark.
        let mut changes =
            self.log
                .marking(MADE, OF, None, &state, AuditEvent::Suppress { reason })?;
        let kernel = &self.control.kernel;
        for (name, severity, condition) in rules() {
            let now = kernel.clock.now();
            let rule = AlertRule {
                format: Format,
                name: RuleName::try_from(name.to_owned())
                    .map_err(|error| Fault::new("naming a default alert rule", error))?,
                description: Description::default(),
                metadata: Metadata::default(),
                condition,
                object_ids: Vec::new(),
                severity,
                lasting: Period::of_seconds(0),
                repeat_every: Period::of_seconds(0),
                silenced_until: None,
                enabled: true,
                destination_ids: Vec::new(),
                is_default: true,
                error: None,
            };
            let id = kernel.ids.next(&*kernel.clock, &*kernel.entropy);
            let document = Document {
                head: Head {
                    id: format!("{}_{id}", AlertRule::ID_PREFIX),
                    kind: AlertRule::KIND.to_owned(),
                    account: account.clone(),
                    revision: 0,
                    created_at: now,
                    updated_at: now,
                },
                body: stored::write(&rule)?,
                keys: Vec::new(),
                refs: Vec::new(),
                topics: Vec::new(),
            };
            let event = kernel.own_event(&rule::TYPE, Verb::Created, &document)?;
            changes = changes.and(Changes::insert(document, event));
        }
        self.log
            .commit_once("making the default alert rules", changes)
            .await
    }
}
