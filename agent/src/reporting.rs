//! What is reported about pods: statuses, causes, events and transitions.
//!
//! [`status`] computes the status that an API server gets: phase, conditions, reasons. It is published as a kubelet does, when a sync
//! begins (`worker::publishing`). [`report`] has what `crib run` shows: the latest report of each pod, and the transitions between
//! reports in order, each with its cause (`causes` ◆). `events` has what a kubelet records as events: `events::texts` ◆ their words,
//! `events::correlate` ◆ how they are counted and aggregated. [`histogram`] ◆ counts durations.

pub(crate) mod causes;
pub(crate) mod events;
pub mod histogram;
pub mod report;
pub mod status;
