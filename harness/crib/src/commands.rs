//! The subcommands of `crib`, one module each.

pub(crate) mod image_store;
mod interruptible;
pub(crate) mod lifecycle;
pub(crate) mod listing;
pub(crate) mod measures;
mod prelude;
pub(crate) mod runs;
pub(crate) mod servers;
pub(crate) mod shell;
pub(crate) mod streams;
