//! Where values that come from secrets may stand in a policy.
//!
//! An expression is secret if it reads a secret, a variable of `set-vars` or the result of an action that is secret, or
//! a response that such an action made. Any function of a secret value counts: a hash or a length says something
//! about it too. One pass in the order of execution finds all of them, before the policy runs; so only secret
//! templates cost anything at run time.
//!
//! Each action lists the fields that take secrets ([`ActionType::takes_secrets`]). In all others, and in conditions, a
//! secret can be echoed to clients, logs or other services. Whether the author may do that is decided by control,
//! from [`Policy::secret_uses`](crate::Policy::secret_uses).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use culvert_cel::{Limits, Slot, has_computed_calls, literal_calls, selections};

use crate::action_type::ActionType;
use crate::policy::compiled::SecretUse;
use crate::policy::phase::{Ends, Phase};
use crate::policy::variables;

/// The function that reads a secret.
pub(crate) const GET: &str = "secrets.get";

/// Whether a template is secret. Shared by the template and the pass that finds it out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mark(Option<Arc<AtomicBool>>);

impl Mark {
    /// The mark of a template that reads these variables. Most read nothing that can be secret.
    pub(crate) fn of(slots: impl IntoIterator<Item = Slot>) -> Self {
        let is_suspect = slots.into_iter().any(carries);
        Self(is_suspect.then(Arc::default))
    }

    /// Whether the template is secret.
    pub(crate) fn is_secret(&self) -> bool {
        let mark = self.0.as_ref();
        mark.is_some_and(|mark| mark.load(Ordering::Relaxed))
    }

    fn set(&self) {
        if let Some(mark) = &self.0 {
            mark.store(true, Ordering::Relaxed);
        }
    }
}

/// The variables that can be secret.
struct Carriers {
    secrets: Slot,
    vars: Slot,
    results: Slot,
    response: BTreeSet<Slot>,
}

static CARRIERS: LazyLock<Carriers> = LazyLock::new(|| {
    let response = variables::ALL.iter().enumerate();
    let response = response.filter(|(_, variable)| variable.path.starts_with("res."));
    Carriers {
        secrets: variables::slot(variables::SECRETS),
        vars: variables::slot(variables::VARS),
        results: variables::slot(variables::ACTIONS),
        response: response
            .filter_map(|(slot, _)| Slot::try_from(slot).ok())
            .collect(),
    }
});

fn carries(slot: Slot) -> bool {
    let carriers = &*CARRIERS;
    [carriers.secrets, carriers.vars, carriers.results].contains(&slot)
        || carriers.response.contains(&slot)
}

/// The names that an expression reads of a variable.
#[derive(Debug, Default)]
struct Names {
    names: BTreeSet<String>,
    /// Whether it reads computed names, or the variable as a whole.
    has_any: bool,
}

impl Names {
    /// The names at a position of each selection.
    fn read(&mut self, source: &str, root: &str, position: usize) {
        for selected in selections(source, root, &Limits::POLICY) {
            match selected.get(position) {
                Some(name) => drop(self.names.insert(name.clone())),
                None => self.has_any = true,
            }
        }
    }
}

/// Where the value of an expression goes besides its own place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Feeds {
    /// Into what the action that has it shows of itself.
    Action,
    /// Into a variable of `set-vars`.
    Variable(String),
}

/// A condition or template of a policy that reads something that can be secret.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Its field in the configuration of the action; empty for a condition of a rule.
    field: String,
    feeds: Feeds,
    mark: Mark,
    secrets: BTreeSet<(String, String)>,
    computes_names: bool,
    vars: Names,
    results: Names,
    reads_response: bool,
}

impl Reading {
    /// What expressions with these sources and slots read; `None` if nothing of it can be secret.
    pub(crate) fn of<'s>(
        field: &str,
        feeds: Feeds,
        sources: impl IntoIterator<Item = &'s str>,
        slots: impl IntoIterator<Item = Slot>,
        mark: Mark,
    ) -> Option<Self> {
        let slots: BTreeSet<Slot> = slots.into_iter().filter(|slot| carries(*slot)).collect();
        if slots.is_empty() {
            return None;
        }
        let carriers = &*CARRIERS;
        let mut reading = Self {
            field: field.to_owned(),
            feeds,
            mark,
            secrets: BTreeSet::new(),
            computes_names: false,
            vars: Names::default(),
            results: Names::default(),
            reads_response: slots.iter().any(|slot| carriers.response.contains(slot)),
        };
        for source in sources {
            if slots.contains(&carriers.secrets) {
                for call in literal_calls(source, GET, &Limits::POLICY) {
                    if let Ok([vault, name]) = <[String; 2]>::try_from(call) {
                        reading.secrets.insert((vault, name));
                    }
                }
                reading.computes_names |= has_computed_calls(source, GET, &Limits::POLICY);
            }
            if slots.contains(&carriers.vars) {
                reading.vars.read(source, variables::VARS, 0);
            }
            if slots.contains(&carriers.results) {
                // After the namespace.
                reading.results.read(source, variables::ACTIONS, 1);
            }
        }
        Some(reading)
    }
}

/// What the secrets of a policy reach.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    vars: BTreeMap<String, BTreeSet<usize>>,
    results: BTreeMap<String, BTreeSet<usize>>,
    response: BTreeSet<usize>,
    /// Vaults and names.
    secrets: Vec<(String, String)>,
    uses: Vec<SecretUse>,
    computes_names: bool,
}

impl Flow {
    /// Follows the next expressions in the order of execution: those of an action, or the conditions of a rule.
    pub(crate) fn follow(
        &mut self,
        phase: Phase,
        place: &str,
        ty: Option<&ActionType>,
        readings: Vec<Reading>,
    ) {
        let mut shown = BTreeSet::new();
        for reading in readings {
            self.computes_names |= reading.computes_names;
            let reached = self.reached(phase, &reading);
            if reached.is_empty() && !reading.computes_names {
                continue;
            }
            reading.mark.set();
            let is_confined = ty.is_some_and(|ty| ty.takes_secret(&reading.field, phase));
            let place = match reading.field.as_str() {
                "" => place.to_owned(),
                field => format!("{place}: `{field}`"),
            };
            for index in &reached {
                let Some((vault, name)) = self.secrets.get(*index) else {
                    continue;
                };
                self.uses.push(SecretUse {
                    vault: vault.clone(),
                    name: name.clone(),
                    place: place.clone(),
                    is_confined,
                });
            }
            match reading.feeds {
                Feeds::Variable(name) => self.vars.entry(name).or_default().extend(reached),
                Feeds::Action => shown.extend(reached),
            }
        }
        let Some(ty) = ty.filter(|ty| !ty.keeps_secrets && !shown.is_empty()) else {
            return;
        };
        if phase == Phase::Request && ty.ends != Ends::Never {
            self.response.extend(shown.iter().copied());
        }
        let results = self.results.entry(ty.name.replace('-', "_"));
        results.or_default().extend(shown);
    }

    /// The secrets that an expression reads, by index.
    fn reached(&mut self, phase: Phase, reading: &Reading) -> BTreeSet<usize> {
        let mut reached = BTreeSet::new();
        for secret in &reading.secrets {
            let known = self.secrets.iter().position(|known| known == secret);
            reached.insert(known.unwrap_or_else(|| {
                self.secrets.push(secret.clone());
                self.secrets.len() - 1
            }));
        }
        for (names, known) in [
            (&reading.vars, &self.vars),
            (&reading.results, &self.results),
        ] {
            let read = known
                .iter()
                .filter(|(name, _)| names.has_any || names.names.contains(*name));
            reached.extend(read.flat_map(|(_, secrets)| secrets.iter().copied()));
        }
        if phase == Phase::Response && reading.reads_response {
            reached.extend(self.response.iter().copied());
        }
        reached
    }

    /// The uses of secrets, the secrets themselves, and whether an expression computes the name of one.
    pub(crate) fn end(self) -> (Vec<SecretUse>, Vec<(String, String)>, bool) {
        (self.uses, self.secrets, self.computes_names)
    }
}
