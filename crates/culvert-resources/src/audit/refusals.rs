//! Events of refused calls, and of reads that are reported once an hour (contract: audit 1).
//!
//! A call is noted while it runs, and reported by a task: soon after the first one of its kind, then once a minute while
//! they go on.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Class, Event, Fault, Refusal, Timestamp};
use culvert_events::{Audit, EventId};
use culvert_store::Changes;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::access::caller::{Caller, Origin};
use crate::access::tenant::Account;
use crate::audit::counted::{
    REQUEST_REFUSED, ReadKey, ReadSample, RefusalKey, RefusalSample, RefusedFrom,
};
use crate::audit::repeated::Report;
use crate::audit::trace::{IDS_MAX, OperationKind, POLICY_READ_WITH_SECRETS, Performed};
use crate::{Error, Kernel, audit};

/// The kind of event of refused sign-ins to the console.
pub const SIGN_IN_FAILED: &str = "sign_in_failed.v0";

/// How often it looks for due reports.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often old responses to repeated requests are removed.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// The object of events about refusals.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Refused<'a> {
    /// The operation, by its ID in the OpenAPI document; `sign_in` for the console. For unknown callers the last one.
    /// Empty if there is none, or if too many are counted together.
    operation: &'a str,
    /// The number of the error code; null for an error without one.
    code: Option<u16>,
    /// The HTTP status.
    status: u16,
    /// The network of unknown callers (/24 or /64); null for a known one.
    network: Option<String>,
    /// How often it happened since the last event about it.
    count: u64,
    /// When it happened first since then.
    #[schemars(with = "String", extend("format" = "date-time"))]
    first_at: Timestamp,
    /// When it happened last.
    #[schemars(with = "String", extend("format" = "date-time"))]
    last_at: Timestamp,
    /// The last one.
    sample: Sample<'a>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Sample<'a> {
    #[schemars(with = "Option<String>")]
    client_ip: Option<IpAddr>,
    client_port: Option<u16>,
    user_agent: &'a str,
    operation_id: &'a str,
    /// The object that the call named in its path; null if it named none.
    object_id: Option<&'a str>,
}

/// The HTTP status of a refusal that is reported: missing and invalid credentials, missing rights, objects of others,
/// and limits.
fn reported_status(class: Class) -> Option<u16> {
    match class {
        Class::Unauthenticated => Some(401),
        Class::Forbidden => Some(403),
        Class::NotFound => Some(404),
        Class::TooMany => Some(429),
        _ => None,
    }
}

/// The network that stands for its addresses: /24, or /64 for IPv6.
fn network_of(address: IpAddr) -> IpNet {
    let address = address.to_canonical();
    let length = if address.is_ipv4() { 24 } else { 64 };
    IpNet::new(address, length).map_or_else(|_| IpNet::from(address), |network| network.trunc())
}

fn network_of_caller(caller: &Caller) -> Option<IpNet> {
    let context = caller.context.as_ref()?;
    context.client_ip.map(network_of)
}

impl Kernel {
    /// Notes an operation that ran, or may have run, without its event: it is reported by the task.
    pub(crate) fn note_performed(
        &self,
        kind: &'static OperationKind,
        caller: &Arc<Caller>,
        operation: &str,
        object_id: &str,
    ) {
        let key = ReadKey {
            kind: kind.name,
            operation: operation.to_owned(),
            owner_id: caller.owner_id.clone(),
            key_id: caller.key_id.clone(),
            network: network_of_caller(caller),
            object_id: object_id.to_owned(),
        };
        let sample = ReadSample {
            caller: Arc::clone(caller),
            ids: Vec::new(),
            reported: None,
        };
        self.refusals.reads.note(key, sample, self.clock.now());
    }

    /// Notes a refused call whose caller is not known. `operation` is its ID in the OpenAPI document, or empty; `object_id`
    /// is what its path names.
    pub fn note_refusal(
        &self,
        kind: &'static str,
        origin: &Origin,
        (operation, object_id): (&str, Option<&str>),
        refusal: &Refusal,
    ) {
        let Some(context) = &origin.context else {
            return;
        };
        let from = RefusedFrom::Network(network_of(origin.address));
        let sample = RefusalSample {
            caller: None,
            context: Arc::clone(context),
            operation: operation.to_owned(),
            object_id: object_id.map(str::to_owned),
        };
        self.count_refusal(kind, from, refusal, sample);
    }

    /// Notes a refused call of a known caller, about the object with this ID.
    pub fn note_refused(
        &self,
        caller: &Caller,
        operation: &str,
        refusal: &Refusal,
        object_id: Option<&str>,
    ) {
        let Some(context) = &caller.context else {
            return;
        };
        let from = RefusedFrom::Caller(caller.owner_id.clone(), caller.key_id.clone());
        let sample = RefusalSample {
            caller: Some(Arc::new(caller.clone())),
            context: Arc::clone(context),
            operation: operation.to_owned(),
            object_id: object_id.map(str::to_owned),
        };
        self.count_refusal(REQUEST_REFUSED, from, refusal, sample);
    }

    fn count_refusal(
        &self,
        kind: &'static str,
        from: RefusedFrom,
        refusal: &Refusal,
        sample: RefusalSample,
    ) {
        let status = match refusal.class {
            // Such as an invitation that is not valid any more.
            Class::Invalid if kind == SIGN_IN_FAILED => Some(400),
            class => reported_status(class),
        };
        let Some(status) = status else {
            return;
        };
        let (counts, operation) = match &from {
            RefusedFrom::Caller(..) | RefusedFrom::Owner(_) => {
                (&self.refusals.known, sample.operation.clone())
            }
            RefusedFrom::Network(_) | RefusedFrom::Others => {
                (&self.refusals.unknown, String::new())
            }
        };
        let key = RefusalKey {
            kind,
            from,
            operation,
            code: refusal.code.map(culvert_base::Code::number),
            status,
        };
        counts.note(key, sample, self.clock.now());
    }

    /// Counts what a stream showed, which was recorded when it began.
    pub fn note_shown(
        &self,
        kind: &'static OperationKind,
        caller: &Arc<Caller>,
        operation: &str,
        ids: Vec<String>,
    ) {
        let key = ReadKey {
            kind: kind.name,
            operation: operation.to_owned(),
            owner_id: caller.owner_id.clone(),
            key_id: caller.key_id.clone(),
            network: network_of_caller(caller),
            object_id: String::new(),
        };
        let sample = ReadSample {
            caller: Arc::clone(caller),
            ids,
            reported: None,
        };
        self.refusals.reads.note(key, sample, self.clock.now());
    }

    /// Commits the event of a read, or counts it if the caller did the same within the hour. `ids` are those that a list
    /// showed.
    pub async fn record_read(
        &self,
        kind: &'static OperationKind,
        caller: &Arc<Caller>,
        operation: &str,
        (object_id, ids): (&str, Vec<String>),
    ) -> Result<(), Error> {
        let key = ReadKey {
            kind: kind.name,
            operation: operation.to_owned(),
            owner_id: caller.owner_id.clone(),
            key_id: caller.key_id.clone(),
            network: network_of_caller(caller),
            object_id: object_id.to_owned(),
        };
        let mut sample = ReadSample {
            caller: Arc::clone(caller),
            ids,
            reported: (kind.name == POLICY_READ_WITH_SECRETS.name).then(BTreeSet::new),
        };
        sample.ids.truncate(IDS_MAX);
        if self
            .refusals
            .reads
            .is_repeated(&key, &sample, self.clock.now())
        {
            return Ok(());
        }
        let cx = self.cx(caller, &self.settings.base_url);
        let performed = Performed {
            ids: &sample.ids,
            ..Performed::of(object_id, operation)
        };
        let event = audit::operation(&cx, kind.name, &performed)?;
        if let Err(error) = self.store.commit(Changes::event(event)).await {
            // The next read must be reported.
            self.refusals.reads.forget(&key);
            return Err(Fault::new("recording a read", error).into());
        }
        Ok(())
    }

    /// Reports refusals and reads until cancelled, and then the others. Removes old responses to repeated requests.
    pub async fn report_refusals(&self, stop: CancellationToken) {
        let mut prune_at = tokio::time::Instant::now();
        loop {
            let is_over = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            if let Err(fault) = self.report_due(is_over).await {
                warn!(cause = %fault.chain(), "reporting refused calls failed; retrying");
            }
            if is_over {
                return;
            }
            if prune_at <= tokio::time::Instant::now() {
                prune_at += PRUNE_EVERY;
                if let Err(fault) = self.prune_answers().await {
                    warn!(cause = %fault.chain(), "kept responses are removed later");
                }
            }
        }
    }

    /// Commits the events that are due; with `all`, also those that are due later.
    pub async fn report_due(&self, all: bool) -> Result<(), Fault> {
        let (known, unknown) = (self.refusals.known.due(all), self.refusals.unknown.due(all));
        let reads = self.refusals.reads.due(all);
        if known.is_empty() && unknown.is_empty() && reads.is_empty() {
            return Ok(());
        }
        let (key, value) = Account::FIRST;
        let Some(first) = self.store.find(Account::KIND, key, value).await? else {
            return Ok(());
        };
        let mut changes = Changes::default();
        for refusal in known.iter().chain(&unknown) {
            changes = changes.and(Changes::event(
                self.event_of_refusals(&first.head.id, refusal)?,
            ));
        }
        for read in &reads {
            changes = changes.and(Changes::event(self.event_of_reads(read)?));
        }
        let written = self.store.commit(changes).await;
        written.map_err(|error| Fault::new("recording refused calls", error))?;
        self.refusals.known.reported(&known);
        self.refusals.unknown.reported(&unknown);
        self.refusals.reads.reported(&reads);
        Ok(())
    }

    fn event_of_refusals(
        &self,
        account: &str,
        report: &Report<RefusalKey, RefusalSample>,
    ) -> Result<Event, Fault> {
        let (key, sample) = (&report.key, &report.sample);
        let context = &sample.context;
        let object = Refused {
            operation: match key.from {
                RefusedFrom::Owner(_) | RefusedFrom::Others => "",
                RefusedFrom::Caller(..) | RefusedFrom::Network(_) => &sample.operation,
            },
            code: key.code,
            status: key.status,
            network: match &key.from {
                RefusedFrom::Network(network) => Some(network.to_string()),
                RefusedFrom::Caller(..) | RefusedFrom::Owner(_) | RefusedFrom::Others => None,
            },
            count: report.count,
            first_at: report.first_at,
            last_at: report.last_at,
            sample: Sample {
                client_ip: context.client_ip,
                client_port: context.client_port,
                user_agent: &context.user_agent,
                operation_id: &context.operation_id,
                object_id: sample.object_id.as_deref(),
            },
        };
        // A caller stands for all only where all are its own.
        let caller = sample.caller.as_ref();
        let caller = caller.filter(|_| key.from != RefusedFrom::Others);
        let base_url = &self.settings.base_url;
        let principal = caller.map(|caller| audit::principal(&self.cx(caller, base_url)));
        let at = self.clock.now();
        let id = EventId::new(at, self.entropy.bytes());
        let account = caller.map_or(account, |caller| &caller.account);
        let audit = Audit {
            principal: principal.as_ref(),
            ..Audit::by_server(key.kind, at, &id, account)
        };
        audit.about(&object)
    }

    fn event_of_reads(&self, report: &Report<ReadKey, ReadSample>) -> Result<Event, Fault> {
        let cx = self.cx(&report.sample.caller, &self.settings.base_url);
        let performed = Performed {
            count: report.count,
            ids: &report.sample.ids,
            ..Performed::of(&report.key.object_id, &report.key.operation)
        };
        audit::operation(&cx, report.key.kind, &performed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_network() {
        let of = |text: &str| network_of(text.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.9"), "192.0.2.0/24");
        assert_eq!(of("::ffff:192.0.2.9"), "192.0.2.0/24");
        assert_eq!(of("2001:db8:1:2:3::4"), "2001:db8:1:2::/64");
    }
}
