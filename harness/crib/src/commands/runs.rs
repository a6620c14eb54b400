//! Commands for runs of `crib run`, their objects and volumes.

pub(crate) mod describe;
pub(crate) mod down;
pub(crate) mod explain_run;
pub(crate) mod get;
pub(crate) mod rollout;
pub(crate) mod scale;
pub(crate) mod top;
pub(crate) mod volume;
pub(crate) mod wait;
