//! Types of actions: their names, their phases and endpoints, and how they are compiled.

use std::fmt;

use culvert_base::{Code, Refusal, code};
use schemars::{Schema, SchemaGenerator};

use crate::policy::context::PolicyContext;
use crate::policy::phase::{Ends, Phase};
use crate::policy::run::Action;
use crate::scheme::Scheme;

/// The actions that policies may use: tables of several crates, each sorted by name.
#[derive(Clone, Copy, Debug)]
pub struct Actions(pub &'static [&'static [&'static ActionType]]);

impl Actions {
    /// The action of that name.
    pub fn find(self, name: &str) -> Option<&'static ActionType> {
        let mut all = self.0.iter().flat_map(|table| table.iter().copied());
        all.find(|ty| ty.name == name)
    }

    /// Every action, sorted by name.
    pub fn sorted(self) -> Vec<&'static ActionType> {
        let mut all: Vec<_> = self.0.concat();
        all.sort_unstable_by_key(|ty| ty.name);
        all
    }
}

/// One kind of action.
pub struct ActionType {
    /// Its `type` in a policy.
    pub name: &'static str,
    /// The text of the reference.
    pub doc: &'static str,
    /// The phases that may have it.
    pub phases: &'static [Phase],
    /// The schemes of endpoints that may have it.
    pub schemes: &'static [Scheme],
    /// Whether it ends its phase.
    pub ends: Ends,
    /// Whether it signs users in; a policy has one such action.
    pub is_login: bool,
    /// Whether it restricts access. An expression that fails must not skip a rule with such an action
    /// (`policy.on_expression_error: auto`).
    pub guards: bool,
    /// Fields of the configuration that are encrypted at rest and never shown.
    pub secrets: &'static [&'static str],
    /// Fields that take secrets of vaults, such as `credentials` or `headers`, and in which phases: nothing that
    /// clients, logs or events see contains their values. Everywhere else, only those who may change a vault may use
    /// its secrets.
    pub takes_secrets: &'static [(&'static str, &'static [Phase])],
    /// Whether neither its results nor its responses contain values of its configuration.
    pub keeps_secrets: bool,
    /// Fields with IDs of other objects, and the prefix of those IDs.
    pub references: &'static [(&'static str, &'static str)],
    /// Of the configuration; `None` if it takes none.
    pub schema: Option<fn(&mut SchemaGenerator) -> Schema>,
    /// Compiles the configuration.
    pub compile: fn(&PolicyContext<'_>) -> Result<Box<dyn Action>, Refusal>,
}

impl ActionType {
    /// The defaults of an action type.
    pub const PLAIN: Self = Self {
        name: "",
        doc: "",
        phases: &[],
        schemes: &Scheme::ALL,
        ends: Ends::Never,
        is_login: false,
        guards: false,
        secrets: &[],
        takes_secrets: &[],
        keeps_secrets: false,
        references: &[],
        schema: None,
        compile: |context| Err(context.refuse(code::POLICY_ACTION_UNKNOWN, "it is not supported")),
    };

    /// Whether a field, such as `credentials[0]` or `headers.x-key`, takes secrets in a phase.
    pub fn takes_secret(&self, field: &str, phase: Phase) -> bool {
        self.takes_secrets.iter().any(|(name, phases)| {
            let rest = field.strip_prefix(name);
            let is_it = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
            is_it && phases.contains(&phase)
        })
    }
}

impl fmt::Debug for ActionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActionType")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// An action of other implementations that this server does not support.
#[derive(Debug)]
pub struct NotBuilt {
    /// Its `type`.
    pub name: &'static str,
    /// The code of the refusal.
    pub code: Code,
    /// The end of a sentence that begins with its name.
    pub reason: &'static str,
}

const fn out(name: &'static str, reason: &'static str) -> NotBuilt {
    NotBuilt {
        name,
        code: code::POLICY_VALUE_INVALID,
        reason,
    }
}

/// Actions that are rejected with a reason.
pub static NOT_BUILT: &[NotBuilt] = &[
    out(
        "ai-gateway",
        "is not supported: it requires services of its vendor",
    ),
    out(
        "owasp-crs-request",
        "is not supported: it requires an engine for the Core Rule Set",
    ),
    out(
        "owasp-crs-response",
        "is not supported: it requires an engine for the Core Rule Set",
    ),
    out("saml", "is not supported"),
    out("sse-find-replace", "is not supported"),
];
