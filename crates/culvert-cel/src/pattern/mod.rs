//! Regular expressions in RE2's dialect, on the linear-time engine of the `regex` crate.
//!
//! The dialects differ. In RE2's, `\d \w \s \b` are ASCII, a class has no set operations, `\Q…\E` quotes, and a brace
//! that is not a repetition is a literal. `\C`, the `x` flag, stacked repetitions and repetitions above 1,000 are
//! errors. This module parses a pattern as RE2 does and rewrites it into an equivalent pattern for the engine.
//!
//! Groups do not capture: a search only returns whether the pattern matches.

mod budget;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use regex::bytes::{Regex, RegexBuilder};

pub use self::budget::{NotBuilt, PatternBudget};
use crate::limits::Limits;

/// A compiled regular expression.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    weight: u64,
}

/// Why a text is not a valid pattern. Displays as a sentence that ends with the position in characters, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    message: String,
    /// `None` if the error concerns the whole pattern.
    character: Option<usize>,
    is_too_large: bool,
}

impl PatternError {
    /// Whether the pattern exceeds a limit of its length, nesting, repetition or compiled size. It may be valid.
    pub(crate) fn is_too_large(&self) -> bool {
        self.is_too_large
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.character {
            Some(character) => write!(f, " at character {character} of the pattern"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for PatternError {}

impl Pattern {
    /// Compiles a literal pattern of an expression.
    ///
    /// # Errors
    /// If it is not in RE2's dialect, or exceeds the limits or the rest of the budget.
    pub fn new(
        pattern: &str,
        limits: &Limits,
        budget: &PatternBudget,
    ) -> Result<Self, PatternError> {
        Self::sized(pattern, limits, limits.pattern_program_bytes_max, budget)
    }

    /// Compiles a pattern that was computed at run time. Its compiled size is limited to a quarter.
    pub(crate) fn computed(pattern: &str, limits: &Limits) -> Result<Self, PatternError> {
        // The evaluation pays for it in units.
        let budget = PatternBudget::unlimited();
        Self::sized(
            pattern,
            limits,
            limits.pattern_program_bytes_max / 4,
            &budget,
        )
    }

    /// The number of classes of many characters in a pattern; 0 if it is invalid.
    pub(crate) fn n_large_classes(pattern: &str) -> u64 {
        let translated = Translator::new(pattern).translate();
        translated.map_or(0, |(_, classes)| u64::try_from(classes).unwrap_or(u64::MAX))
    }

    fn sized(
        pattern: &str,
        limits: &Limits,
        program_bytes_max: usize,
        budget: &PatternBudget,
    ) -> Result<Self, PatternError> {
        if pattern.len() > limits.pattern_bytes_max {
            let message = format!(
                "the pattern is longer than {} bytes",
                limits.pattern_bytes_max
            );
            return Err(PatternError {
                message,
                character: None,
                is_too_large: true,
            });
        }
        let (translated, n_classes) = Translator::new(pattern).translate()?;
        // A sixteenth of the size for each: 16 in a literal, 4 in a computed pattern.
        let classes_max = program_bytes_max >> 16;
        if n_classes > classes_max {
            return Err(PatternError {
                message: format!("the pattern has more than {classes_max} large classes"),
                character: None,
                is_too_large: true,
            });
        }
        let built = budget.build(program_bytes_max, n_classes, |limit| {
            let mut builder = RegexBuilder::new(&translated);
            builder
                .size_limit(limit)
                .dfa_size_limit(DFA_BYTES_MAX)
                .nest_limit(NESTING_MAX);
            builder.build()
        });
        let too_large = |message| PatternError {
            message,
            character: None,
            is_too_large: true,
        };
        match built {
            Ok((regex, limit)) => {
                let weight = weight(program_bytes_max / limit.max(1));
                Ok(Self { regex, weight })
            }
            Err(NotBuilt::TooLarge) => Err(too_large(format!(
                "the compiled pattern is larger than {program_bytes_max} bytes"
            ))),
            Err(NotBuilt::BudgetSpent(bytes_max)) => Err(too_large(format!(
                "compiled, the patterns are larger than {bytes_max} bytes together"
            ))),
            Err(NotBuilt::Invalid(error)) => Err(PatternError {
                message: reason(&error),
                character: None,
                is_too_large: false,
            }),
        }
    }

    /// The cost of a search relative to reading the text, at most.
    #[inline]
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    /// Whether the pattern matches anywhere in `text`.
    #[inline]
    pub(crate) fn is_found_in(&self, text: &str) -> bool {
        self.regex.is_match(text.as_bytes())
    }
}

/// The last line of the engine's message.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let line = text.lines().last().unwrap_or_default();
    format!(
        "invalid regular expression: {}",
        line.strip_prefix("error: ").unwrap_or(line)
    )
}

/// Parses RE2 syntax and writes syntax that the engine interprets identically.
struct Translator<'p> {
    pattern: &'p str,
    at: usize,
    out: String,
    groups: Vec<Group>,
    names: Vec<&'p str>,
    /// The element that a repetition would apply to.
    last: Last,
    /// Classes of many characters so far, whatever repeats them.
    n_classes: usize,
}

/// An open group: its position, and the maximum number of repetitions in it.
struct Group {
    at: usize,
    weight: u32,
}

#[derive(Clone, Copy)]
enum Last {
    Nothing,
    /// Nested repetitions are multiplied.
    Atom {
        weight: u32,
    },
    Repetition,
}

impl<'p> Translator<'p> {
    fn new(pattern: &'p str) -> Self {
        let outermost = Group { at: 0, weight: 1 };
        Self {
            pattern,
            at: 0,
            out: String::with_capacity(pattern.len() * 2),
            groups: vec![outermost],
            names: Vec::new(),
            last: Last::Nothing,
            n_classes: 0,
        }
    }

    /// The pattern for the engine, and its number of large classes.
    fn translate(mut self) -> Result<(String, usize), PatternError> {
        while let Some(c) = self.peek() {
            self.piece(c)?;
        }
        match self.groups.as_slice() {
            [_] => Ok((self.out, self.n_classes)),
            [.., open] => self.error(open.at, "the bracket `(` is not closed"),
            [] => self.error(self.at, "unexpected `)`"),
        }
    }

    fn piece(&mut self, c: char) -> Result<(), PatternError> {
        let start = self.at;
        match c {
            '(' => return self.open(),
            ')' => {
                self.bump();
                let (Some(closed), Some(outer)) = (self.groups.pop(), self.groups.last_mut())
                else {
                    return self.error(start, "unexpected `)`");
                };
                outer.weight = outer.weight.max(closed.weight);
                self.last = Last::Atom {
                    weight: closed.weight,
                };
                self.out.push(')');
            }
            '|' => {
                self.bump();
                self.last = Last::Nothing;
                self.out.push('|');
            }
            '*' | '+' | '?' => {
                self.bump();
                self.out.push(c);
                return self.repeated(start, 1);
            }
            '{' => match repetition(self.remaining()) {
                Some(found) => {
                    self.at += found.length;
                    let (Ok(low), Ok(high)) = (found.low, found.high) else {
                        return self.error(start, REPEATED_TOO_OFTEN);
                    };
                    if low > REPETITIONS_MAX || high.is_some_and(|high| high > REPETITIONS_MAX) {
                        return self.error(start, REPEATED_TOO_OFTEN);
                    }
                    if high.is_some_and(|high| high < low) {
                        return self.error(start, "invalid repetition");
                    }
                    match high {
                        Some(high) => self.out.push_str(&format!("{{{low},{high}}}")),
                        None => self.out.push_str(&format!("{{{low},}}")),
                    }
                    return self.repeated(start, high.unwrap_or(low));
                }
                None => {
                    self.bump();
                    self.literal('{');
                }
            },
            '[' => self.class()?,
            '\\' => self.escape()?,
            '.' | '^' | '$' => {
                self.bump();
                self.out.push(c);
                self.last = Last::Atom { weight: 1 };
            }
            c => {
                self.bump();
                self.literal(c);
            }
        }
        Ok(())
    }

    /// Handles the end of a repetition: an optional `?` for lazy, and whether a repetition is allowed here.
    fn repeated(&mut self, start: usize, times: u32) -> Result<(), PatternError> {
        let inner = match self.last {
            Last::Nothing => return self.error(start, "nothing to repeat"),
            Last::Repetition => return self.error(start, "repetitions cannot be stacked"),
            Last::Atom { weight } => weight,
        };
        if self.peek() == Some('?') {
            self.bump();
            self.out.push('?');
        }
        let weight = inner.saturating_mul(times.max(1));
        if weight > REPETITIONS_MAX {
            return self.error(start, REPEATED_TOO_OFTEN);
        }
        if let Some(group) = self.groups.last_mut() {
            group.weight = group.weight.max(weight);
        }
        self.last = Last::Repetition;
        Ok(())
    }

    fn open(&mut self) -> Result<(), PatternError> {
        let start = self.at;
        self.bump();
        self.last = Last::Nothing;
        if self.peek() != Some('?') {
            self.out.push_str("(?:");
            return self.enter(start);
        }
        self.bump();
        if let Some(before) = ["P<", "<"]
            .iter()
            .find(|mark| self.remaining().starts_with(**mark))
        {
            let is_look_behind =
                self.remaining().starts_with("<=") || self.remaining().starts_with("<!");
            if !is_look_behind {
                self.at += before.len();
                return self.named(start);
            }
        }
        if self.remaining().starts_with(['=', '!', '<']) {
            return self.error(start, "look-around is not supported");
        }
        let rest = self.remaining();
        let end = rest.find([':', ')']).unwrap_or(rest.len());
        let flags = rest.get(..end).unwrap_or_default();
        let (set, cleared) = flags.split_once('-').unwrap_or((flags, "-"));
        let are_known = |flags: &str| flags.chars().all(|flag| "imsU".contains(flag));
        let is_known =
            are_known(set) && (cleared == "-" || (!cleared.is_empty() && are_known(cleared)));
        let terminator = rest.get(end..).and_then(|rest| rest.chars().next());
        let (true, Some(terminator)) = (is_known, terminator) else {
            return self.error(start, "unknown group or flag");
        };
        self.at += end + terminator.len_utf8();
        if terminator == ')' {
            if flags.is_empty() {
                return self.error(start, "unknown group or flag");
            }
            self.out
                .push_str(&format!("(?{})", without_repeats(set, cleared)));
            return Ok(());
        }
        self.out
            .push_str(&format!("(?{}:", without_repeats(set, cleared)));
        self.enter(start)
    }

    fn named(&mut self, start: usize) -> Result<(), PatternError> {
        let rest = self.remaining();
        let Some((name, _)) = rest.split_once('>') else {
            return self.error(start, "the name of the group is not closed");
        };
        let is_name =
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name || self.names.contains(&name) {
            return self.error(start, "the name of the group is invalid or taken");
        }
        self.names.push(name);
        self.at += name.len() + 1;
        self.out.push_str("(?:");
        self.enter(start)
    }

    fn enter(&mut self, at: usize) -> Result<(), PatternError> {
        if self.groups.len() >= NESTING_MAX as usize / 2 {
            return self.error(at, NESTED_TOO_DEEP);
        }
        self.groups.push(Group { at, weight: 1 });
        Ok(())
    }

    /// Parses an escape outside of a class.
    fn escape(&mut self) -> Result<(), PatternError> {
        let start = self.at;
        if self.remaining().starts_with("\\Q") {
            self.at += 2;
            let rest = self.remaining();
            let quoted = rest.split_once("\\E").map_or(rest, |(quoted, _)| quoted);
            let end = if quoted.len() < rest.len() { 2 } else { 0 };
            quoted.chars().for_each(|c| self.literal(c));
            self.at += quoted.len() + end;
            return Ok(());
        }
        // RE2 ignores `\E` without `\Q`.
        if self.remaining().starts_with("\\E") {
            self.at += 2;
            return Ok(());
        }
        let assertion = [
            ("\\A", "\\A"),
            ("\\z", "\\z"),
            ("\\b", "(?-u:\\b)"),
            ("\\B", "(?-u:\\B)"),
        ];
        if let Some((read, written)) = assertion
            .iter()
            .find(|(read, _)| self.remaining().starts_with(read))
        {
            self.at += read.len();
            self.out.push_str(written);
        } else if let Some(class) = self.class_escape()? {
            self.out.push_str(&class);
        } else {
            let c = self.character_escape(start)?;
            self.literal(c);
        }
        self.last = Last::Atom { weight: 1 };
        Ok(())
    }

    /// Parses `\d \D \s \S \w \W \pX \p{X}` into the text of a class.
    fn class_escape(&mut self) -> Result<Option<String>, PatternError> {
        let start = self.at;
        let mut after = self.remaining().chars().skip(1);
        let class = match after.next() {
            Some('d') => "[0-9]",
            Some('D') => "[^0-9]",
            Some('s') => "[\\t\\n\\x0C\\r\\x20]",
            Some('S') => "[^\\t\\n\\x0C\\r\\x20]",
            Some('w') => "[0-9A-Za-z_]",
            Some('W') => "[^0-9A-Za-z_]",
            Some(p @ ('p' | 'P')) => {
                self.n_classes += 1;
                self.at += 2;
                let name = match after.next() {
                    Some('{') => {
                        let rest = self.remaining();
                        let Some((name, _)) = rest.get(1..).and_then(|rest| rest.split_once('}'))
                        else {
                            return self.error(start, "invalid character class");
                        };
                        self.at += name.len() + 2;
                        name
                    }
                    Some(_) => {
                        let rest = self.remaining();
                        self.bump();
                        rest.get(..rest.len() - self.remaining().len())
                            .unwrap_or_default()
                    }
                    None => "",
                };
                let (is_negated, name) = match name.strip_prefix('^') {
                    Some(name) => (p == 'p', name),
                    None => (p == 'P', name),
                };
                let is_name = name.starts_with(|c: char| c.is_ascii_uppercase())
                    && name.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
                if !is_name {
                    return self.error(start, "invalid character class");
                }
                let p = if is_negated { 'P' } else { 'p' };
                return Ok(Some(format!("\\{p}{{{name}}}")));
            }
            _ => return Ok(None),
        };
        self.at += 2;
        Ok(Some(class.to_owned()))
    }

    /// The character that an escape denotes, inside or outside of a class.
    fn character_escape(&mut self, start: usize) -> Result<char, PatternError> {
        self.bump();
        let Some(c) = self.bump() else {
            return self.error(start, "the pattern ends in a backslash");
        };
        Ok(match c {
            'a' => '\x07',
            'f' => '\x0c',
            't' => '\t',
            'n' => '\n',
            'r' => '\r',
            'v' => '\x0b',
            '0'..='7' => {
                let rest = self.remaining();
                let length = rest
                    .bytes()
                    .take(2)
                    .take_while(|b| (b'0'..=b'7').contains(b))
                    .count();
                if c != '0' && length == 0 {
                    return self.error(start, "back-references are not supported");
                }
                self.at += length;
                let digits = rest.get(..length).unwrap_or_default();
                let number = digits
                    .chars()
                    .fold(c.to_digit(8), |n, d| Some(n? * 8 + d.to_digit(8)?));
                match number.and_then(char::from_u32) {
                    Some(c) => c,
                    None => return self.error(start, "invalid escape"),
                }
            }
            'x' => {
                let rest = self.remaining();
                let (digits, length) = match rest.strip_prefix('{') {
                    Some(inner) => {
                        let digits = inner.split_once('}').map_or("", |(digits, _)| digits);
                        (digits, digits.len() + 2)
                    }
                    None => (rest.get(..2).unwrap_or_default(), 2),
                };
                let is_hex = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
                let number = if is_hex {
                    u32::from_str_radix(digits, 16).ok()
                } else {
                    None
                };
                match number.and_then(char::from_u32) {
                    Some(c) => {
                        self.at += length;
                        c
                    }
                    None => return self.error(start, "invalid escape"),
                }
            }
            '8' | '9' => return self.error(start, "back-references are not supported"),
            'k' | 'g' => return self.error(start, "back-references are not supported"),
            'C' => return self.error(start, "`\\C` is not supported"),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => c,
            _ => return self.error(start, "invalid escape"),
        })
    }

    fn class(&mut self) -> Result<(), PatternError> {
        let start = self.at;
        self.bump();
        self.out.push('[');
        if self.peek() == Some('^') {
            self.bump();
            self.out.push('^');
        }
        let mut is_first = true;
        loop {
            match self.peek() {
                None => return self.error(start, "the bracket `[` is not closed"),
                Some(']') if !is_first => {
                    self.bump();
                    break;
                }
                Some(_) => self.class_item(start)?,
            }
            is_first = false;
        }
        self.out.push(']');
        self.last = Last::Atom { weight: 1 };
        Ok(())
    }

    fn class_item(&mut self, class_start: usize) -> Result<(), PatternError> {
        let start = self.at;
        if self.remaining().starts_with("[:")
            && let Some(end) = self.remaining().find(":]")
        {
            let whole = self.remaining().get(..end + 2).unwrap_or_default();
            let name = whole.trim_matches(['[', ':', ']']);
            if !ASCII_CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
                return self.error(start, "invalid character class");
            }
            self.out.push_str(whole);
            self.at += whole.len();
            return Ok(());
        }
        if self.peek() == Some('\\')
            && let Some(class) = self.class_escape()?
        {
            self.out.push_str(&class);
            return Ok(());
        }
        let low = self.class_character(class_start)?;
        let is_range = self.remaining().starts_with('-')
            && !self.remaining().starts_with("-]")
            && self.remaining().len() > 1;
        if !is_range {
            self.write_code(low);
            return Ok(());
        }
        self.bump();
        let high = self.class_character(class_start)?;
        if high < low {
            return self.error(start, "invalid range in a character class");
        }
        self.n_classes += usize::from(u32::from(high) - u32::from(low) > LARGE_CLASS);
        self.write_code(low);
        self.out.push('-');
        self.write_code(high);
        Ok(())
    }

    fn class_character(&mut self, class_start: usize) -> Result<char, PatternError> {
        match self.peek() {
            Some('\\') => self.character_escape(self.at),
            Some(c) => {
                self.bump();
                Ok(c)
            }
            None => self.error(class_start, "the bracket `[` is not closed"),
        }
    }

    fn literal(&mut self, c: char) {
        if regex_syntax::is_meta_character(c) {
            self.out.push('\\');
        }
        self.out.push(c);
        self.last = Last::Atom { weight: 1 };
    }

    fn write_code(&mut self, c: char) {
        self.out.push_str(&format!("\\x{{{:X}}}", u32::from(c)));
    }

    fn remaining(&self) -> &'p str {
        self.pattern.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.remaining().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn error<T>(&self, at: usize, message: &str) -> Result<T, PatternError> {
        let character = self.pattern.get(..at).unwrap_or_default().chars().count() + 1;
        Err(PatternError {
            message: message.to_owned(),
            character: Some(character),
            is_too_large: matches!(message, REPEATED_TOO_OFTEN | NESTED_TOO_DEEP),
        })
    }
}

/// `{n}`, `{n,}` or `{n,m}` at the start of a text. A number may be too large to represent.
struct Repetition {
    length: usize,
    low: Result<u32, std::num::ParseIntError>,
    high: Result<Option<u32>, std::num::ParseIntError>,
}

fn repetition(text: &str) -> Option<Repetition> {
    let (inside, _) = text.strip_prefix('{')?.split_once('}')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (low, high) = match inside.split_once(',') {
        None => (inside, Some(inside)),
        Some((low, "")) => (low, None),
        Some((low, high)) => (low, Some(high)),
    };
    (is_number(low) && high.is_none_or(is_number)).then(|| Repetition {
        length: inside.len() + 2,
        low: low.parse(),
        high: high.map(str::parse).transpose(),
    })
}

/// Removes repeated flags, which RE2 accepts and the engine does not. The last occurrence counts.
fn without_repeats(set: &str, cleared: &str) -> String {
    let mut flags = String::new();
    for flag in ['i', 'm', 's', 'U'] {
        if set.contains(flag) && !cleared.contains(flag) {
            flags.push(flag);
        }
    }
    let mut off = String::new();
    for flag in ['i', 'm', 's', 'U'] {
        if cleared.contains(flag) {
            off.push(flag);
        }
    }
    if !off.is_empty() {
        flags.push('-');
        flags.push_str(&off);
    }
    flags
}

/// The cost of a search, by the share of the largest compiled size that a pattern fits in.
fn weight(share: usize) -> u64 {
    match share {
        64.. => 1,
        16.. => 4,
        4.. => 16,
        _ => 64,
    }
}

/// Characters of a range from which on it counts as a large class.
const LARGE_CLASS: u32 = 1_000;
const REPEATED_TOO_OFTEN: &str = "repeated more than 1000 times";
const NESTED_TOO_DEEP: &str = "the pattern is nested too deep";
const REPETITIONS_MAX: u32 = 1_000;
const NESTING_MAX: u32 = 128;
/// Memory of the lazy automaton, per searching thread.
const DFA_BYTES_MAX: usize = 1 << 20;
const ASCII_CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];

/// Computed patterns, most recently used first. All evaluations of a program share the cache.
#[derive(Debug, Default)]
pub(crate) struct PatternCache {
    entries: Mutex<Vec<(Box<str>, Pattern)>>,
}

impl PatternCache {
    /// The compiled pattern of this text, if cached.
    pub(crate) fn get(&self, text: &str) -> Option<Pattern> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let index = entries.iter().position(|(known, _)| **known == *text)?;
        entries.get_mut(..=index)?.rotate_right(1);
        entries.first().map(|(_, pattern)| pattern.clone())
    }

    /// Inserts a pattern and evicts the least recently used one.
    pub(crate) fn put(&self, text: &str, pattern: Pattern) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.truncate(CACHED_PATTERNS_MAX - 1);
        entries.insert(0, (text.into(), pattern));
    }
}

const CACHED_PATTERNS_MAX: usize = 8;

#[cfg(test)]
mod tests;
