//! **fuzz-target**: a parser of foreign bytes, with what must hold for any input.
//!
//! A target is a function that panics when the parser breaks a law: parsing, printing and parsing again changes nothing,
//! output and allocations keep to their limits, names stay inside. Targets live beside their parsers, in modules named
//! `fuzz`, so that no parser is public for their sake. Each brings valid inputs (its seeds); inputs that once broke
//! something are in `tests/fuzz/corpus`. Each package's unit tests call [`check`], which runs all of these and a bounded
//! number of mutations, the same ones each time; `tests/fuzz/run` searches guided by coverage.
//!
//! This package depends on no other package. The others depend on it in their tests, and under `cfg(fuzzing)`.

mod check;
mod mutate;

pub use check::check;

/// A parser under test.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its directory in the corpus.
    pub name: &'static str,
    /// Panics when the input breaks a law.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// How many mutations [`check`] tries.
    pub mutations: usize,
}

impl Target {
    /// A target of the usual number of mutations.
    #[must_use]
    pub const fn new(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Self {
        Self {
            name,
            run,
            seeds,
            mutations: 4000,
        }
    }

    /// The same target with fewer mutations, because each input takes long.
    #[must_use]
    pub const fn slow(self, mutations: usize) -> Self {
        Self { mutations, ..self }
    }
}

/// The input up to its first invalid UTF-8 sequence, for parsers whose callers have checked that it is text.
#[must_use]
pub fn text(data: &[u8]) -> &str {
    let end = std::str::from_utf8(data).map_or_else(|error| error.valid_up_to(), str::len);
    std::str::from_utf8(&data[..end]).unwrap_or_default()
}

/// The input as two texts, split at the first NUL.
#[must_use]
pub fn two_texts(data: &[u8]) -> (&str, &str) {
    let text = text(data);
    text.split_once('\0').unwrap_or((text, ""))
}

/// Seeds that are text.
#[must_use]
pub fn bytes(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
