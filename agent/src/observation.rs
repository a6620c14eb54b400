//! What the runtime reports of pods and of itself: events as hints, listings as the truth.

pub(crate) mod cache;
pub(crate) mod pleg;
pub(crate) mod readiness;
