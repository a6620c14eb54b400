//! What is reported about pods: statuses, causes, events and transitions.

pub(crate) mod causes;
pub(crate) mod events;
pub mod report;
pub mod status;
