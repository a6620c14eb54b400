//! What happens between fork and `execve`, and to a pod's namespaces: root file system, users, capabilities, security modules,
//! terminals, and the reports to the keeper. One thread, no return to the keeper's loop.

pub(crate) mod act;
pub(crate) mod birth;
pub(crate) mod child;
pub(crate) mod exec_error;
pub(crate) mod fork;
pub mod lsm;
pub(crate) mod pause;
pub(crate) mod pod;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod report_pipe;
pub(crate) mod restore;
pub(crate) mod root;
pub(crate) mod shared;
pub(crate) mod terminal;
pub(crate) mod user;
pub(crate) mod userns;
