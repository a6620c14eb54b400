//! Probes of containers: startup, readiness, liveness.
//!
//! [`machine`] decides the result that a probe records. [`outcome`] has the outcome of one check, and its event. One task,
//! `prober`, owns the state of all probes; each check runs in its own task. [`counts`] counts the results.

pub(crate) mod check;
pub mod counts;
pub mod machine;
pub mod outcome;
pub(crate) mod prober;
mod ticker;
