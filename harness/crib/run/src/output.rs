//! The output of a run: container lines, the live view, notes, and JSON.

pub(crate) mod colour;
pub(crate) mod json;
pub(crate) mod label;
pub(crate) mod lines;
pub(crate) mod marks;
pub(crate) mod notes;
pub(crate) mod printer;
pub(crate) mod rollouts;
pub(crate) mod rows;
pub(crate) mod screen;
pub(crate) mod tail;
pub(crate) mod view;
