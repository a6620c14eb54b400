//! Recorded scenarios: their files, steps and history.

pub(crate) mod exceptions;
pub(crate) mod explanations;
pub(crate) mod history;
pub(crate) mod library;
pub(crate) mod open;
pub(crate) mod scenario;
pub(crate) mod source;
pub(crate) mod steps;
pub(crate) mod table;
