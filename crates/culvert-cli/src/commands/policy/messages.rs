//! Messages of the language server protocol: a header with the length, and JSON.

use std::io::{self, BufRead, Read, Write};

use serde::Deserialize;
use serde_json::{Value, json};

/// Maximum length of a message. An editor sends a whole document in one, and may send one that is too long for a policy.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Maximum length of a line of the header.
const LINE_BYTES_MAX: u64 = 1024;

/// A message of the editor.
#[derive(Debug, Deserialize)]
pub(super) struct Message {
    /// Of a request; `None` for a notification.
    pub id: Option<Value>,
    /// What it is; empty for a response.
    #[serde(default)]
    pub method: String,
    /// Its parameters.
    #[serde(default)]
    pub params: Value,
}

/// Reads a message; `None` at the end of the input.
pub(super) fn read(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut length = None;
    loop {
        let mut line = String::new();
        if input.by_ref().take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if !line.ends_with('\n') {
            return Err(invalid(
                "a line of a header is too long, or the input ends in it",
            ));
        }
        match line.trim_end() {
            "" => break,
            line => {
                if let Some((name, value)) = line.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    length = value.trim().parse::<usize>().ok();
                }
            }
        }
    }
    let length = length.ok_or_else(|| invalid("a message has no valid content-length"))?;
    if length > MESSAGE_BYTES_MAX {
        return Err(invalid("a message is too long"));
    }
    let mut body = Vec::new();
    let wanted = u64::try_from(length).unwrap_or(u64::MAX);
    input.by_ref().take(wanted).read_to_end(&mut body)?;
    match body.len() == length {
        true => Ok(Some(body)),
        false => Err(invalid("the input ends in a message")),
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Writes the response to a request, or a notification.
pub(super) fn write(output: &mut impl Write, mut message: Value) -> io::Result<()> {
    message["jsonrpc"] = json!("2.0");
    let body = message.to_string();
    write!(output, "Content-Length: {}\r\n\r\n{body}", body.len())?;
    output.flush()
}
