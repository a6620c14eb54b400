//! The directory of a run, its runtime as a child process, and cleaning up after killed runs.

pub(crate) mod background;
pub(crate) mod clean_up;
pub(crate) mod daemon;
pub(crate) mod dead_runs;
pub(crate) mod detach;
pub(crate) mod orphans;
pub(crate) mod root;
