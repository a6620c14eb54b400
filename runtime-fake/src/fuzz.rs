//! Fuzz targets: every parser of bytes that this program did not write, with what has to hold for any input.
//!
//! A target is a function that panics when a law is broken: printing what was parsed and parsing it again changes nothing,
//! output and allocations keep to their limits, names stay inside. The targets live beside their parsers, so that no
//! parser is public for their sake. Each has valid inputs of its own making (its seeds); inputs that once broke something
//! are in `tests/fuzz/corpus`. `cargo test` runs all of them and a bounded number of mutations, the same ones each time;
//! `tests/fuzz/run` searches guided by coverage for as long as it is let.
#![allow(
    unreachable_pub,
    reason = "public for the program in tests/fuzz, private in a test"
)]
#![allow(clippy::unwrap_used, reason = "a test's tool")]

mod kernel;
mod output;

/// A parser under test.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its directory in the corpus.
    pub name: &'static str,
    /// Panics when the input breaks a law.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// How many mutations `cargo test` tries.
    pub mutations: usize,
}

impl Target {
    pub(crate) const fn new(
        name: &'static str,
        run: fn(&[u8]),
        seeds: fn() -> Vec<Vec<u8>>,
    ) -> Self {
        Self {
            name,
            run,
            seeds,
            mutations: 4000,
        }
    }

    /// A target that takes long for each input.
    pub(crate) const fn slow(self, mutations: usize) -> Self {
        Self { mutations, ..self }
    }
}

/// Every target.
#[must_use]
pub fn targets() -> Vec<Target> {
    [
        crate::cdi::fuzz::TARGETS,
        crate::checkpoint::fuzz::TARGETS,
        crate::criu::fuzz::TARGETS,
        crate::image::fuzz::TARGETS,
        crate::keeper::fuzz::TARGETS,
        crate::launch::fuzz::TARGETS,
        crate::mux::fuzz::TARGETS,
        crate::net::cni::fuzz::TARGETS,
        crate::registry::fuzz::TARGETS,
        crate::server::fuzz::TARGETS,
        crate::stats::fuzz::TARGETS,
        crate::streaming::fuzz::TARGETS,
        kernel::TARGETS,
        output::TARGETS,
    ]
    .concat()
}

/// The input as text, which is what the caller of a text parser has already checked.
pub(crate) fn text(data: &[u8]) -> &str {
    let end = std::str::from_utf8(data).map_or_else(|error| error.valid_up_to(), str::len);
    std::str::from_utf8(&data[..end]).unwrap_or_default()
}

/// The input as two texts, cut at the first NUL.
pub(crate) fn two_texts(data: &[u8]) -> (&str, &str) {
    let text = text(data);
    text.split_once('\0').unwrap_or((text, ""))
}

pub(crate) fn bytes(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod mutate;
#[cfg(test)]
mod tests;
