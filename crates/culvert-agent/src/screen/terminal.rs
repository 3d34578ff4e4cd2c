//! The terminal: its screen, its echo, and how both are restored.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap,
    EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{cursor, queue};
use culvert_base::sync::lock;
use rustix::termios::{LocalModes, OptionalActions, Termios};

use super::text::clean;
use super::view::{Line, Style};

/// Whether the terminal shows the agent's screen. Static, because the panic hook must know.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);
/// The settings of standard input before the screen was shown.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Whether standard output is a terminal that can show a screen, and the agent is in its foreground.
pub(crate) fn is_usable() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    io::stdout().is_terminal() && !is_dumb && is_in_foreground()
}

/// Whether the agent is in the foreground of its terminal. A job in the background must not touch it.
pub(crate) fn is_in_foreground() -> bool {
    match rustix::termios::tcgetpgrp(io::stdout()) {
        Ok(foreground) => foreground == rustix::process::getpgrp(),
        Err(_) => false,
    }
}

/// Shows an empty screen. [`leave`] restores the previous one.
pub(crate) fn enter() -> io::Result<()> {
    if IS_SHOWN.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    if let Ok(before) = rustix::termios::tcgetattr(io::stdin()) {
        let mut quiet = before.clone();
        // Typed characters would appear on the screen. Ctrl+C and Ctrl+Z stay signals.
        quiet
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ICANON);
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &quiet)?;
        *lock(&BEFORE) = Some(before);
    }
    let mut out = io::stdout().lock();
    queue!(out, EnterAlternateScreen, DisableLineWrap, cursor::Hide)?;
    out.flush()
}

/// Restores the terminal, if the screen is shown.
pub(crate) fn leave() {
    if !IS_SHOWN.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = Vec::new();
    // Writing to memory cannot fail.
    let queued = queue!(
        out,
        EndSynchronizedUpdate,
        ResetColor,
        SetAttribute(Attribute::Reset),
        cursor::Show,
        EnableLineWrap,
        LeaveAlternateScreen
    );
    debug_assert!(queued.is_ok());
    // Not through the lock of standard output, which a panic may hold. A terminal that is gone needs no restoring.
    rustix::io::write(rustix::stdio::stdout(), &out).ok();
    if let Some(before) = lock(&BEFORE).take() {
        // Discards what was typed meanwhile, so that the shell does not get it.
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Flush, &before).ok();
    }
}

/// Restores the terminal before a panic is reported.
pub(crate) fn restore_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        leave();
        report(panic);
    }));
}

/// Columns and rows.
pub(crate) fn size() -> (u16, u16) {
    crossterm::terminal::size().unwrap_or((80, 24))
}

/// The bytes that draw lines over whatever the screen shows.
pub(crate) fn frame(lines: &[Line], has_color: bool) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    queue!(out, BeginSynchronizedUpdate)?;
    if lines.is_empty() {
        queue!(out, cursor::MoveTo(0, 0), Clear(ClearType::FromCursorDown))?;
    }
    for (row, line) in (0u16..).zip(lines) {
        // Cleared before it is drawn: behind a full line, the cursor is still on its last column. The last line also
        // clears the rows below.
        let is_last = usize::from(row) + 1 == lines.len();
        let old = match is_last {
            true => ClearType::FromCursorDown,
            false => ClearType::UntilNewLine,
        };
        queue!(out, cursor::MoveTo(0, row), Clear(old))?;
        for (style, text) in line {
            let is_styled = begin(&mut out, *style, has_color)?;
            // All text of others passes through here. The view has cleaned most before, to measure it.
            queue!(out, Print(clean(text)))?;
            if is_styled {
                // Codes of their own, because crossterm writes no colors at all under NO_COLOR.
                queue!(out, SetAttribute(Attribute::Reset))?;
            }
        }
    }
    queue!(out, EndSynchronizedUpdate)?;
    Ok(out)
}

/// Begins a style. Returns whether there is something to end.
fn begin(out: &mut Vec<u8>, style: Style, has_color: bool) -> io::Result<bool> {
    let color = match style {
        Style::Plain => return Ok(false),
        Style::Strong => {
            queue!(out, SetAttribute(Attribute::Bold))?;
            return Ok(true);
        }
        Style::Faint => {
            queue!(out, SetAttribute(Attribute::Dim))?;
            return Ok(true);
        }
        Style::Good => Color::DarkGreen,
        Style::Warning => Color::DarkYellow,
        Style::Bad => Color::DarkRed,
    };
    if has_color {
        queue!(out, SetForegroundColor(color))?;
    }
    Ok(has_color)
}

/// Writes a frame, if the screen is still shown.
pub(crate) fn draw(frame: &[u8]) -> io::Result<()> {
    if !IS_SHOWN.load(Ordering::SeqCst) {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(frame)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::{Style, frame};

    #[test]
    fn no_text_controls_the_terminal() {
        let text = "a\u{1b}[2Jb\u{202e}c".to_owned();
        let drawn = String::from_utf8(frame(&[vec![(Style::Plain, text)]], true).unwrap()).unwrap();
        assert!(drawn.contains("a\u{fffd}[2Jb\u{fffd}c"), "{drawn:?}");
    }

    #[test]
    fn a_line_is_cleared_before_it_is_drawn() {
        let line = |text: &str| vec![(Style::Plain, text.to_owned())];
        let bytes = frame(&[line("first"), line("second"), line("third")], true).unwrap();
        let drawn = String::from_utf8(bytes).unwrap();
        for text in ["first", "second", "third"] {
            let (_, behind) = drawn.split_once(text).unwrap();
            let next = behind.split("\x1b[").nth(1).unwrap();
            assert!(
                !next.starts_with('K') && !next.starts_with('J'),
                "{drawn:?}"
            );
        }
        assert!(drawn.find("\x1b[J").unwrap() < drawn.find("third").unwrap());
    }
}
