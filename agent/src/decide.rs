//! What is done next for a pod: plans, resizes and back-offs. It only decides.
//!
//! [`plan`] compares a pod with what was observed of it, and gives actions with their reasons; it is checked against what Kubernetes
//! 1.36.2 decides. `plan::restart` and [`backoff`]: when a container is restarted. `plan::holds`: what is delayed after a failure, and
//! until when; `plan::effects`: which calls had no effect. [`resize`]: CPU and memory of running pods; the sync loop grants a resize,
//! the worker executes it.

pub mod backoff;
pub mod plan;
pub mod resize;
