//! Commands for streams: terminals, files, ports and logs.

pub(crate) mod attach;
pub(crate) mod cp;
pub(crate) mod debug;
pub(crate) mod exec;
pub(crate) mod logs;
pub(crate) mod port_forward;
