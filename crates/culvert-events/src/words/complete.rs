//! Completions for the word at the end of a search.

use super::facets::{self, FACETS};
use super::{WordsContext, tokens};
use crate::reason::Reason;

/// A word that may replace the one at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The whole word.
    pub text: String,
    /// Its meaning, for people.
    pub label: String,
}

/// Maximum number of completions.
const COMPLETIONS_MAX: usize = 12;
/// Maximum number of hosts among them, and of endpoints, where others follow.
const HOSTS_MAX: usize = 5;
/// Minimum length of a word without a facet that is completed to a host.
const HOST_BYTES_MIN: usize = 2;

/// An endpoint that a search may be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownEndpoint<'a> {
    /// Its ID.
    pub id: &'a str,
    /// Its host in ASCII.
    pub host: &'a str,
    /// Its URL, for people.
    pub url: &'a str,
}

/// The text by which endpoints complete the word at the end of `text`; `None` if they do not.
pub fn endpoint_text(text: &str) -> Option<String> {
    if text.len() > super::WORDS_BYTES_MAX || text.ends_with(char::is_whitespace) {
        return None;
    }
    let last = tokens::split(text).pop().filter(|last| !last.is_quoted)?;
    let is_named = match last.facet.as_deref() {
        Some("host" | "domain" | "object" | "endpoint" | "endpoint_id") => true,
        Some(_) => false,
        None => last.text.len() >= HOST_BYTES_MIN && !last.text.starts_with(['/', '<', '>']),
    };
    is_named.then(|| last.text.to_lowercase())
}

/// Completions for the word at the end of `text`: facets, methods, reasons, event types and times, and the hosts and
/// IDs of `endpoints`, which have [`endpoint_text`] in their URLs. None after a space.
pub fn completions(
    text: &str,
    context: &WordsContext<'_>,
    endpoints: &[KnownEndpoint<'_>],
) -> Vec<Completion> {
    if text.len() > super::WORDS_BYTES_MAX || text.ends_with(char::is_whitespace) {
        return Vec::new();
    }
    let Some(last) = tokens::split(text).pop().filter(|last| !last.is_quoted) else {
        return Vec::new();
    };
    let sign = if last.is_negated { "-" } else { "" };
    let mut found = Found {
        sign,
        begin: last.text.clone(),
        completions: Vec::new(),
    };
    match last.facet.as_deref() {
        Some(facet) => values(&mut found, facet, context, endpoints),
        None => {
            for (facet, _, values) in &FACETS {
                found.offer(&format!("{facet}:"), values);
            }
            for method in facets::methods() {
                found.offer(method, "method");
            }
            for (words, label) in TIMES {
                found.offer(words, label);
            }
            found.offer("error", "responses 5xx and requests that failed");
            found.offer_hosts("", endpoints, HOSTS_MAX);
            found.offer_endpoints("object", endpoints, HOSTS_MAX);
            for reason in Reason::ALL {
                found.offer(reason.name(), reason.doc());
            }
        }
    }
    found.completions
}

const TIMES: [(&str, &str); 6] = [
    ("last 24h", "the last 24 hours"),
    ("last 7 days", "the last 7 days"),
    ("today", "since midnight"),
    ("yesterday", "the day before today"),
    ("since ", "at or after a time"),
    ("before ", "before a time"),
];

fn values(
    found: &mut Found<'_>,
    facet: &str,
    context: &WordsContext<'_>,
    endpoints: &[KnownEndpoint<'_>],
) {
    match facet {
        "method" => {
            (facets::methods().iter()).for_each(|method| found.offer_of(facet, method, "method"))
        }
        "status" | "code" => {
            for (class, label) in [
                ("2xx", "success"),
                ("3xx", "redirection"),
                ("4xx", "client error"),
                ("5xx", "server error"),
            ] {
                found.offer_of(facet, class, label);
            }
        }
        "reason" | "cause" => {
            (Reason::ALL.iter())
                .for_each(|reason| found.offer_of(facet, reason.name(), reason.doc()));
        }
        "type" | "kind" => {
            for (class, label) in [("traffic", "all traffic"), ("audit", "all changes")] {
                found.offer_of(facet, class, label);
            }
            (context.kinds.iter()).for_each(|kind| found.offer_of(facet, kind, "event type"));
        }
        "host" | "domain" => found.offer_hosts(&format!("{facet}:"), endpoints, COMPLETIONS_MAX),
        "object" | "endpoint" | "endpoint_id" => {
            found.offer_endpoints(facet, endpoints, COMPLETIONS_MAX);
        }
        _ => {}
    }
}

struct Found<'a> {
    sign: &'a str,
    begin: String,
    completions: Vec<Completion>,
}

impl Found<'_> {
    fn offer(&mut self, word: &str, label: &str) {
        // One that is complete already is no help.
        let is_begun = word.len() > self.begin.len()
            && word
                .get(..self.begin.len())
                .is_some_and(|begin| begin.eq_ignore_ascii_case(&self.begin));
        if is_begun {
            self.push(word.to_owned(), label);
        }
    }

    /// Offers the hosts of endpoints, each once, after `before`.
    fn offer_hosts(&mut self, before: &str, endpoints: &[KnownEndpoint<'_>], most: usize) {
        let begin = self.begin.to_lowercase();
        let mut hosts: Vec<&str> = endpoints.iter().map(|endpoint| endpoint.host).collect();
        hosts.retain(|host| !host.is_empty() && host.contains(&begin) && *host != begin);
        hosts.sort_by_key(|host| (!host.starts_with(&begin), *host));
        hosts.dedup();
        for host in hosts.into_iter().take(most) {
            self.push(format!("{before}{host}"), "host");
        }
    }

    /// Offers the IDs of endpoints.
    fn offer_endpoints(&mut self, facet: &str, endpoints: &[KnownEndpoint<'_>], most: usize) {
        let others = endpoints
            .iter()
            .filter(|endpoint| endpoint.id != self.begin);
        for endpoint in others.take(most).collect::<Vec<_>>() {
            self.push(format!("{facet}:{}", endpoint.id), endpoint.url);
        }
    }

    fn push(&mut self, word: String, label: &str) {
        if self.completions.len() < COMPLETIONS_MAX {
            self.completions.push(Completion {
                text: format!("{}{word}", self.sign),
                label: label.to_owned(),
            });
        }
    }

    fn offer_of(&mut self, facet: &str, value: &str, label: &str) {
        let n_before = self.completions.len();
        self.offer(value, label);
        if let Some(added) = self.completions.get_mut(n_before) {
            added.text = format!("{}{facet}:{value}", self.sign);
        }
    }
}
