//! Whether what happened is what was recorded.

pub(crate) mod compare;
pub(crate) mod difference;
pub(crate) mod judge;
pub(crate) mod normal;
pub(crate) mod patch;
