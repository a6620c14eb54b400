//! Rules of calls beside each other: at once, cancelled, refused, and whether their answers agree.

pub(crate) mod agreement;
pub(crate) mod cancellation;
pub(crate) mod codes;
pub(crate) mod concurrency;
