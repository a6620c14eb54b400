//! What is removed or rotated in time: dead containers and pods, and logs.
//!
//! `gc` ◆ selects the dead containers of a live pod, `gc::collector` removes those of the whole node that are too many or too old.
//! `logs` looks at the logs of running containers every 10 s, rotates them and has the runtime reopen them; `logs::links` keeps links
//! to all logs in one directory.

pub(crate) mod gc;
pub(crate) mod logs;
