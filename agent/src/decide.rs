//! What is done next for a pod: plans, resizes and back-offs. It only decides.

pub mod backoff;
pub mod plan;
pub mod resize;
