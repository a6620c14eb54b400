//! Memory nodes: what managers would like, and what a container gets of that.

pub(crate) mod hint;
pub(crate) mod mask;
pub(crate) mod merge;
