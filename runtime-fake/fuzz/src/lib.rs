//! **fuzz-target**: fuzz targets for parsers of untrusted bytes, each with the invariants that hold for any
//! input.
//!
//! A target is a function that panics when the parser violates an invariant: parsing, printing and parsing again changes nothing,
//! output and allocations do not exceed their limits, paths stay inside their root. Targets are beside their parsers, in modules
//! named `fuzz`, so that no parser has to be public for them. Each has valid inputs (its seeds); inputs that once failed are in
//! `tests/fuzz/corpus`. Each package's unit tests call [`check`], which runs all of these and a bounded number of deterministic
//! mutations; `tests/fuzz/run` searches guided by coverage.
//!
//! This package depends on no other package. The others depend on it in their tests, and under `cfg(fuzzing)`.

mod check;
mod mutate;

pub use check::check;

/// A parser under test.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and the name of its directory in the corpus.
    pub name: &'static str,
    /// Panics when the input violates an invariant.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The number of mutations that [`check`] tries.
    pub mutations: usize,
}

impl Target {
    /// A target with the default number of mutations.
    #[must_use]
    pub const fn new(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Self {
        Self { name, run, seeds, mutations: 4000 }
    }

    /// The same target with fewer mutations, because each input is slow.
    #[must_use]
    pub const fn slow(self, mutations: usize) -> Self {
        Self { mutations, ..self }
    }
}

/// The input up to its first invalid UTF-8 sequence, for parsers whose callers have checked that the input is
/// text.
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

/// Converts text seeds to bytes.
#[must_use]
pub fn bytes(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
