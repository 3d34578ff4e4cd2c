//! Reads the syntax of Caddyfiles: sites with directives, with lines. No crate does.

use std::collections::HashMap;

/// Limit of the tokens of a file.
const TOKENS_MAX: usize = 100_000;
const DEPTH_MAX: usize = 16;

/// A directive, or an option inside of one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Directive {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) args: Vec<String>,
    pub(super) block: Vec<Directive>,
}

/// A site.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Site {
    pub(super) line: usize,
    pub(super) addresses: Vec<String>,
    pub(super) directives: Vec<Directive>,
}

/// A file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Caddyfile {
    /// Global options.
    pub(super) options: Vec<Directive>,
    pub(super) sites: Vec<Site>,
}

#[derive(Clone, Debug, PartialEq)]
struct Token {
    line: usize,
    /// Lines, without those that a text or a backslash continues.
    row: usize,
    text: String,
    is_quoted: bool,
}

impl Token {
    fn is(&self, text: &str) -> bool {
        !self.is_quoted && self.text == text
    }
}

/// Reads a file.
pub(super) fn parse(text: &str) -> Result<Caddyfile, String> {
    let tokens = tokens(text)?;
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
    };
    let mut file = Caddyfile::default();
    let mut snippets: HashMap<String, Vec<Directive>> = HashMap::new();
    while let Some(first) = parser.peek() {
        if first.is("{") {
            file.options.extend(parser.block(0)?);
            continue;
        }
        let line = first.line;
        let mut addresses = Vec::new();
        // Addresses go on behind a comma, also on the next line.
        loop {
            let row = parser.row();
            let is_open = row.last().is_some_and(|token| token.text.ends_with(','));
            for token in row {
                addresses.extend(
                    token
                        .text
                        .split(',')
                        .filter(|it| !it.is_empty())
                        .map(str::to_owned),
                );
            }
            if !is_open || parser.peek().is_none() {
                break;
            }
        }
        let directives = match parser.peek().filter(|token| token.is("{")) {
            Some(_) => parser.block(0)?,
            // A file with one site needs no braces.
            None => parser.directives(0)?,
        };
        match addresses.as_slice() {
            [name] if name.starts_with('(') && name.ends_with(')') => {
                snippets.insert(name.trim_matches(['(', ')']).to_owned(), directives);
            }
            _ => file.sites.push(Site {
                line,
                addresses,
                directives,
            }),
        }
    }
    for site in &mut file.sites {
        site.directives = expanded(std::mem::take(&mut site.directives), &snippets, 0)?;
    }
    Ok(file)
}

/// Replaces imports of snippets by their directives.
fn expanded(
    directives: Vec<Directive>,
    snippets: &HashMap<String, Vec<Directive>>,
    depth: usize,
) -> Result<Vec<Directive>, String> {
    let mut found = Vec::new();
    for mut directive in directives {
        let snippet = match directive.args.as_slice() {
            [name] if directive.name == "import" => snippets.get(name),
            _ => None,
        };
        if depth > DEPTH_MAX || found.len() > TOKENS_MAX {
            return Err(format!(
                "line {}: snippets import each other too deeply",
                directive.line
            ));
        }
        match snippet {
            Some(snippet) => found.extend(expanded(snippet.clone(), snippets, depth + 1)?),
            None => {
                directive.block = expanded(directive.block, snippets, depth)?;
                found.push(directive);
            }
        }
    }
    Ok(found)
}

struct Parser<'t> {
    tokens: &'t [Token],
    at: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<&'t Token> {
        self.tokens.get(self.at)
    }

    /// The tokens of a line up to a brace.
    fn row(&mut self) -> Vec<&'t Token> {
        let mut row: Vec<&Token> = Vec::new();
        while let Some(token) = self.peek() {
            let is_next = row.first().is_some_and(|first| first.row != token.row);
            if token.is("{") || token.is("}") || is_next {
                break;
            }
            row.push(token);
            self.at += 1;
        }
        row
    }

    fn block(&mut self, depth: usize) -> Result<Vec<Directive>, String> {
        let line = self.peek().map_or(0, |token| token.line);
        if depth > DEPTH_MAX {
            return Err(format!("line {line}: it is nested too deeply"));
        }
        self.at += 1;
        let directives = self.directives(depth + 1)?;
        match self.peek() {
            Some(token) if token.is("}") => self.at += 1,
            _ => return Err(format!("line {line}: the block is not closed")),
        }
        Ok(directives)
    }

    fn directives(&mut self, depth: usize) -> Result<Vec<Directive>, String> {
        let mut found = Vec::new();
        while let Some(token) = self.peek() {
            if token.is("}") && depth > 0 {
                break;
            }
            if token.is("{") || token.is("}") {
                return Err(format!("line {}: a brace has no place here", token.line));
            }
            let row = self.row();
            let mut texts = row.iter().map(|token| token.text.clone());
            let name = texts.next().unwrap_or_default();
            let args = texts.collect();
            let opens =
                |next: &&Token| next.is("{") && row.last().is_some_and(|last| last.row == next.row);
            let block = match self.peek().filter(opens) {
                Some(_) => self.block(depth)?,
                None => Vec::new(),
            };
            found.push(Directive {
                line: token.line,
                name,
                args,
                block,
            });
        }
        Ok(found)
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    let (mut line, mut row) = (1, 1);
    while let Some(c) = chars.next() {
        match c {
            '\n' => (line, row) = (line + 1, row + 1),
            // A comment.
            '#' => while chars.next_if(|c| *c != '\n').is_some() {},
            // The line goes on.
            '\\' if chars.peek() == Some(&'\n') => {
                chars.next();
                line += 1;
            }
            c if c.is_whitespace() => {}
            quote @ ('"' | '`') => {
                let (start, mut text) = (line, String::new());
                loop {
                    match chars.next() {
                        None => return Err(format!("line {start}: a quoted text is not closed")),
                        Some(c) if c == quote => break,
                        Some('\\') if quote == '"' && chars.peek() == Some(&'"') => {
                            text.push('"');
                            chars.next();
                        }
                        Some(c) => {
                            line += usize::from(c == '\n');
                            text.push(c);
                        }
                    }
                }
                tokens.push(Token {
                    line: start,
                    row,
                    text,
                    is_quoted: true,
                });
            }
            c => {
                let mut text = String::from(c);
                while let Some(c) = chars.next_if(|c| !c.is_whitespace()) {
                    text.push(c);
                }
                if text.starts_with("<<") {
                    return Err(format!(
                        "line {line}: heredocs are not supported; use a quoted text"
                    ));
                }
                tokens.push(Token {
                    line,
                    row,
                    text,
                    is_quoted: false,
                });
            }
        }
        if tokens.len() > TOKENS_MAX {
            return Err(format!("line {line}: the file is too long"));
        }
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(directives: &[Directive]) -> String {
        let one = |it: &Directive| {
            let block = if it.block.is_empty() {
                String::new()
            } else {
                format!("{{{}}}", shown(&it.block))
            };
            format!("{}:{} {}{block}", it.line, it.name, it.args.join("|"))
        };
        directives.iter().map(one).collect::<Vec<_>>().join(";")
    }

    #[test]
    fn sites_and_directives_are_parsed() {
        let text = "{\n\temail a@b.c\n}\n(common) {\n\tencode gzip\n}\na.example, b.example,\nc.example {\n\timport common # here\n\treverse_proxy /x/* localhost:1 \\\n\t\tlocalhost:2 {\n\t\theader_up Host \"a \\\"b\\\" {\"\n\t}\n\trespond `multi\nline` 200\n}\n";
        let file = parse(text).unwrap();
        assert_eq!(shown(&file.options), "2:email a@b.c");
        let [site] = file.sites.as_slice() else {
            panic!("{file:?}")
        };
        assert_eq!(site.addresses, ["a.example", "b.example", "c.example"]);
        assert_eq!(
            shown(&site.directives),
            "5:encode gzip;10:reverse_proxy /x/*|localhost:1|localhost:2{12:header_up Host|a \"b\" {};14:respond multi\nline|200"
        );
    }

    #[test]
    fn a_single_site_needs_no_braces() {
        let file = parse("a.example\n\nencode gzip\nrespond {$BODY}\n").unwrap();
        assert_eq!(file.sites[0].addresses, ["a.example"]);
        assert_eq!(
            shown(&file.sites[0].directives),
            "3:encode gzip;4:respond {$BODY}"
        );
    }

    #[test]
    fn invalid_files_are_refused_with_their_line() {
        for (text, line) in [
            ("a {\n b", 1),
            ("a {\n b \"", 2),
            ("a\n}\n", 2),
            ("a {\n respond <<X\n", 2),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.starts_with(&format!("line {line}: ")), "{text}: {why}");
        }
        assert!(
            parse("(a) {\n import a\n}\nb {\n import a\n}")
                .unwrap_err()
                .contains("too deeply")
        );
    }
}
