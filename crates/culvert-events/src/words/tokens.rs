//! Splits a search into words. Double quotes keep spaces together, also behind `facet:`.

/// A word of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// Offset of its first byte, a `-` that negates it included.
    pub(super) start: usize,
    /// Offset behind its last byte.
    pub(super) end: usize,
    /// The facet before a colon, in lower case.
    pub(super) facet: Option<String>,
    /// The rest, without quotes.
    pub(super) text: String,
    /// Whether it has quotes, so that it is a plain text.
    pub(super) is_quoted: bool,
    /// Whether a `-` precedes it.
    pub(super) is_negated: bool,
}

impl Token {
    /// Whether it is this word, in any letter case.
    pub(super) fn is(&self, word: &str) -> bool {
        !self.is_quoted && self.facet.is_none() && self.text.eq_ignore_ascii_case(word)
    }
}

/// The words of a search.
pub(super) fn split(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.char_indices().peekable();
    while let Some((start, c)) = rest.next_if(|_| true) {
        if c.is_whitespace() {
            continue;
        }
        let (mut word, mut is_quoted, mut is_open) = (String::new(), false, false);
        let mut end = start;
        let mut next = Some((start, c));
        while let Some((at, c)) = next {
            end = at + c.len_utf8();
            match c {
                '"' => {
                    is_open = !is_open;
                    is_quoted = true;
                    // The facet ends before the quotes.
                    if is_open && !word.ends_with(QUOTED) {
                        word.push(QUOTED);
                    }
                }
                _ => word.push(c),
            }
            next = rest.next_if(|(_, c)| is_open || !c.is_whitespace());
        }
        tokens.push(token(&word, start, end, is_quoted));
    }
    tokens
}

/// Marks in a word where quotes opened. It is no character of a text.
const QUOTED: char = '\u{fdd0}';

fn token(word: &str, start: usize, end: usize, is_quoted: bool) -> Token {
    let bare = word.strip_prefix('-').filter(|bare| !bare.is_empty());
    let is_negated = bare.is_some();
    let word = bare.unwrap_or(word);
    let (before, behind) = word.split_once(QUOTED).unwrap_or((word, ""));
    let split = before.split_once(':').filter(|(facet, _)| is_facet(facet));
    let (facet, value) = match split {
        Some((facet, value)) => (Some(facet.to_ascii_lowercase()), value),
        None => (None, before),
    };
    let mut text = value.to_owned();
    text.extend(behind.chars().filter(|c| *c != QUOTED));
    // The scheme of a URL is no facet.
    let is_url = matches!(facet.as_deref(), Some("http" | "https")) && text.starts_with("//");
    if is_url && let Some(scheme) = facet {
        return Token {
            start,
            end,
            facet: Some("url".to_owned()),
            text: format!("{scheme}:{text}"),
            is_quoted,
            is_negated,
        };
    }
    Token {
        start,
        end,
        facet,
        text,
        is_quoted,
        is_negated,
    }
}

/// Whether the text before a colon can name a facet. Addresses, times and hosts cannot.
fn is_facet(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let is_address = text.bytes().all(|byte| byte.is_ascii_hexdigit()) && text.len() <= 4;
    let is_facet = !is_address || super::facets::is_known(text);
    is_facet && !text.is_empty() && text.bytes().all(is_name)
}
