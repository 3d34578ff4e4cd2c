//! Secrets that expressions read by name.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use culvert_cel::{Value, ValueRef};

use crate::policy::values::map;

/// The secrets of an account, which its policies share. Empty until it is filled.
#[derive(Default)]
pub struct Secrets(ArcSwapOption<Value>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// Replaces the secrets: name of the vault, name of the secret, value.
    pub fn replace<'s>(&self, secrets: impl IntoIterator<Item = (&'s str, &'s str, &'s str)>) {
        let mut vaults: Vec<(&str, Vec<(&str, Value)>)> = Vec::new();
        for (vault, name, value) in secrets {
            let entry = (name, Value::from(value));
            match vaults.iter_mut().find(|(known, _)| *known == vault) {
                Some((_, entries)) => entries.push(entry),
                None => vaults.push((vault, vec![entry])),
            }
        }
        let vaults = vaults
            .into_iter()
            .map(|(vault, entries)| (vault, map(entries)));
        self.0.store(Some(Arc::new(map(vaults.collect()))));
    }

    /// The current value of a secret.
    pub(crate) fn value(&self, vault: &str, name: &str) -> Option<Arc<str>> {
        let all = self.0.load();
        let Value::Map(vaults) = &**all.as_ref()? else {
            return None;
        };
        let Some(Value::Map(secrets)) = vaults.get(ValueRef::String(vault)) else {
            return None;
        };
        match secrets.get(ValueRef::String(name))? {
            Value::String(value) => Some(Arc::from(&**value)),
            _ => None,
        }
    }

    /// The current values, by vault and name.
    pub fn now(&self) -> Value {
        match &*self.0.load() {
            Some(value) => (**value).clone(),
            None => map(Vec::new()),
        }
    }
}
