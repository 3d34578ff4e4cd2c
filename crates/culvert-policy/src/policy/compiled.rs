//! A policy, ready to run.

use std::sync::{Arc, LazyLock};

use culvert_base::Meter;
use culvert_cel::{Predicate, Slot};

use crate::ipdata::IpFields;
use crate::policy::phase::Phase;
use crate::policy::run::Action;
use crate::policy::secrets::Secrets;
use crate::policy::variables;

/// A policy, ready to run.
#[derive(Debug)]
pub struct Policy {
    pub(crate) connect: Box<[Rule]>,
    pub(crate) request: Box<[Rule]>,
    pub(crate) response: Box<[Rule]>,
    /// Slots of the variables it reads, ascending.
    pub(crate) reads: Box<[Slot]>,
    pub(crate) reads_results: bool,
    /// The data of the operator that it reads.
    pub(crate) ip_fields: IpFields,
    /// Of the account, if it reads any.
    pub(crate) secrets: Option<Arc<Secrets>>,
}

/// What to do when all expressions hold.
#[derive(Debug)]
pub struct Rule {
    pub name: String,
    pub expressions: Box<[Predicate]>,
    pub actions: Box<[Box<dyn Action>]>,
    /// Whether an action of it says how a TLS handshake is done.
    pub terminates_tls: bool,
    /// How often an expression of it failed.
    pub failures: Meter,
}

impl Policy {
    /// The rules of a phase, in order.
    pub fn rules(&self, phase: Phase) -> &[Rule] {
        match phase {
            Phase::Connect => &self.connect,
            Phase::Request => &self.request,
            Phase::Response => &self.response,
        }
    }

    /// The variables any of it reads.
    pub fn reads(&self) -> &[Slot] {
        &self.reads
    }

    /// The place of a variable among those it reads.
    pub fn cell(&self, slot: Slot) -> Option<usize> {
        self.reads.binary_search(&slot).ok()
    }

    /// The secrets that its expressions may read, by vault and name.
    pub fn secrets(&self) -> culvert_cel::Value {
        let secrets = self.secrets.as_ref();
        secrets.map_or(culvert_cel::Value::Null, |secrets| secrets.now())
    }

    /// The data of the operator that any of it reads. Without all of it, it refuses traffic.
    pub fn ip_fields(&self) -> IpFields {
        self.ip_fields
    }

    /// Whether any of it reads what actions say of themselves.
    pub(crate) fn reads_results(&self) -> bool {
        self.reads_results
    }

    /// Whether any of it depends on the name that a connection was made for.
    pub fn judges_connections(&self) -> bool {
        static SNI: LazyLock<Slot> = LazyLock::new(|| variables::slot("conn.tls.sni"));
        !self.connect.is_empty() || self.cell(*SNI).is_some()
    }

    /// Whether it says how a TLS handshake is done.
    pub fn terminates_tls(&self) -> bool {
        self.connect.iter().any(|rule| rule.terminates_tls)
    }

    /// How often an expression of one of its rules failed, since it is in use.
    pub fn failures(&self) -> u64 {
        Phase::ALL
            .iter()
            .flat_map(|phase| self.rules(*phase))
            .map(|rule| rule.failures.get())
            .sum()
    }
}
