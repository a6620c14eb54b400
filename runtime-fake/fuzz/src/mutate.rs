//! Deterministic mutations of inputs.

/// A small pseudo-random generator (xorshift64*): the numbers need not be unpredictable.
pub(super) struct Random(u64);

impl Random {
    /// A generator seeded by `name`.
    pub(super) fn named(name: &str) -> Self {
        // FNV-1a; never 0, a state that the generator cannot leave.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hash | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which is more than 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap_or(0) % end
    }
}

/// Numbers at which parsers often fail, as text and as bytes.
const TEXTS: [&str; 16] = [
    "0",
    "-1",
    "+1",
    "1",
    "255",
    "256",
    "65536",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "..",
    "\0",
    "\n",
    "\u{fffd}",
];
const WORDS: [u32; 6] = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x0100_0000];

/// Limit on the length of an input.
const LONGEST: usize = 16 << 10;

/// Changes `input` in a few places, splicing parts of `others`.
pub(super) fn mutate(input: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut out = input.to_vec();
    for _ in 0..=random.below(4) {
        change(&mut out, others, random);
    }
    out.truncate(LONGEST);
    out
}

fn change(out: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let at = random.below(out.len() + 1);
    let end = (at + 1 + random.below(16)).min(out.len());
    let at_byte = at.min(out.len().saturating_sub(1));
    match random.below(10) {
        0 if !out.is_empty() => out[at_byte] ^= 1 << random.below(8),
        1 if !out.is_empty() => out[at_byte] = u8::try_from(random.below(256)).unwrap_or(0),
        2 if at < end => drop(out.drain(at..end)),
        3 if at < end => {
            let part = out[at..end].to_vec();
            let times = 1 + random.below(40);
            insert(out, at, &part.repeat(times));
        }
        4 => {
            let word = WORDS[random.below(WORDS.len())];
            let word = if random.below(2) == 0 { word.to_be_bytes() } else { word.to_le_bytes() };
            let end = (at + 4).min(out.len());
            out[at..end].copy_from_slice(&word[..end - at]);
        }
        5 => insert(out, at, TEXTS[random.below(TEXTS.len())].as_bytes()),
        6 => number(out, at, random),
        7 => out.truncate(at),
        8 => {
            let other = &others[random.below(others.len())];
            let from = random.below(other.len() + 1);
            let to = from + random.below(other.len() - from + 1).min(256);
            insert(out, at, &other[from..to]);
        }
        _ => {
            let other = &others[random.below(others.len())];
            out.truncate(at);
            out.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
    }
}

fn insert(out: &mut Vec<u8>, at: usize, part: &[u8]) {
    out.splice(at..at, part.iter().copied());
}

/// Replaces one number in the text.
fn number(out: &mut Vec<u8>, from: usize, random: &mut Random) {
    let Some(start) = out[from..].iter().position(u8::is_ascii_digit) else {
        return;
    };
    let start = from + start;
    let length = out[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = TEXTS[random.below(12)];
    out.splice(start..start + length, text.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_repeat_for_the_same_name() {
        let others = vec![b"abc=1,def=22".to_vec()];
        let some = || {
            let mut random = Random::named("x");
            let mut mutated = || mutate(&others[0], &others, &mut random);
            (0..50).map(|_| mutated()).collect::<Vec<_>>()
        };
        assert_eq!(some(), some());
        let distinct: std::collections::BTreeSet<_> = some().into_iter().collect();
        assert!(distinct.len() > 30);
    }
}
