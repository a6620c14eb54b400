//! Fuzz targets of this package.

use fuzz_target::Target;

/// Every target of this package.
#[must_use]
pub fn targets() -> Vec<Target> {
    [crate::cni::fuzz::TARGETS, crate::egress::fuzz::TARGETS].concat()
}

#[test]
fn fuzz_targets_pass_on_corpus_and_mutations() {
    fuzz_target::check(&targets());
}
