//! Shared by the `crib` commands that run pods: command-line values, exit codes, messages, logs, signals, default directories, and
//! how one command finds and queries the runs of other commands.
//!
//! | module | content |
//! |---|---|
//! | `args`, `named_text`, `pull_secrets` | values and files that the user passes |
//! | `exit`, `report`, `terminal_text`, `columns`, `waiting` | exit codes and output |
//! | `logging`, `signals`, `limits` | logs, signals, resource limits of the process |
//! | `dirs`, `volumes_in_memory` | default directories; volumes on tmpfs |
//! | `live`, `run_socket` | finding and querying the runs of other commands |
//! | `node`, `pod_dialer`, `service_stream` | parts of the agent's configuration in `crib run` and `crib agent` |

pub mod args;
pub mod columns;
pub mod dirs;
pub mod exit;
pub mod limits;
pub mod live;
pub mod logging;
pub mod node;
pub mod pod_dialer;
pub mod pull_secrets;
pub mod report;
pub mod run_socket;
pub mod service_stream;
pub mod signals;
pub mod terminal_text;
pub mod volumes_in_memory;
pub mod waiting;

pub use file_tree::named_text;
