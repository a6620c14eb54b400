//! How rules run: preparation, deadlines, restarts of the runtime, and the removal of what they made.

pub(crate) mod cleanup;
pub(crate) mod dead_runs;
pub(crate) mod interruption;
pub(crate) mod options;
pub(crate) mod pace;
pub(crate) mod prepare;
pub(crate) mod run;
