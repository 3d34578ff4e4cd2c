//! Searches in plain words: `502 shop.example.com /checkout >500ms last 24h` becomes terms, each of a facet, and a CEL
//! condition for [`LogFilter`](crate::LogFilter).
//!
//! Values of one facet are alternatives, facets narrow each other, and `-` or `not` before a word negates it.
//! Comparisons and plain texts narrow each other also within their facet. Text with `ev.`, `==`, `!=`, `&&` or `||` is a
//! CEL condition as a whole.
//!
//! Pure: the clock, the offset of the local time and the names of the kinds are arguments. No input causes a panic.
//!
//! Not here: who may search, and whether a condition compiles.

mod complete;
mod condition;
mod facets;
mod moment;
mod network;
mod tokens;

use culvert_base::Timestamp;

pub use complete::{Completion, KnownEndpoint, completions, endpoint_text};
use condition::Condition;
use tokens::Token;

/// Maximum length of a search in bytes.
pub const WORDS_BYTES_MAX: usize = 1024;
/// Maximum number of words. It keeps the condition within the limits of filters.
const TERMS_MAX: usize = 24;
/// Texts search several fields, so their conditions are long.
const TEXTS_MAX: usize = 4;

/// What the meaning of words depends on.
#[derive(Clone, Copy, Debug)]
pub struct WordsContext<'a> {
    /// The current time.
    pub now: Timestamp,
    /// Offset of the local time from UTC in minutes, for dates and times of day.
    pub utc_offset: i32,
    /// The names of all event types.
    pub kinds: &'a [&'a str],
}

/// A search in words, understood.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Words {
    /// Its terms in the order of the text.
    pub terms: Vec<Term>,
    /// The condition of all terms but those that set the fields below; `None` if there is none.
    pub filter: Option<String>,
    /// Only events at this time or later.
    pub since: Option<Timestamp>,
    /// Only events at this time or earlier.
    pub until: Option<Timestamp>,
    /// Only audit events about this object, and traffic of this endpoint.
    pub object: Option<String>,
    /// Only audit events of this user or bot.
    pub actor: Option<String>,
    /// The first word that has no meaning. Then the fields above cover the other words.
    pub error: Option<WordsError>,
}

/// A part of a search with one meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Offset of its first byte.
    pub start: usize,
    /// Offset behind its last byte.
    pub end: usize,
    /// The part of the search.
    pub text: String,
    /// Its facet, such as `status`.
    pub facet: &'static str,
    /// Its meaning, for people.
    pub label: String,
    /// Whether it excludes events.
    pub is_negated: bool,
}

/// A word without a meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordsError {
    /// The reason, without a full stop.
    pub message: String,
    /// Offset of the first byte of the word.
    pub start: usize,
    /// Offset behind its last byte.
    pub end: usize,
}

/// What a term means, beside its place in the text.
struct Meaning {
    facet: &'static str,
    label: String,
    effect: Effect,
}

/// What a term selects.
enum Effect {
    /// Events that match one of the alternatives of its facet.
    AnyOf(Condition),
    /// Events that match it.
    Each(Condition),
    /// Events about an object.
    Object(String),
    /// Events of a user or bot.
    Actor(String),
    /// Events of a time.
    Within(Option<Timestamp>, Option<Timestamp>),
}

/// The meaning of the words of `text`.
pub fn parse(text: &str, context: &WordsContext<'_>) -> Words {
    if let Some(words) = as_cel(text) {
        return words;
    }
    let mut read = Reading::default();
    if text.len() > WORDS_BYTES_MAX {
        let message = format!("a search has at most {WORDS_BYTES_MAX} bytes");
        read.fail(message, 0, text.len());
        return read.finish();
    }
    let tokens = tokens::split(text);
    let mut rest = &tokens[..];
    while let Some((first, behind)) = rest.split_first() {
        // `or` and `and` between words only make a search read like a sentence.
        if is_filler(first) && !read.words.terms.is_empty() && !behind.is_empty() {
            read.joins.extend(first.is("or").then_some((
                read.words.terms.len(),
                first.start,
                first.end,
            )));
            rest = behind;
            continue;
        }
        let n_taken = read.term(text, rest, context).max(1);
        rest = rest.get(n_taken..).unwrap_or_default();
    }
    read.finish()
}

/// The entry point of the fuzzer: reads arbitrary bytes as a search, and completes it.
///
/// # Panics
/// If a term is not within the text, or overlaps the one before.
pub fn parse_any(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let context = WordsContext {
        now: Timestamp::from_unix_seconds(1_800_000_000),
        utc_offset: 60,
        kinds: &["http_request_complete.v0", "api_key_created.v0"],
    };
    let words = parse(&text, &context);
    let mut end = 0;
    for term in &words.terms {
        let is_within = text.get(term.start..term.end) == Some(&*term.text);
        assert!(end <= term.start && is_within, "{text:?}: {term:?}");
        end = term.end;
    }
    let known = KnownEndpoint {
        id: "ep_1",
        host: "a.example",
        url: "https://a.example:8443",
    };
    completions(&text, &context, &[known]);
    endpoint_text(&text);
}

/// The condition of the events about an object.
pub fn object_condition(id: &str) -> String {
    condition::object(id).positive()
}

/// The condition of the events of a user or bot.
pub fn actor_condition(id: &str) -> String {
    condition::actor(id).positive()
}

/// A text that is a CEL condition, as one term.
fn as_cel(text: &str) -> Option<Words> {
    let marks = ["ev.", "==", "!=", "&&", "||"];
    let is_cel = marks.iter().any(|mark| is_outside_quotes(text, mark));
    is_cel.then(|| cel(text))
}

fn cel(text: &str) -> Words {
    let trimmed = text.trim();
    let start = text.len() - text.trim_start().len();
    Words {
        terms: vec![Term {
            start,
            end: start + trimmed.len(),
            text: trimmed.to_owned(),
            facet: "filter",
            label: "CEL condition".to_owned(),
            is_negated: false,
        }],
        filter: Some(trimmed.to_owned()),
        ..Words::default()
    }
}

/// Whether `part` is in the text outside of double quotes; `ev.` at the beginning of an operand, as it is no field in
/// `host:ev.example.com` and `/ev.php`.
fn is_outside_quotes(text: &str, part: &str) -> bool {
    let mut is_quoted = false;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let begins =
            part != "ev." || before.is_whitespace() || matches!(before, '(' | '[' | '!' | ',');
        if !is_quoted && begins && text[at..].starts_with(part) {
            return true;
        }
        is_quoted ^= c == '"';
        before = c;
    }
    false
}

fn is_filler(token: &Token) -> bool {
    token.is("or") || token.is("and")
}

/// The terms so far, with their conditions.
#[derive(Default)]
struct Reading {
    words: Words,
    /// The effect of each term.
    effects: Vec<Effect>,
    /// Where `or` stands: the number of terms before it, and its place in the text.
    joins: Vec<(usize, usize, usize)>,
}

impl Reading {
    fn fail(&mut self, message: String, start: usize, end: usize) {
        self.words.error.get_or_insert(WordsError {
            message,
            start,
            end,
        });
    }

    /// Reads the term that the tokens begin with. Returns how many tokens it has.
    fn term(&mut self, text: &str, tokens: &[Token], context: &WordsContext<'_>) -> usize {
        let Some(first) = tokens.first() else {
            return 0;
        };
        let (start, end) = (first.start, first.end);
        let is_not = first.is("not") && !first.is_negated && tokens.len() > 1;
        let operands = if is_not { &tokens[1..] } else { tokens };
        let (n_taken, meaning) = facets::meaning(operands, context);
        let n_taken = n_taken.clamp(1, operands.len());
        let last = operands.get(n_taken - 1).map_or(end, |last| last.end);
        let n_taken = n_taken + usize::from(is_not);
        let is_negated = is_not != operands.first().is_some_and(|token| token.is_negated);
        let meaning = match meaning {
            Ok(meaning) => meaning,
            Err(message) => {
                self.fail(message, start, last);
                return n_taken;
            }
        };
        let n_texts = self.words.terms.iter().filter(|term| term.facet == "text");
        if self.words.terms.len() >= TERMS_MAX {
            self.fail(
                format!("a search has at most {TERMS_MAX} words"),
                start,
                last,
            );
        } else if meaning.facet == "text" && n_texts.count() >= TEXTS_MAX {
            let message =
                format!("a search has at most {TEXTS_MAX} texts; quote words that belong together");
            self.fail(message, start, last);
        } else if is_negated && matches!(meaning.effect, Effect::Within(..)) {
            self.fail("a time cannot be negated".to_owned(), start, last);
        } else {
            self.words.terms.push(Term {
                start,
                end: last,
                text: text.get(start..last).unwrap_or_default().to_owned(),
                facet: meaning.facet,
                label: match is_negated {
                    true => format!("not {}", meaning.label),
                    false => meaning.label,
                },
                is_negated,
            });
            self.effects.push(meaning.effect);
        }
        n_taken
    }

    /// Joins the conditions of all terms.
    fn finish(mut self) -> Words {
        self.check_joins();
        let mut parts = Vec::new();
        let only = |wanted: fn(&Effect) -> bool| {
            let mut found =
                (self.effects.iter().zip(&self.words.terms)).filter(|(effect, _)| wanted(effect));
            let first = found.next();
            first.is_some_and(|(_, term)| !term.is_negated) && found.next().is_none()
        };
        let has_one_object = only(|effect| matches!(effect, Effect::Object(_)));
        let has_one_actor = only(|effect| matches!(effect, Effect::Actor(_)));
        let mut done: Vec<&'static str> = Vec::new();
        for (index, term) in self.words.terms.iter().enumerate() {
            match &self.effects[index] {
                Effect::Within(since, until) => {
                    self.words.since = self.words.since.max(*since);
                    self.words.until = earlier(self.words.until, *until);
                }
                Effect::Object(id) if has_one_object => self.words.object = Some(id.clone()),
                Effect::Actor(id) if has_one_actor => self.words.actor = Some(id.clone()),
                effect if term.is_negated => {
                    parts.extend(effect.condition().map(|one| one.negative()))
                }
                Effect::Each(condition) => parts.push(condition.positive()),
                _ if done.contains(&term.facet) => {}
                _ => {
                    done.push(term.facet);
                    parts.extend(self.alternatives(term.facet));
                }
            }
        }
        parts.dedup();
        self.words.filter = (!parts.is_empty()).then(|| parts.join(" && "));
        self.words
    }

    /// The values of a facet that are not negated, as one condition.
    fn alternatives(&self, facet: &str) -> Option<String> {
        let terms = self.words.terms.iter().zip(&self.effects);
        let of_facet = terms.filter(|(term, effect)| {
            term.facet == facet && !term.is_negated && !matches!(effect, Effect::Each(_))
        });
        let conditions = of_facet.filter_map(|(_, effect)| effect.condition());
        condition::any_of(conditions.collect())
    }

    /// Refuses `or` between terms that narrow each other.
    fn check_joins(&mut self) {
        for (n_before, start, end) in std::mem::take(&mut self.joins) {
            let terms = &self.words.terms;
            let (Some(before), Some(after)) = (terms.get(n_before - 1), terms.get(n_before)) else {
                continue;
            };
            let is_each = |index: usize| matches!(self.effects.get(index), Some(Effect::Each(_)));
            let are_alternatives = before.facet == after.facet
                && !before.is_negated
                && !after.is_negated
                && !is_each(n_before)
                && !is_each(n_before - 1);
            if !are_alternatives {
                let message =
                    "`or` joins values of one facet; other alternatives need a CEL condition";
                self.fail(message.to_owned(), start, end);
            }
        }
    }
}

impl Effect {
    fn condition(&self) -> Option<Condition> {
        match self {
            Self::AnyOf(condition) | Self::Each(condition) => Some(condition.clone()),
            Self::Object(id) => Some(condition::object(id)),
            Self::Actor(id) => Some(condition::actor(id)),
            Self::Within(..) => None,
        }
    }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
