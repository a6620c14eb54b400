//! Commands for shells and packagers.

pub(crate) mod completions;
pub(crate) mod man;
