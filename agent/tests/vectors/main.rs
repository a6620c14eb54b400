//! Compares the agent's decisions with those of Kubernetes 1.36.2 for the same input (see `tests/vectors/README.md`).
#![allow(clippy::unwrap_used, reason = "a malformed vector has to fail the test")]

mod actions;
mod backoff;
#[path = "../../../tests/vectors/compare.rs"]
mod compare;
mod config;
mod container_environment;
#[path = "../../../tests/vectors/document.rs"]
mod document;
mod eviction;
mod images;
#[path = "../../../tests/vectors/judge.rs"]
mod judge;
mod kill;
mod mounts;
mod pods;
mod probes;
#[path = "../../../tests/vectors/read.rs"]
mod read;
mod resources;
mod static_pod_dirs;
mod status;

use judge::Set;

/// The sets, in the order of the table.
const SETS: &[Set] = &[
    actions::SET,
    backoff::RESTART,
    backoff::SET,
    kill::ORDER,
    kill::GRACE,
    probes::PROBES,
    probes::REQUESTS,
    status::PHASE,
    status::STATUS,
    static_pod_dirs::SET,
    container_environment::EXPANSION,
    container_environment::ENVIRONMENT,
    container_environment::HOSTS,
    container_environment::DNS,
    mounts::SET,
    resources::CPU,
    resources::QOS,
    config::SANDBOX,
    config::CONTAINER,
    images::REFERENCES,
    images::CREDENTIALS,
    images::BACKOFF,
    images::SEQUENCES,
    eviction::THRESHOLDS,
    eviction::SIGNALS,
    eviction::RANK,
];

#[test]
fn decisions_agree_with_kubernetes() {
    compare::decisions_agree("Decisions of the agent (package `agent`)", SETS);
}
