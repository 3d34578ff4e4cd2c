//! What the holds keep: evaluated before the retention deletes events, and ended when their time is over.
//!
//! Rows are deleted from the oldest on, because the hash chain has no gaps. So a kept row also keeps those after it. What cannot
//! be evaluated is kept: an unreadable hold, a filter that this version does not know, an event that reaches a limit of the
//! evaluation. A hold keeps events until its end is in the log.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;
use culvert_base::{BoxFuture, Fault, Timestamp};
use culvert_delivery::{PruningHolds, Released};
use culvert_events::catalogue::AuditKind;
use culvert_events::{LogFilter, Logged};
use culvert_resources::audit::schema_of;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_server_log::ServerLog;
use culvert_store::{AuditEvent, Changes, Deciding, Document, Revision, Store};
use schemars::JsonSchema;
use serde::Serialize;

use super::model::AuditHold;
use crate::catalogue::catalogue;

/// Rows per read, of at most 256 KiB each.
const ROWS: u32 = 64;

const AUDIT_HOLD_ENDED: &str = "audit_hold_ended.v0";

/// The kind of the event of a hold that ended because of its time.
pub(crate) fn kind() -> AuditKind {
    let doc = "The time of a hold on audit events is over. Until this event is written, the hold keeps them.";
    AuditKind {
        name: AUDIT_HOLD_ENDED.to_owned(),
        doc: doc.to_owned(),
        schema: schema_of::<HoldEnded<'static>>(),
    }
}

/// The object of the event of a hold that ended because of its time.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HoldEnded<'a> {
    /// ID of the hold.
    id: &'a str,
    /// Its filter.
    filter: &'a str,
    /// When it was to end.
    #[schemars(with = "String", extend("format" = "date-time"))]
    until: Timestamp,
    /// Why it kept events.
    reason: &'a str,
    /// When it was created.
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
}

/// Evaluates the holds.
#[derive(Debug)]
pub(crate) struct HeldEvents {
    store: Store,
    max: Cost,
    seen: Mutex<Seen>,
}

/// What was evaluated before.
#[derive(Debug, Default)]
struct Seen {
    mark: Mark,
    /// The last position of the rows that none of them keeps.
    released: i64,
    /// Their filters; `None` for one that cannot be evaluated.
    filters: HashMap<(String, i64), Option<Arc<LogFilter>>>,
}

/// Holds by ID and revision, and the history of the database that they are of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mark {
    holds: Vec<(String, i64)>,
    epoch: u64,
}

/// A hold that keeps events.
struct Open {
    account: String,
    filter: Option<Arc<LogFilter>>,
}

/// What evaluations cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// How many there are, of one hold on one event each.
    pub(crate) evaluations: u64,
    /// Their cost in units.
    pub(crate) units: u64,
    /// The bytes of events that they read.
    pub(crate) bytes: u64,
}

impl Cost {
    /// The limit of one call, some seconds of a core. When it is reached, the rest is kept, and the next call goes on.
    pub(crate) const MAX: Self = Self {
        evaluations: 1_000_000,
        units: 100_000_000,
        bytes: 1 << 30,
    };

    fn exceeds(&self, max: &Self) -> bool {
        self.evaluations >= max.evaluations || self.units >= max.units || self.bytes >= max.bytes
    }
}

impl HeldEvents {
    /// The holds in this store, evaluated at no more than this cost at a time.
    pub(crate) fn new(store: Store, max: Cost) -> Self {
        Self {
            store,
            max,
            seen: Mutex::default(),
        }
    }

    async fn find_released(&self, first: i64, last: i64) -> Result<Released, Fault> {
        // Before the holds are read: one that is written meanwhile is found at the deletion.
        let as_of = self.store.revision().await?;
        let deciding = Deciding {
            kind: AuditHold::KIND,
            as_of,
        };
        let holds = self.store.all(AuditHold::KIND).await?;
        let (open, released, mark) = self.open(&holds, as_of);
        let mut position = released.max(first.saturating_sub(1)).min(last);
        let mut is_held = false;
        if open.is_empty() {
            position = last;
        }
        let mut cost = Cost::default();
        let log = self.store.audit_log();
        'rows: while position < last {
            let rows = log.rows(position, last, ROWS).await?;
            if rows.is_empty() {
                break;
            }
            for row in &rows {
                if cost.exceeds(&self.max) {
                    break 'rows;
                }
                let of_account = open.iter().filter(|hold| hold.account == row.account);
                for hold in of_account {
                    let logged = Logged {
                        envelope: &row.body,
                        endpoint: "",
                    };
                    let (keeps, units) = match &hold.filter {
                        None => (true, 0),
                        Some(filter) => filter.keeps(logged),
                    };
                    cost.evaluations += 1;
                    cost.units += units;
                    cost.bytes += row.body.len() as u64;
                    if keeps {
                        is_held = true;
                        break 'rows;
                    }
                }
                position = row.seq;
                tokio::task::yield_now().await;
            }
        }
        let mut seen = lock(&self.seen);
        // Another call may have seen other holds.
        if seen.mark == mark {
            seen.released = position;
        }
        drop(seen);
        Ok(Released {
            up_to: position,
            is_held,
            deciding,
        })
    }

    /// The holds that keep events, the last position of the rows that are known to be kept by none of them, and which they are.
    fn open(&self, holds: &[Document], as_of: Revision) -> (Vec<Open>, i64, Mark) {
        let mut seen = lock(&self.seen);
        let mut filters = HashMap::new();
        let mut open = Vec::new();
        let mut mark = Mark {
            holds: Vec::new(),
            epoch: as_of.epoch,
        };
        for document in holds {
            let key = (document.head.id.clone(), document.head.revision);
            let hold = stored::read::<AuditHold>(document);
            if matches!(&hold, Ok(hold) if hold.ended_at.is_some()) {
                continue;
            }
            let known = seen.filters.get(&key).cloned();
            let filter = known.unwrap_or_else(|| compiled(document, hold));
            filters.insert(key.clone(), filter.clone());
            mark.holds.push(key);
            open.push(Open {
                account: document.head.account.clone(),
                filter,
            });
        }
        // Positions of another history have other rows.
        if seen.mark != mark {
            seen.released = 0;
        }
        seen.mark = mark.clone();
        seen.filters = filters;
        (open, seen.released, mark)
    }
}

/// The filter of a hold; `None`, with a line in the log, if it cannot be evaluated.
fn compiled(document: &Document, hold: Result<AuditHold, Fault>) -> Option<Arc<LogFilter>> {
    let why = match hold {
        Ok(hold) => match LogFilter::compile(catalogue(), &hold.filter) {
            Ok(filter) => return Some(Arc::new(filter)),
            Err(refusal) => refusal.to_string(),
        },
        Err(fault) => fault.chain(),
    };
    tracing::error!(
        hold = document.head.id,
        cause = why,
        "a hold cannot be evaluated, so no event of its account is deleted"
    );
    None
}

impl PruningHolds for HeldEvents {
    fn released(&self, first: i64, last: i64) -> BoxFuture<'_, Result<Released, Fault>> {
        Box::pin(self.find_released(first, last))
    }
}

/// Ends the holds whose time is over as of `now`, each with its event.
///
/// # Errors
/// If the store fails.
pub(crate) async fn end_holds(log: &ServerLog, now: Timestamp) -> Result<(), Fault> {
    for mut document in log.store.all(AuditHold::KIND).await? {
        // One that cannot be read keeps events.
        let Ok(mut hold) = stored::read::<AuditHold>(&document) else {
            continue;
        };
        let Some(until) = hold.until else {
            continue;
        };
        if hold.ended_at.is_some() || until > now {
            continue;
        }
        let object = HoldEnded {
            id: &document.head.id,
            filter: &hold.filter,
            until,
            reason: &hold.reason,
            created_at: document.head.created_at,
        };
        let event = log.event(&document.head.account, AUDIT_HOLD_ENDED, None, &object)?;
        hold.ended_at = Some(now);
        document.body = stored::write(&hold)?;
        document.head.updated_at = log.clock.now();
        let changes = Changes::replace(document, AuditEvent::Emit(event));
        log.commit_once("ending a hold", changes).await?;
    }
    Ok(())
}
