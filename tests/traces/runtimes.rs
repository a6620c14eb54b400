//! The runtimes that scenarios are replayed on.

pub(crate) mod containerd;
pub(crate) mod images;
pub(crate) mod lost_sandboxes;
pub(crate) mod recorded_images;
pub(crate) mod runtime;
