//! A compiled policy.

use std::sync::Arc;

use culvert_base::Meter;
use culvert_cel::{Predicate, Slot};
use http::header::HeaderName;

use crate::identity::{ForwardIdentity, KEY_SET_PATH};
use crate::ipdata::IpFields;
use crate::policy::phase::{Ends, Phase};
use crate::policy::run::{Action, EDGE_PATHS, EdgePaths};
use crate::policy::secrets::Secrets;

/// A policy, ready to run.
#[derive(Debug)]
pub struct Policy {
    pub(crate) connect: Box<[Rule]>,
    pub(crate) request: Box<[Rule]>,
    pub(crate) response: Box<[Rule]>,
    /// Slots of the variables it reads, ascending.
    pub(crate) reads: Box<[Slot]>,
    /// Index of the results of actions among the variables that it reads.
    pub(crate) results_cell: Option<usize>,
    /// Index of the variables of `set-vars` among those that it reads.
    pub(crate) vars_cell: Option<usize>,
    /// Whether it reads the SNI.
    pub(crate) reads_sni: bool,
    /// The fields of IP data that it reads.
    pub(crate) ip_fields: IpFields,
    /// Secrets of the account, if it reads any.
    pub(crate) secrets: Option<Arc<Secrets>>,
    /// Rule and position of the actions of the request phase that answer paths of the edge.
    pub(crate) edge_paths: Box<[(usize, usize)]>,
    /// How many bytes of a request's body are copied in case the response phase captures it.
    pub(crate) late_request_bytes: Option<usize>,
    /// Whether all paths of the edge are its own, and not only that of the key set.
    pub(crate) owns_all_edge_paths: bool,
    /// Names of the fields by which its actions tell the upstream who the user is.
    pub(crate) identity_fields: Box<[HeaderName]>,
    /// Likely mistakes.
    pub(crate) warnings: Vec<String>,
}

/// Actions that run if all expressions are true.
#[derive(Debug)]
pub struct Rule {
    /// Its name, which may be empty.
    pub name: String,
    /// Its conditions, all of which must hold.
    pub expressions: Box<[Predicate]>,
    /// Its actions, in order.
    pub actions: Box<[Box<dyn Action>]>,
    /// The types of its actions, and whether each ends the phase.
    pub types: Box<[(&'static str, Ends)]>,
    /// Whether it has an action that configures TLS handshakes.
    pub terminates_tls: bool,
    /// Counts expressions that failed.
    pub failures: Meter,
}

impl Rule {
    /// Whether it ends its phase if it matches.
    pub fn ends(&self) -> Ends {
        let has = |wanted| self.types.iter().any(|(_, ends)| *ends == wanted);
        match () {
            () if has(Ends::Always) => Ends::Always,
            () if has(Ends::Sometimes) => Ends::Sometimes,
            () => Ends::Never,
        }
    }
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

    /// The actions that answer paths of the edge.
    pub fn edge_paths(&self) -> impl Iterator<Item = &dyn EdgePaths> {
        let actions = self.edge_paths.iter().filter_map(|(rule, position)| {
            let rule = self.request.get(*rule)?;
            rule.actions.get(*position)
        });
        actions.flat_map(|action| {
            let keys = action
                .forwards()
                .map(|forwards: &ForwardIdentity| forwards as _);
            action.edge_paths().into_iter().chain(keys)
        })
    }

    /// Whether requests to this normalised path are for the edge, and not for the service.
    pub fn owns_path(&self, path: &str) -> bool {
        // Most policies own none.
        !self.edge_paths.is_empty()
            && path.starts_with(EDGE_PATHS)
            && (self.owns_all_edge_paths || path == KEY_SET_PATH)
    }

    /// The slots of the variables that it reads.
    pub fn reads(&self) -> &[Slot] {
        &self.reads
    }

    /// The index of a variable among those it reads.
    pub fn cell(&self, slot: Slot) -> Option<usize> {
        self.reads.binary_search(&slot).ok()
    }

    /// How many bytes of a request's body are copied in case the response phase captures it.
    pub fn late_request_bytes(&self) -> Option<usize> {
        self.late_request_bytes
    }

    /// Names of the fields by which its actions tell the upstream who the user is. The edge removes them from each request
    /// before a phase begins, whichever rules match.
    pub fn identity_fields(&self) -> &[HeaderName] {
        &self.identity_fields
    }

    /// Likely mistakes, as sentences. The policy is valid nevertheless.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The secrets that its expressions may read, by vault and name.
    pub fn secrets(&self) -> culvert_cel::Value {
        let secrets = self.secrets.as_ref();
        secrets.map_or(culvert_cel::Value::Null, |secrets| secrets.now())
    }

    /// The fields of IP data that it reads. Without all of them, it rejects traffic.
    pub fn ip_fields(&self) -> IpFields {
        self.ip_fields
    }

    /// The index of the results of actions, if it reads them.
    pub(crate) fn results_cell(&self) -> Option<usize> {
        self.results_cell
    }

    /// The index of the variables of `set-vars`, if it reads them.
    pub(crate) fn vars_cell(&self) -> Option<usize> {
        self.vars_cell
    }

    /// Whether its rules depend on the SNI of a connection.
    pub fn judges_connections(&self) -> bool {
        !self.connect.is_empty() || self.reads_sni
    }

    /// Whether it configures TLS handshakes.
    pub fn terminates_tls(&self) -> bool {
        self.connect.iter().any(|rule| rule.terminates_tls)
    }

    /// How many expressions of each rule have failed.
    pub fn failures(&self) -> u64 {
        Phase::ALL
            .iter()
            .flat_map(|phase| self.rules(*phase))
            .map(|rule| rule.failures.get())
            .sum()
    }
}
