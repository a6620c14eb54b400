//! Compares the results for manifests with those of Kubernetes 1.36.2 (see `tests/vectors/README.md`).
#![allow(clippy::unwrap_used, reason = "a malformed vector has to fail the test")]

#[path = "../../../../tests/vectors/compare.rs"]
mod compare;
#[path = "../../../../tests/vectors/document.rs"]
mod document;
#[path = "../../../../tests/vectors/judge.rs"]
mod judge;
mod quantities;
#[path = "../../../../tests/vectors/read.rs"]
mod read;
mod static_pods;
mod validation;

/// The sets, in the order of the table.
const SETS: &[judge::Set] = &[validation::SET, static_pods::SET, quantities::SET];

#[test]
fn manifests_agree_with_kubernetes() {
    compare::decisions_agree("Manifests (package `api`)", SETS);
}
