//! Text on a terminal: without control characters, and cut to a number of columns.

use std::time::Duration;

use unicode_width::UnicodeWidthChar;

/// Replaces every character that a terminal could obey, or that could reorder or hide text.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if is_unsafe(c) { '\u{fffd}' } else { c })
        .collect()
}

fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Bidirectional controls, invisible characters, separators of lines, and tags.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// The columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Cuts a text to at most `columns`. A cut text ends with `…`.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (mut fitted, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used + 1 > columns {
            break;
        }
        fitted.push(c);
    }
    if columns > 0 {
        fitted.push('…');
    }
    fitted
}

/// Cuts a text to `columns`, or fills it with spaces.
pub(crate) fn pad(text: &str, columns: usize) -> String {
    let mut padded = fit(text, columns);
    let missing = columns.saturating_sub(width(&padded));
    padded.extend(std::iter::repeat_n(' ', missing));
    padded
}

/// Breaks a text into at most `lines` lines of `columns`, between words. The last line is cut.
pub(crate) fn wrap(text: &str, columns: usize, lines: usize) -> Vec<String> {
    let mut wrapped: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let is_last = wrapped.len() == lines;
        match wrapped.last_mut() {
            Some(line) if is_last || width(line) + 1 + width(word) <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => wrapped.push(word.to_owned()),
        }
    }
    wrapped.iter().map(|line| fit(line, columns)).collect()
}

/// A duration with two or three digits, such as `21 ms`.
pub(crate) fn duration(took: Duration) -> String {
    let millis = took.as_secs_f64() * 1_000.0;
    match millis {
        _ if millis < 0.05 => "0 ms".into(),
        _ if millis < 9.95 => format!("{millis:.1} ms"),
        _ if millis < 1_000.0 => format!("{millis:.0} ms"),
        _ if millis < 60_000.0 => format!("{:.1} s", millis / 1_000.0),
        _ if millis < 3_600_000.0 => {
            format!("{} m {} s", took.as_secs() / 60, took.as_secs() % 60)
        }
        _ => format!("{} h {} m", took.as_secs() / 3600, took.as_secs() / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_removed() {
        for hostile in [
            "\u{1b}[2J\u{1b}]0;title\u{7}",
            "a\rb\nc\td\u{8}",
            "\u{9b}31m\u{90}q\u{9c}",
            "\u{7f}\0",
            "\u{202e}txt.exe\u{2066}\u{200b}\u{feff}\u{e0041}",
        ] {
            let cleaned = clean(hostile);
            assert!(!cleaned.chars().any(is_unsafe), "{cleaned:?}");
            assert_eq!(cleaned.chars().count(), hostile.chars().count());
        }
        assert_eq!(clean("/größe/猫?q=é"), "/größe/猫?q=é");
    }

    #[test]
    fn texts_are_truncated_to_columns() {
        assert_eq!(fit("abcdef", 6), "abcdef");
        assert_eq!(fit("abcdefg", 6), "abcde…");
        assert_eq!(fit("猫猫猫", 5), "猫猫…");
        assert_eq!(fit("猫猫猫", 4), "猫…");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(pad("猫", 4), "猫  ");
        assert_eq!(wrap("one two three four", 8, 2), ["one two", "three f…"]);
        assert_eq!(wrap("", 8, 2), Vec::<String>::new());
    }

    #[test]
    fn durations_have_few_digits() {
        for (micros, shown) in [
            (0, "0 ms"),
            (340, "0.3 ms"),
            (21_400, "21 ms"),
            (1_240_000, "1.2 s"),
            (123_000_000, "2 m 3 s"),
            (7_380_000_000, "2 h 3 m"),
        ] {
            assert_eq!(duration(Duration::from_micros(micros)), shown);
        }
    }
}
