//! HPACK, the header compression of HTTP/2 (RFC 7541): decodes header blocks, and encodes them without compression. ◆

mod huffman;
mod table;

use bytes::Bytes;

use table::Table;

/// Limit on a decoded list, counted like SETTINGS_MAX_HEADER_LIST_SIZE (RFC 9113, 6.5.2). hyper rejects requests
/// from 16 KiB on, and h2 closes connections at four times as much; an indexed field can expand one byte to 4
/// KiB.
const MAX_LIST: usize = 64 << 10;

/// Why a block cannot be decoded. Each is a connection error (RFC 9113, 4.3), because the tables may be out of
/// step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HpackError {
    /// The block ends within a field.
    #[error("header block ends within a field")]
    Truncated,
    /// An integer is longer than any length or index.
    #[error("integer in header block is too long")]
    Integer,
    /// No table has an entry with this index.
    #[error("header block names a table entry that does not exist")]
    Index,
    /// A string is not a valid Huffman code.
    #[error("string in header block is not Huffman-coded")]
    Huffman,
    /// The table size changes after the first field, or beyond the limit.
    #[error("invalid table size update in header block")]
    TableSize,
    /// The list is longer than any server accepts.
    #[error("header list is too long")]
    ListSize,
}

/// A header field, pseudo-header fields included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: Bytes,
    pub(crate) value: Bytes,
}

impl Field {
    /// The size of an entry (RFC 7541, 4.1).
    fn size(&self) -> usize {
        self.name.len() + self.value.len() + 32
    }
}

/// Decodes one direction of a connection. It must decode every block, in order.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    table: Table,
}

impl Decoder {
    /// Decodes the fields of a block. The decoder must not be used again after an error.
    pub(crate) fn decode(&mut self, mut block: &[u8]) -> Result<Vec<Field>, HpackError> {
        let input = &mut block;
        let mut fields = Vec::with_capacity(16);
        let mut size = 0;
        while let Some(&first) = input.first() {
            let field = match first {
                0x80.. => self.table.field(integer(input, 7)?)?,
                0x40..=0x7f => {
                    let field = self.literal(input, 6)?;
                    self.table.insert(field.clone());
                    field
                }
                0x20..=0x3f if fields.is_empty() => {
                    self.table.resize(integer(input, 5)?)?;
                    continue;
                }
                0x20..=0x3f => return Err(HpackError::TableSize),
                // A literal without indexing, or never indexed.
                0x00..=0x1f => self.literal(input, 4)?,
            };
            size += field.size();
            if size > MAX_LIST {
                return Err(HpackError::ListSize);
            }
            fields.push(field);
        }
        Ok(fields)
    }

    fn literal(&self, input: &mut &[u8], prefix: u8) -> Result<Field, HpackError> {
        let name = match integer(input, prefix)? {
            0 => string(input)?,
            index => self.table.field(index)?.name,
        };
        let value = string(input)?;
        Ok(Field { name, value })
    }
}

/// Encodes a block that needs no table: literals without indexing and without Huffman codes (RFC 7541, 6.2.2).
pub(crate) fn encode(fields: &[Field]) -> Vec<u8> {
    let mut block = Vec::with_capacity(fields.iter().map(Field::size).sum());
    for Field { name, value } in fields {
        block.push(0);
        for text in [name, value] {
            write_integer(&mut block, text.len(), 7);
            block.extend_from_slice(text);
        }
    }
    block
}

/// Parses an integer with a prefix of `prefix` bits (RFC 7541, 5.1).
fn integer(input: &mut &[u8], prefix: u8) -> Result<usize, HpackError> {
    let mask = (1_usize << prefix) - 1;
    let mut value = usize::from(byte(input)?) & mask;
    if value < mask {
        return Ok(value);
    }
    // Four bytes exceed 2^28: no string or index is that large.
    for shift in [0, 7, 14, 21] {
        let next = usize::from(byte(input)?);
        value += (next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(HpackError::Integer)
}

fn write_integer(into: &mut Vec<u8>, value: usize, prefix: u8) {
    let mask = (1_usize << prefix) - 1;
    let low = |value: usize| value.to_le_bytes()[0];
    if value < mask {
        into.push(low(value));
        return;
    }
    into.push(low(mask));
    let mut rest = value - mask;
    while rest >= 0x80 {
        into.push(low(rest) | 0x80);
        rest >>= 7;
    }
    into.push(low(rest));
}

fn byte(input: &mut &[u8]) -> Result<u8, HpackError> {
    let (&first, rest) = input.split_first().ok_or(HpackError::Truncated)?;
    *input = rest;
    Ok(first)
}

/// Parses a string, Huffman-coded or not (RFC 7541, 5.2).
fn string(input: &mut &[u8]) -> Result<Bytes, HpackError> {
    let coded = input.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(input, 7)?;
    let (text, rest) = input.split_at_checked(length).ok_or(HpackError::Truncated)?;
    *input = rest;
    if coded {
        return huffman::decode(text).map(Bytes::from);
    }
    Ok(Bytes::copy_from_slice(text))
}

#[cfg(test)]
#[path = "hpack/tests.rs"]
mod tests;
