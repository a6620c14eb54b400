//! Commands that create, change and remove pods and containers, as crictl has them.

pub(crate) mod checkpoint;
pub(crate) mod create;
pub(crate) mod rm;
pub(crate) mod rmp;
pub(crate) mod runp;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod stopp;
pub(crate) mod update;
pub(crate) mod update_runtime_config;
