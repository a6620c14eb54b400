//! Commands that create, change and remove pods and containers, as crictl has them.

pub(crate) mod create;
pub(crate) mod rm;
pub(crate) mod runp;
pub(crate) mod start;
pub(crate) mod update;
