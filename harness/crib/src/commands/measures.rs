//! Commands that check and measure runtimes.

pub(crate) mod bench;
pub(crate) mod check;
