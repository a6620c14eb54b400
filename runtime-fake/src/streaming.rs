//! Exec, Attach and PortForward: what a client that comes with a URL of theirs is given.

pub(crate) mod target;
