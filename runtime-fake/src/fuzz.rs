//! Collects the fuzz targets of this package, which are in each module's own `fuzz`.
#![allow(unreachable_pub, reason = "public for the program in tests/fuzz, private in a test")]
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use fuzz_target::Target;

/// Every target of this package.
#[must_use]
pub fn targets() -> Vec<Target> {
    [
        crate::cdi::fuzz::TARGETS,
        crate::checkpoint::fuzz::TARGETS,
        crate::launch::fuzz::TARGETS,
        crate::server::fuzz::TARGETS,
        crate::services::fuzz::TARGETS,
        crate::stats::fuzz::TARGETS,
        crate::streaming::fuzz::TARGETS,
    ]
    .concat()
}

#[test]
fn fuzz_targets_pass_on_corpus_and_mutations() {
    fuzz_target::check(&targets());
}
