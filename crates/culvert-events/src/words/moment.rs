//! Times in a search: `last 24h`, `today`, `since 14:00`, `before 2026-11-28`, `from yesterday to 2h ago`.
//!
//! Dates and times of day are local, by the offset from UTC in the context. A time of day is the last one that is past.

use std::time::Duration;

use culvert_base::Timestamp;

use super::tokens::Token;
use super::{Effect, Meaning, WordsContext};

/// A time or a day: its first and its last millisecond.
#[derive(Clone, Copy)]
struct Moment {
    first: Timestamp,
    last: Timestamp,
}

type Found = (usize, Result<Meaning, String>);

const EXAMPLES: &str = "such as `14:00`, `2h ago`, `yesterday` or `2026-11-28 14:00`";
const DAY: i64 = 86_400;

/// The time that the tokens begin with, and how many tokens it has.
pub(super) fn term(tokens: &[Token], context: &WordsContext<'_>) -> Option<Found> {
    let first = tokens.first()?;
    let plain = tokens
        .iter()
        .take_while(|token| !token.is_quoted && token.facet.is_none());
    let words: Vec<String> = plain.map(|token| token.text.to_ascii_lowercase()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let name = words.first().copied()?;
    if first.is_negated {
        return None;
    }
    match name {
        "since" | "before" => Some(after_word(name, &words[1..], context)),
        // These are also words of texts.
        "after" | "until" | "from" | "to" | "last" | "past" | "on" => {
            let (n_taken, found) = after_word(name, &words[1..], context);
            found.is_ok().then_some((n_taken, found))
        }
        "today" | "yesterday" => day(&words, context),
        _ if is_date(name) => day(&words, context),
        _ => None,
    }
}

/// As [`term`], for `since:14:00` and the like.
pub(super) fn named(name: &str, tokens: &[Token], context: &WordsContext<'_>) -> Found {
    let mut words: Vec<String> = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        if index > 0 && (token.is_quoted || token.facet.is_some()) {
            break;
        }
        words.push(token.text.to_ascii_lowercase());
    }
    let is_empty = words.first().is_some_and(String::is_empty);
    let skipped = usize::from(is_empty);
    let words: Vec<&str> = words.iter().skip(skipped).map(String::as_str).collect();
    let (n_taken, found) = after_word(name, &words, context);
    // The name and its first word are one token, if they are not apart.
    ((n_taken + skipped).saturating_sub(1).max(1), found)
}

/// A bare date or day.
fn day(words: &[&str], context: &WordsContext<'_>) -> Option<Found> {
    let (n_taken, moment) = moment(words, context)?;
    let label = words.get(..n_taken)?.join(" ");
    Some((
        n_taken,
        Ok(within(label, Some(moment.first), Some(moment.last))),
    ))
}

/// What follows `name`; the count includes the name.
fn after_word(name: &str, words: &[&str], context: &WordsContext<'_>) -> Found {
    let label = |n_words: usize| {
        format!(
            "{name} {}",
            words.get(..n_words).unwrap_or_default().join(" ")
        )
    };
    if matches!(name, "last" | "past") {
        return match span(words) {
            Some((n_words, span)) => {
                let since = context.now.minus(span);
                (1 + n_words, Ok(within(label(n_words), Some(since), None)))
            }
            None => {
                let message = format!("`{name}` needs a duration, such as `24h` or `7 days`");
                (1, Err(message))
            }
        };
    }
    let Some((n_words, moment)) = moment(words, context) else {
        return (1, Err(format!("`{name}` needs a time, {EXAMPLES}")));
    };
    let (since, until) = match name {
        "before" => (None, Some(a_moment_before(moment.first))),
        "until" | "to" => (None, Some(moment.last)),
        "after" if moment.first != moment.last => (Some(moment.last), None),
        "on" => (Some(moment.first), Some(moment.last)),
        _ => (Some(moment.first), None),
    };
    (1 + n_words, Ok(within(label(n_words), since, until)))
}

fn within(label: String, since: Option<Timestamp>, until: Option<Timestamp>) -> Meaning {
    Meaning {
        facet: "time",
        label,
        effect: Effect::Within(since, until),
    }
}

fn a_moment_before(at: Timestamp) -> Timestamp {
    at.minus(Duration::from_millis(1))
}

/// The time that the words begin with, and how many words it has.
fn moment(words: &[&str], context: &WordsContext<'_>) -> Option<(usize, Moment)> {
    let (first, rest) = words.split_first()?;
    let exact = |at: Timestamp| Moment {
        first: at,
        last: at,
    };
    let now = context.now;
    if *first == "now" {
        return Some((1, exact(now)));
    }
    // RFC 3339, with its offset.
    if let Some(at) = Timestamp::parse(&first.to_ascii_uppercase()) {
        return Some((1, exact(at)));
    }
    if let Some((n_words, span)) = span(words) {
        let has_ago = words.get(n_words) == Some(&"ago");
        return Some((n_words + usize::from(has_ago), exact(now.minus(span))));
    }
    let today = local_day(now, context);
    if let Some(clock) = clock(first) {
        let at = local(today, clock, context);
        let at = match at > now {
            true => at.minus(Duration::from_secs(86_400)),
            false => at,
        };
        return Some((1, exact(at)));
    }
    let date = match *first {
        "today" => Some((today, None)),
        "yesterday" => Some((today - 1, None)),
        other => date_of(other).or_else(|| {
            let (date, of_day) = other.split_once('t')?;
            Some((date_of(date)?.0, Some(clock(of_day)?)))
        }),
    };
    let (date, of_day) = date?;
    let (n_words, of_day) = match of_day {
        Some(of_day) => (1, Some(of_day)),
        None => match rest.first().and_then(|word| clock(word)) {
            Some(of_day) => (2, Some(of_day)),
            None => (1, None),
        },
    };
    let moment = match of_day {
        Some(of_day) => exact(local(date, of_day, context)),
        None => Moment {
            first: local(date, 0, context),
            last: a_moment_before(local(date + 1, 0, context)),
        },
    };
    Some((n_words, moment))
}

/// The local day of a time, in days since 1970.
fn local_day(at: Timestamp, context: &WordsContext<'_>) -> i64 {
    let offset = i64::from(context.utc_offset) * 60;
    at.unix_seconds().saturating_add(offset).div_euclid(DAY)
}

/// A second of a local day.
fn local(day: i64, second: i64, context: &WordsContext<'_>) -> Timestamp {
    let offset = i64::from(context.utc_offset) * 60;
    Timestamp::from_unix_seconds(day.saturating_mul(DAY).saturating_add(second - offset))
}

fn is_date(word: &str) -> bool {
    let date = word.split('t').next().unwrap_or_default();
    date_of(date).is_some()
}

/// A date as `2026-11-28`, in days since 1970.
fn date_of(word: &str) -> Option<(i64, Option<i64>)> {
    let is_shape = word.len() == 10
        && word.bytes().enumerate().all(|(index, byte)| match index {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    let at = is_shape.then(|| Timestamp::parse(&format!("{word}T00:00:00Z")))??;
    Some((at.unix_seconds().div_euclid(DAY), None))
}

/// A time of day as `14:00` or `14:00:05`, in seconds.
fn clock(word: &str) -> Option<i64> {
    let mut parts = word.split(':');
    let mut part = |max: i64| {
        let text = parts.next()?;
        let is_number =
            (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        let number: i64 = is_number.then(|| text.parse().ok())??;
        (number <= max).then_some(number)
    };
    let (hour, minute) = (part(23)?, part(59)?);
    let second = match word.matches(':').count() {
        1 => 0,
        2 => part(59)?,
        _ => return None,
    };
    Some(hour * 3600 + minute * 60 + second)
}

/// A duration such as `24h`, `7 days` or `hour`, and how many words it has.
fn span(words: &[&str]) -> Option<(usize, Duration)> {
    let first = words.first()?;
    let at = first
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(first.len());
    let (number, unit) = first.split_at(at);
    let (n_words, number, unit) = match (number.is_empty(), unit.is_empty()) {
        (true, _) => (1, 1, *first),
        (false, false) => (1, number.parse::<u64>().ok()?, unit),
        (false, true) => (2, number.parse::<u64>().ok()?, *words.get(1)?),
    };
    let seconds = match unit {
        "s" | "sec" | "second" | "seconds" => 1,
        "m" | "min" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 7 * 86_400,
        "month" | "months" => 30 * 86_400,
        "year" | "years" => 365 * 86_400,
        _ => return None,
    };
    let is_bare_letter = number == 1 && n_words == 1 && first.len() == 1;
    let seconds = number.checked_mul(seconds)?;
    // A hundred years; longer ones are mistakes.
    (!is_bare_letter && seconds <= 100 * 365 * 86_400)
        .then(|| (n_words, Duration::from_secs(seconds)))
}
