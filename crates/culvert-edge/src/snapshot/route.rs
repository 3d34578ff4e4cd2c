//! Host tables: they find the value of a host name.

use std::sync::Arc;

use culvert_base::PersistentMap;
use culvert_base::net::HostName;

/// A table of hosts, some of them wildcards. A name is found exactly, else under the longest
/// wildcard above it, however far above.
///
/// A clone is cheap and shares what it has in common.
#[derive(Clone, Debug)]
pub(crate) struct Hosts<T> {
    exact: PersistentMap<Arc<str>, T>,
    /// By the part after `*.`.
    wild: PersistentMap<Arc<str>, T>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Self {
        Self {
            exact: PersistentMap::default(),
            wild: PersistentMap::default(),
        }
    }
}

impl<T: Clone> Hosts<T> {
    pub(crate) fn insert(&mut self, host: &HostName, value: T) {
        match host.strip_prefix("*.") {
            Some(base) => self.wild.insert(base.into(), value),
            None => self.exact.insert((**host).into(), value),
        }
    }

    pub(crate) fn remove(&mut self, host: &HostName) {
        match host.strip_prefix("*.") {
            Some(base) => self.wild.remove(base),
            None => self.exact.remove(&**host),
        }
    }

    /// Whether it has no host.
    pub(crate) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.wild.is_empty()
    }

    /// The value of `name`, which is in lower case without a trailing dot.
    pub(crate) fn find(&self, name: &str) -> Option<&T> {
        if let Some(value) = self.exact.get(name) {
            return Some(value);
        }
        if self.wild.is_empty() {
            return None;
        }
        let mut rest = name;
        while let Some((_, above)) = rest.split_once('.') {
            if let Some(value) = self.wild.get(above) {
                return Some(value);
            }
            rest = above;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    #[test]
    fn exact_hosts_precede_wildcards_and_longer_wildcards_shorter_ones() {
        let mut hosts = Hosts::default();
        hosts.insert(&name("a.example"), 1);
        hosts.insert(&name("*.example"), 2);
        hosts.insert(&name("*.deep.example"), 3);
        for (host, found) in [
            ("a.example", Some(&1)),
            ("b.example", Some(&2)),
            ("c.b.example", Some(&2)),
            ("x.deep.example", Some(&3)),
            ("y.x.deep.example", Some(&3)),
            ("deep.example", Some(&2)),
            ("example", None),
            ("other", None),
        ] {
            assert_eq!(hosts.find(host), found, "{host}");
        }
    }
}
