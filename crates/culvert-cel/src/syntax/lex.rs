//! The lexer. It resolves escapes in literals.

use crate::syntax::ast::Literal;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// An identifier, a reserved word or `in`.
    Name(Box<str>),
    /// A name in back-quotes, which can only be a field.
    Quoted(Box<str>),
    Literal(Literal),
    /// The absolute value of an integer literal without suffix: up to 2^63, so that the parser can negate it.
    Integer(u64),
    /// An operator or a bracket.
    Punctuation(&'static str),
    End,
}

/// A token and its byte offset.
#[derive(Clone, Debug)]
pub(crate) struct Spanned {
    pub(crate) token: Token,
    pub(crate) at: usize,
}

/// A lexical error: its byte offset and a message.
#[derive(Debug)]
pub(crate) struct LexError {
    pub(crate) at: usize,
    pub(crate) message: String,
}

/// Produces the tokens of a text.
#[derive(Debug)]
pub(crate) struct Lexer<'s> {
    pub(crate) source: &'s str,
    at: usize,
    /// Whether a string that is not in triple quotation marks may contain line breaks, which CEL refuses.
    allows_line_breaks: bool,
}

impl<'s> Lexer<'s> {
    pub(crate) fn new(source: &'s str) -> Self {
        Self {
            source,
            at: 0,
            allows_line_breaks: false,
        }
    }

    pub(crate) fn with_line_breaks(source: &'s str) -> Self {
        Self {
            allows_line_breaks: true,
            ..Self::new(source)
        }
    }

    pub(crate) fn next(&mut self) -> Result<Spanned, LexError> {
        self.skip_blank();
        let at = self.at;
        let rest = self.remaining();
        let Some(first) = rest.chars().next() else {
            return Ok(Spanned {
                token: Token::End,
                at,
            });
        };
        let token = if let Some((prefix, quote)) = string_start(rest) {
            self.string(prefix, quote)?
        } else if first.is_ascii_digit()
            || (first == '.' && rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit))
        {
            self.number()?
        } else if first.is_ascii_alphabetic() || first == '_' {
            Token::Name(
                self.take_while(|c| c.is_ascii_alphanumeric() || c == '_')
                    .into(),
            )
        } else if first == '`' {
            self.quoted()?
        } else if let Some(mark) = PUNCTUATION.iter().find(|mark| rest.starts_with(**mark)) {
            self.at += mark.len();
            Token::Punctuation(mark)
        } else {
            return Err(LexError {
                at,
                message: format!("unexpected character {first:?}"),
            });
        };
        Ok(Spanned { token, at })
    }

    fn remaining(&self) -> &'s str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.remaining().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'s str {
        let rest = self.remaining();
        let length = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    fn skip_blank(&mut self) {
        loop {
            self.take_while(|c| matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0c'));
            if !self.remaining().starts_with("//") {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn error<T>(&self, at: usize, message: &str) -> Result<T, LexError> {
        Err(LexError {
            at,
            message: message.to_owned(),
        })
    }

    fn number(&mut self) -> Result<Token, LexError> {
        let at = self.at;
        if self.remaining().starts_with("0x") || self.remaining().starts_with("0X") {
            self.at += 2;
            let digits = self.take_while(|c| c.is_ascii_hexdigit());
            let value = u64::from_str_radix(digits, 16);
            return self.integer(at, value.ok());
        }
        let digits = self.take_while(|c| c.is_ascii_digit());
        let mut is_double = false;
        let bytes = self.remaining().as_bytes();
        if bytes.first() == Some(&b'.') && bytes.get(1).is_some_and(u8::is_ascii_digit) {
            is_double = true;
            self.at += 1;
            self.take_while(|c| c.is_ascii_digit());
        }
        if let [b'e' | b'E', after @ ..] = self.remaining().as_bytes() {
            let sign = usize::from(matches!(after.first(), Some(b'+' | b'-')));
            if after.get(sign).is_some_and(u8::is_ascii_digit) {
                is_double = true;
                self.at += 1 + sign;
                self.take_while(|c| c.is_ascii_digit());
            }
        }
        if !is_double {
            return self.integer(at, digits.parse().ok());
        }
        self.no_name_follows(at)?;
        match self
            .source
            .get(at..self.at)
            .unwrap_or_default()
            .parse::<f64>()
        {
            Ok(value) if value.is_finite() => Ok(Token::Literal(Literal::Double(value))),
            _ => self.error(at, "number out of range"),
        }
    }

    fn integer(&mut self, at: usize, magnitude: Option<u64>) -> Result<Token, LexError> {
        let is_unsigned = matches!(self.peek(), Some('u' | 'U'));
        if is_unsigned {
            self.at += 1;
        }
        self.no_name_follows(at)?;
        match magnitude {
            Some(value) if is_unsigned => Ok(Token::Literal(Literal::Uint(value))),
            Some(value) if value <= 1 << 63 => Ok(Token::Integer(value)),
            _ => self.error(at, "number out of range"),
        }
    }

    fn no_name_follows(&self, at: usize) -> Result<(), LexError> {
        if self
            .peek()
            .is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            return self.error(at, "malformed number");
        }
        Ok(())
    }

    fn quoted(&mut self) -> Result<Token, LexError> {
        let at = self.at;
        self.at += 1;
        let name = self
            .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' '));
        if name.is_empty() || self.bump() != Some('`') {
            return self.error(at, "malformed quoted field name");
        }
        Ok(Token::Quoted(name.into()))
    }

    fn string(&mut self, prefix: &str, quote: &'static str) -> Result<Token, LexError> {
        let at = self.at;
        let is_raw = prefix.contains(['r', 'R']);
        let is_bytes = prefix.contains(['b', 'B']);
        self.at += prefix.len() + quote.len();
        let mut text = Text {
            is_bytes,
            bytes: Vec::new(),
        };
        loop {
            if self.remaining().starts_with(quote) {
                self.at += quote.len();
                break;
            }
            let here = self.at;
            match self.bump() {
                None => return self.error(at, "the string is not closed"),
                Some('\n' | '\r') if quote.len() == 1 && !self.allows_line_breaks => {
                    return self.error(at, "the string is not closed on its line");
                }
                Some('\\') if !is_raw => self.escape(here, &mut text)?,
                Some(c) => text.push_char(c),
            }
        }
        if is_bytes {
            return Ok(Token::Literal(Literal::Bytes(text.bytes.into())));
        }
        match String::from_utf8(text.bytes) {
            Ok(string) => Ok(Token::Literal(Literal::String(string.into()))),
            Err(_) => self.error(at, "the string is not UTF-8"),
        }
    }

    fn escape(&mut self, at: usize, text: &mut Text) -> Result<(), LexError> {
        let plain = match self.bump() {
            Some(c @ ('\\' | '?' | '"' | '\'' | '`')) => c,
            Some('a') => '\x07',
            Some('b') => '\x08',
            Some('f') => '\x0c',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\x0b',
            Some('x' | 'X') => return self.code(at, 2, 16, text),
            Some('u') if !text.is_bytes => return self.code(at, 4, 16, text),
            Some('U') if !text.is_bytes => return self.code(at, 8, 16, text),
            Some('0'..='3') => {
                self.at -= 1;
                return self.code(at, 3, 8, text);
            }
            Some(c) => {
                let message = format!("unknown escape `\\{c}` in a string; a backslash is `\\\\`");
                return Err(LexError { at, message });
            }
            None => return self.error(at, "the string is not closed"),
        };
        text.push_char(plain);
        Ok(())
    }

    fn code(
        &mut self,
        at: usize,
        digits: usize,
        radix: u32,
        text: &mut Text,
    ) -> Result<(), LexError> {
        let number = self
            .remaining()
            .get(..digits)
            .filter(|digits| digits.chars().all(|c| c.is_digit(radix)))
            .and_then(|digits| u32::from_str_radix(digits, radix).ok());
        let Some(number) = number else {
            return self.error(at, "malformed escape in a string");
        };
        self.at += digits;
        if text.is_bytes {
            match u8::try_from(number) {
                Ok(byte) => text.bytes.push(byte),
                Err(_) => return self.error(at, "escape out of range"),
            }
            return Ok(());
        }
        match char::from_u32(number) {
            Some(c) => text.push_char(c),
            None => return self.error(at, "escape is not a character"),
        }
        Ok(())
    }
}

/// The content of a string literal so far.
struct Text {
    is_bytes: bool,
    bytes: Vec<u8>,
}

impl Text {
    fn push_char(&mut self, c: char) {
        self.bytes
            .extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

/// The prefix letters and the quote of a string literal at the start of `rest`.
fn string_start(rest: &str) -> Option<(&str, &'static str)> {
    let length = rest
        .bytes()
        .take(2)
        .take_while(|b| b"rRbB".contains(b))
        .count();
    let (prefix, after) = rest.split_at(length);
    let quote = QUOTES.iter().find(|quote| after.starts_with(**quote))?;
    let is_doubled = prefix.len() == 2
        && (prefix.eq_ignore_ascii_case("rr") || prefix.eq_ignore_ascii_case("bb"));
    (!is_doubled).then_some((prefix, *quote))
}

const QUOTES: [&str; 4] = ["\"\"\"", "'''", "\"", "'"];

/// Longer tokens come before their prefixes.
const PUNCTUATION: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "-", "+", "*", "/", "%", "(", ")", "[", "]",
    "{", "}", ".", ",", ":", "?",
];
