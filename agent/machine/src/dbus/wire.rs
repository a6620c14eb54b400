//! ◆ D-Bus values in wire format: each at its alignment, relative to the start of the message or of its body. Pure.

/// Writes values at their alignment, in little-endian order.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    pub(super) fn number(&mut self, number: usize) {
        self.align(4);
        // No value that is written here is longer.
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
    }

    pub(super) fn signature(&mut self, signature: &str) {
        self.0.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
        self.0.extend_from_slice(signature.as_bytes());
        self.0.push(0);
    }

    /// An array whose elements have this alignment. Its length excludes the padding before the first element.
    pub(super) fn list(&mut self, alignment: usize, elements: impl FnOnce(&mut Self)) {
        self.number(0);
        let length_at = self.0.len() - 4;
        self.align(alignment);
        let begin = self.0.len();
        elements(self);
        let length = u32::try_from(self.0.len() - begin).unwrap_or(u32::MAX);
        if let Some(place) = self.0.get_mut(length_at..length_at + 4) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }

    pub(super) fn field(&mut self, code: u8, kind: &str, text: &str) {
        self.align(8);
        self.0.push(code);
        self.signature(kind);
        self.text(text);
    }
}

/// Reads values at their alignment.
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    pub(super) is_little: bool,
}

impl Reader<'_> {
    pub(super) fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// A number of this many bytes.
    pub(super) fn number(&mut self, bytes: usize) -> Option<u64> {
        self.align(bytes);
        let end = self.at.checked_add(bytes)?;
        let found = self.bytes.get(self.at..end)?;
        self.at = end;
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(match self.is_little {
            true => found.iter().rev().fold(0, add),
            false => found.iter().fold(0, add),
        })
    }

    pub(super) fn length(&mut self) -> Option<usize> {
        usize::try_from(self.number(4)?).ok()
    }

    pub(super) fn take(&mut self, length: usize) -> Option<String> {
        let end = self.at.checked_add(length)?;
        let text = String::from_utf8(self.bytes.get(self.at..end)?.to_vec()).ok()?;
        // Skip the terminating null byte.
        self.at = end + 1;
        Some(text)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        let length = self.length()?;
        self.take(length)
    }

    pub(super) fn signature(&mut self) -> Option<String> {
        let length = self.byte()?;
        self.take(length.into())
    }
}
