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

/// Completions for the word at the end of `text`: facets, methods, reasons, event types and times, and the `hosts` that
/// begin with it. None after a space.
pub fn completions(text: &str, context: &WordsContext<'_>, hosts: &[&str]) -> Vec<Completion> {
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
        Some(facet) => values(&mut found, facet, context, hosts),
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
            for reason in Reason::ALL {
                found.offer(reason.name(), reason.doc());
            }
            for host in hosts {
                found.offer(host, "host");
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

fn values(found: &mut Found<'_>, facet: &str, context: &WordsContext<'_>, hosts: &[&str]) {
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
        "host" | "domain" => hosts
            .iter()
            .for_each(|host| found.offer_of(facet, host, "host")),
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
        // Completions are ASCII or hosts, and one that is complete already is no help.
        let is_begun = word.len() > self.begin.len()
            && word
                .get(..self.begin.len())
                .is_some_and(|begin| begin.eq_ignore_ascii_case(&self.begin));
        if is_begun && self.completions.len() < COMPLETIONS_MAX {
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
