//! The Huffman code of HPACK (RFC 7541, appendix B). ◆
//!
//! The code is canonical: codes of one length are consecutive in the order of their symbols, and follow the codes of the previous
//! length. So the lengths alone define the code.

use super::HpackError;

/// The length of the longest code in bits.
const LONGEST: usize = 30;

/// The code length of each symbol in bits: 256 bytes, and EOS, whose first bits pad the last byte of a string.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// The codes of one length.
#[derive(Debug, Clone, Copy)]
struct Codes {
    /// The smallest of them.
    first: u32,
    count: u32,
    /// The index of its symbol in [`Code::symbols`].
    at: u32,
}

#[derive(Debug)]
struct Code {
    lengths: [Codes; LONGEST + 1],
    /// Ordered by their codes.
    symbols: [u16; LENGTHS.len()],
}

static CODE: Code = code();

const fn code() -> Code {
    let none = Codes { first: 0, count: 0, at: 0 };
    let mut made = Code { lengths: [none; LONGEST + 1], symbols: [0; LENGTHS.len()] };
    let (mut next, mut at, mut length) = (0_u32, 0_usize, 1_usize);
    while length <= LONGEST {
        next <<= 1;
        let mut codes = Codes { first: next, count: 0, at: at as u32 };
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                made.symbols[at] = symbol as u16;
                at += 1;
                codes.count += 1;
            }
            symbol += 1;
        }
        next += codes.count;
        made.lengths[length] = codes;
        length += 1;
    }
    made
}

/// Decodes a string.
pub(super) fn decode(coded: &[u8]) -> Result<Vec<u8>, HpackError> {
    let mut text = Vec::with_capacity(coded.len() * 8 / 5 + 1);
    let (mut bits, mut length) = (0_u32, 0_usize);
    for byte in coded {
        for place in (0..8).rev() {
            bits = bits << 1 | u32::from(byte >> place & 1);
            length += 1;
            let codes = CODE.lengths.get(length).ok_or(HpackError::Huffman)?;
            let number = bits.wrapping_sub(codes.first);
            if number >= codes.count {
                continue;
            }
            let symbol = CODE.symbols[(codes.at + number) as usize];
            // EOS within a string is an error (RFC 7541, 5.2).
            text.push(u8::try_from(symbol).map_err(|_| HpackError::Huffman)?);
            (bits, length) = (0, 0);
        }
    }
    // The padding is shorter than a byte and consists of ones.
    if length > 7 || bits != (1 << length) - 1 {
        return Err(HpackError::Huffman);
    }
    Ok(text)
}
