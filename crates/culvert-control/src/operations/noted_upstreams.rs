//! The unhealthy upstreams that a node describes to the others, so that each of them shows what all see.

use std::collections::{BTreeSet, HashMap};

use culvert_edge_config::UnhealthyUpstream;
use serde::{Deserialize, Serialize};

/// Maximum size of the texts in a description, which is written every few seconds.
const BYTES_MAX: usize = 64 << 10;
/// Maximum size of the texts about upstreams of one owner.
const BYTES_OF_OWNER_MAX: usize = 4 << 10;

/// The unhealthy upstreams of a node.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct NotedUpstreams {
    unhealthy: Vec<NotedUpstream>,
    /// Owners of endpoints with more upstreams that are unhealthy, and do not fit.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    cut_owners: BTreeSet<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct NotedUpstream {
    endpoint_id: String,
    url: String,
    reason: String,
}

/// What a node says of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted<'a> {
    Healthy,
    /// With the reason.
    Unhealthy(&'a str),
    /// It did not fit into the description.
    Unknown,
}

impl NotedUpstreams {
    pub(super) fn of(unhealthy: Vec<UnhealthyUpstream>) -> Self {
        let (mut noted, mut bytes) = (Self::default(), 0);
        let mut of_owners: HashMap<_, usize> = HashMap::new();
        for one in unhealthy {
            let size = one.endpoint.len() + one.url.len() + one.reason.len();
            let of_owner = of_owners.entry(one.owner.clone()).or_default();
            if *of_owner + size > BYTES_OF_OWNER_MAX || bytes + size > BYTES_MAX {
                noted.cut_owners.insert(one.owner.to_string());
                continue;
            }
            *of_owner += size;
            bytes += size;
            noted.unhealthy.push(NotedUpstream {
                endpoint_id: one.endpoint.to_string(),
                url: one.url,
                reason: one.reason,
            });
        }
        noted
    }

    /// What it says of an upstream, by the ID of its endpoint, the endpoint's owner and the URL.
    pub(super) fn get(&self, endpoint_id: &str, owner_id: &str, url: &str) -> Noted<'_> {
        let mut unhealthy = self.unhealthy.iter();
        match unhealthy.find(|one| one.endpoint_id == endpoint_id && one.url == url) {
            Some(one) => Noted::Unhealthy(&one.reason),
            None if self.cut_owners.contains(owner_id) => Noted::Unknown,
            None => Noted::Healthy,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn unhealthy(owner: usize, number: usize, reason: &str) -> UnhealthyUpstream {
        UnhealthyUpstream {
            endpoint: format!("ep_{owner}").into(),
            account: "ac_1".into(),
            owner: format!("usr_{owner}").into(),
            url: format!("http://10.0.0.1:{number}"),
            reason: reason.to_owned(),
            lasts: Duration::ZERO,
        }
    }

    #[test]
    fn who_has_too_many_hides_nothing_of_others() {
        let mut all: Vec<_> = (0..1_000)
            .map(|number| unhealthy(1, number, &"x".repeat(100)))
            .collect();
        all.push(unhealthy(2, 1, "refused"));
        let noted = NotedUpstreams::of(all);
        let of = |owner: usize, number: usize| {
            let url = format!("http://10.0.0.1:{number}");
            noted.get(&format!("ep_{owner}"), &format!("usr_{owner}"), &url)
        };
        assert_eq!(of(2, 1), Noted::Unhealthy("refused"));
        assert_eq!(of(2, 2), Noted::Healthy);
        assert!(matches!(of(1, 0), Noted::Unhealthy(_)));
        // No upstream that may be unhealthy counts as healthy.
        assert_eq!(of(1, 999), Noted::Unknown);
        assert!(serde_json::to_string(&noted).unwrap().len() < 2 * BYTES_OF_OWNER_MAX);
    }

    #[test]
    fn a_description_has_a_size_whatever_fails() {
        let all = (0..5_000).map(|owner| unhealthy(owner, 1, &"x".repeat(1_000)));
        let noted = NotedUpstreams::of(all.collect());
        let bytes: usize = noted.unhealthy.iter().map(|one| one.reason.len()).sum();
        assert!(bytes <= BYTES_MAX);
        let of = |owner: usize| {
            noted.get(
                &format!("ep_{owner}"),
                &format!("usr_{owner}"),
                "http://10.0.0.1:1",
            )
        };
        assert!(matches!(of(0), Noted::Unhealthy(_)));
        assert_eq!(of(4_999), Noted::Unknown);
    }
}
