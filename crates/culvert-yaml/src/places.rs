//! Positions in a text: the parser counts characters, and all others count bytes.

/// The byte of each character of a text.
#[derive(Debug)]
pub(crate) struct Places {
    /// `None` if each character is one byte.
    bytes: Option<Vec<u32>>,
    end: usize,
}

impl Places {
    pub(crate) fn of(text: &str) -> Self {
        let bytes = || {
            let starts = text.char_indices().map(|(byte, _)| byte);
            starts.map(|byte| u32::try_from(byte).unwrap_or(u32::MAX))
        };
        Self {
            bytes: (!text.is_ascii()).then(|| bytes().collect()),
            end: text.len(),
        }
    }

    /// The byte of a character; the end of the text for one behind it.
    pub(crate) fn byte(&self, character: usize) -> usize {
        let byte = match &self.bytes {
            None => Some(character),
            Some(bytes) => bytes
                .get(character)
                .and_then(|byte| usize::try_from(*byte).ok()),
        };
        byte.unwrap_or(self.end).min(self.end)
    }
}
