//! The keeper's own side: calls of the daemon, children from the fork to the exit, their output and logs, records of their exits,
//! host ports, and the zygote that keepers are forked from.
//!
//! - `zygote`: `crib __keeper`, one for each daemon. It has one thread, only forks, and looks up the host's cgroup hierarchies and the
//!   boot's name once for all keepers. It ends with its connection to the daemon.
//! - `connection`, `dispatch`, `tickets` ◆: the daemon's calls, one by one, over connections that come and go.
//! - `container`, `exec`, `limit`: forks. A set-up may take 100 s for a container and 8 s for an exec; then it is killed, and the
//!   caller gets an error.
//! - `exec_processes`: the processes of an exec, found by its cgroup namespace and killed with it.
//! - `cgroups`: made with their limits before the fork. After the exit the keeper reads OOM kills and kills the remaining processes;
//!   it removes the directories after all callers have their responses.
//! - `exit`: reaps, writes the exit record, then reports.
//! - `output`, `log`, `watchers`: a container's pipes are the keeper's, which copies them to the log and to clients of Attach. The
//!   pipes of an exec are the daemon's own.
//! - `forward`: the forwarder of host ports, a fork of the keeper with one thread: an epoll loop over non-blocking sockets, which
//!   buffers only what a slow receiver has not taken. Its clients share slots by the rule of the package `shares`.

pub(crate) mod cgroups;
pub(crate) mod connection;
pub(crate) mod container;
pub(crate) mod dispatch;
pub(crate) mod exec;
pub(crate) mod exec_processes;
pub(crate) mod exit;
pub(crate) mod forward;
pub(crate) mod limit;
pub mod log;
pub(crate) mod output;
pub(crate) mod tickets;
pub(crate) mod watchers;
pub(crate) mod zygote;
