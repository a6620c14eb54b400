//! Images that no registry has: of this machine's programs, and of behaviour scripts.

pub(crate) mod host;
pub(crate) mod named_script;
