//! Asks for values on a terminal. Elsewhere, they come from standard input, a line for each.

use std::io::{IsTerminal, Stdin, Write};

use culvert_base::Secret;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::Failure;

/// Asks for a text; the answer may be empty.
pub(super) fn ask(question: &str) -> Result<String, Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        eprint!("{question}: ");
        std::io::stderr().flush().ok();
    }
    let mut line = String::new();
    stdin
        .read_line(&mut line)
        .map_err(|error| Failure::Failed(format!("cannot read standard input: {error}")))?;
    Ok(line.trim().to_owned())
}

/// Asks for a secret, which the terminal does not show.
pub(super) fn ask_secret(question: &str) -> Result<Secret, Failure> {
    let hidden = Hidden::begin(std::io::stdin());
    let answer = ask(question);
    if hidden.is_some() {
        eprintln!();
    }
    drop(hidden);
    let answer = answer?;
    if answer.is_empty() {
        return Err(Failure::Usage(format!("no {question} on standard input")));
    }
    Ok(Secret::new(answer))
}

/// A terminal that does not show input, until this is dropped.
struct Hidden {
    terminal: Stdin,
    before: Termios,
}

impl Hidden {
    fn begin(terminal: Stdin) -> Option<Self> {
        let before = tcgetattr(&terminal).ok()?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&terminal, OptionalActions::Flush, &hidden).ok()?;
        Some(Self { terminal, before })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        tcsetattr(&self.terminal, OptionalActions::Now, &self.before).ok();
    }
}
