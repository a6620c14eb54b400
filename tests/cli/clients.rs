//! Commands that call a runtime.

pub(crate) mod calls;
pub(crate) mod capabilities;
pub(crate) mod cp;
pub(crate) mod crictl;
pub(crate) mod hostile_answers;
pub(crate) mod limits;
pub(crate) mod streams;
pub(crate) mod terminal;
