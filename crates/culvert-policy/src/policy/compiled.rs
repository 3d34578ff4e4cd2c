//! A compiled policy.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use culvert_base::Meter;
use culvert_cel::Slot;
use http::header::HeaderName;
use serde_json::Value as Json;

use crate::policy::expression::Condition;
use crate::policy::phase::{Ends, Phase};
use crate::policy::run::{Action, EDGE_PATHS, EdgePaths, KEY_SET_PATH};
use crate::policy::secret::REDACTED;
use crate::policy::secrets::Secrets;
use crate::ports::forward_target::ForwardTarget;
use culvert_ip_data::IpFields;

/// Shorter values are part of too many texts to be replaced.
const SCRUBBED_BYTES_MIN: usize = 4;

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
    pub(crate) secrets: Option<PolicySecrets>,
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
    /// ID of the endpoint's owner, whose share of limited resources it uses; empty if unknown.
    pub(crate) owner: Arc<str>,
    /// See [`crate::Resources::forwards_to`].
    pub(crate) forwards_to: Vec<ForwardTarget>,
}

/// The secrets of a policy.
#[derive(Debug)]
pub(crate) struct PolicySecrets {
    /// All secrets of the account.
    pub(crate) all: Arc<Secrets>,
    /// Those that it names: vault and name.
    pub(crate) named: Box<[(String, String)]>,
    /// Where they stand.
    pub(crate) uses: Box<[SecretUse]>,
    /// Whether it computes the name of one, as policies of early versions could.
    pub(crate) computes_names: bool,
    /// Whether it may use them now.
    pub(crate) right: Arc<SecretRight>,
}

/// A secret, and a place of a policy that its value reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretUse {
    /// Name of the vault.
    pub vault: String,
    /// Name of the secret.
    pub name: String,
    /// The place, such as ``on_http_request, rule 1, action 1 (log): `metadata` ``.
    pub place: String,
    /// Whether the secret cannot be echoed from there.
    pub is_confined: bool,
}

fn scrub(json: &mut Json, values: &[Arc<str>]) {
    let scrubbed = |text: &str| {
        let mut text = Cow::Borrowed(text);
        for value in values {
            if text.contains(&**value) {
                text = text.replace(&**value, REDACTED).into();
            }
        }
        text.into_owned()
    };
    match json {
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
        Json::String(text) => *text = scrubbed(text),
        Json::Array(items) => items.iter_mut().for_each(|item| scrub(item, values)),
        Json::Object(entries) => {
            let taken = std::mem::take(entries).into_iter();
            entries.extend(taken.map(|(key, mut value)| {
                scrub(&mut value, values);
                (scrubbed(&key), value)
            }));
        }
    }
}

/// Whether a policy may use its secrets. Control changes it while the policy is in use.
#[derive(Debug, Default)]
pub struct SecretRight(AtomicBool);

impl SecretRight {
    /// Refuses everything from now on, or no longer. Returns whether that is a change.
    pub fn withdraw(&self, is_withdrawn: bool) -> bool {
        self.0.swap(is_withdrawn, Ordering::Relaxed) != is_withdrawn
    }

    /// Whether the policy refuses everything.
    pub fn is_withdrawn(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Actions that run if all expressions are true.
#[derive(Debug)]
pub struct Rule {
    /// Its name, which may be empty.
    pub name: String,
    /// Its conditions, all of which must hold.
    pub expressions: Box<[Condition]>,
    /// Its actions, in order.
    pub actions: Box<[Box<dyn Action>]>,
    /// The types of its actions, and whether each ends the phase.
    pub types: Box<[(&'static str, Ends)]>,
    /// Whether it has an action that configures TLS handshakes.
    pub terminates_tls: bool,
    /// Whether it has an action that restricts access ([`ActionType::guards`](crate::action_type::ActionType)), so that
    /// a failed expression must not skip it.
    pub guards: bool,
    /// Counts expressions that failed.
    pub failures: Meter,
    /// Counts requests and connections that were rejected because the rule could not be decided.
    pub refusals: Meter,
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
        actions.flat_map(|action| action.edge_paths().into_iter().chain(action.key_set()))
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

    /// ID of the endpoint's owner; empty if unknown.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The internal endpoints that it names, and whose they were when it was written.
    pub fn forwards_to(&self) -> &[ForwardTarget] {
        &self.forwards_to
    }

    /// The secrets that its expressions may read, by vault and name.
    pub fn secrets(&self) -> culvert_cel::Value {
        let secrets = self.secrets.as_ref();
        secrets.map_or(culvert_cel::Value::Null, |secrets| secrets.all.now())
    }

    /// The places that secrets reach, also through variables and results of actions.
    pub fn secret_uses(&self) -> &[SecretUse] {
        self.secrets.as_ref().map_or(&[], |secrets| &secrets.uses)
    }

    /// Whether an expression computes the name of a secret, so that [`Self::secret_uses`] does not have it.
    pub fn computes_secret_names(&self) -> bool {
        let secrets = self.secrets.as_ref();
        secrets.is_some_and(|secrets| secrets.computes_names)
    }

    /// Whether it may use its secrets; `None` if it has none.
    pub fn secret_right(&self) -> Option<&Arc<SecretRight>> {
        self.secrets.as_ref().map(|secrets| &secrets.right)
    }

    /// Replaces the values of its secrets in an entry of a log. Templates that are secret are redacted before; a
    /// service that a policy called may have echoed one.
    pub fn scrub(&self, entry: &mut Json) {
        if let Some(secrets) = &self.secrets {
            let values = secrets.named.iter();
            let values = values.filter_map(|(vault, name)| secrets.all.value(vault, name));
            let values = values.filter(|value| value.len() >= SCRUBBED_BYTES_MIN);
            scrub(entry, &values.collect::<Vec<_>>());
        }
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

    /// How many requests and connections were rejected because a rule could not be decided.
    pub fn refusals(&self) -> u64 {
        Phase::ALL
            .iter()
            .flat_map(|phase| self.rules(*phase))
            .map(|rule| rule.refusals.get())
            .sum()
    }
}
