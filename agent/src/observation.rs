//! What the runtime reports of pods and of itself: events as hints, listings as the truth.
//!
//! `pleg` is one task: it takes events, lists the runtime (once a second without events, each 10 to 60 seconds with them), inspects
//! pods and sends snapshots to their workers, which wait for them in `cache`. `readiness` decides when pods wait for the runtime: it
//! asks for the runtime's status every 5 s.

pub(crate) mod cache;
pub(crate) mod pleg;
pub(crate) mod readiness;
