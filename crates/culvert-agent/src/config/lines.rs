//! The lines of a YAML document, for messages about its keys.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, StrInput};

/// The line of each key by its path, such as `tunnels.web.addr` or `endpoints[0].url`.
#[derive(Debug, Default)]
pub(super) struct Lines(HashMap<String, usize>);

impl Lines {
    /// Reads a document that was parsed before, so its size and depth are within limits. A document that is JSON but
    /// not YAML has no lines.
    pub(super) fn of(text: &str) -> Self {
        let mut walk = Walk {
            events: Parser::new_from_str(text),
            lines: HashMap::new(),
        };
        walk.document();
        Self(walk.lines)
    }

    /// `line 3: ` for the key at `path`, or for the nearest one that contains it; empty if no line is known.
    pub(super) fn prefix(&self, path: &str) -> String {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return format!("line {line}: ");
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return String::new(),
            }
        }
    }
}

struct Walk<'t> {
    events: Parser<'t, StrInput<'t>>,
    lines: HashMap<String, usize>,
}

impl<'t> Walk<'t> {
    fn document(&mut self) {
        while let Some((event, _)) = self.next() {
            match event {
                Event::StreamEnd => return,
                event => self.value(event, ""),
            }
        }
    }

    fn next(&mut self) -> Option<(Event<'t>, usize)> {
        let (event, span) = self.events.next_event()?.ok()?;
        Some((event, span.start.line()))
    }

    /// The value that begins with `event`.
    fn value(&mut self, event: Event<'t>, path: &str) {
        match event {
            Event::MappingStart(..) => {
                while let Some((Event::Scalar(key, ..), line)) = self.next() {
                    let child = match path {
                        "" => key.into_owned(),
                        path => format!("{path}.{key}"),
                    };
                    self.lines.insert(child.clone(), line);
                    match self.next() {
                        Some((event, _)) => self.value(event, &child),
                        None => return,
                    }
                }
            }
            Event::SequenceStart(..) => {
                let mut index = 0;
                while let Some((event, line)) = self.next() {
                    if matches!(event, Event::SequenceEnd) {
                        return;
                    }
                    let child = format!("{path}[{index}]");
                    self.lines.insert(child.clone(), line);
                    self.value(event, &child);
                    index += 1;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_maps_and_lists_have_line_numbers() {
        let text = "version: 2\ntunnels:\n  web:\n    addr: 80\n    oauth: {provider: google}\nlist:\n  - a: 1\n    b: 2\n  -\n    c: 3\n";
        let lines = Lines::of(text);
        for (path, line) in [
            ("version", 1),
            ("tunnels.web", 3),
            ("tunnels.web.addr", 4),
            ("tunnels.web.oauth.provider", 5),
            ("tunnels.web.missing", 3),
            ("list[0].b", 8),
            ("list[1].c", 10),
        ] {
            assert_eq!(lines.prefix(path), format!("line {line}: "), "{path}");
        }
        assert_eq!(lines.prefix("unknown"), "");
    }
}
