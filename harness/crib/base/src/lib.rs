//! What the commands of `crib` share that run pods: values on the command line, exit codes, messages, logs, signals, default
//! directories, and how one command finds and asks the runs of another.
//!
//! | module | what |
//! |---|---|
//! | `args`, `named_text`, `pull_secrets` | values and files that a user names |
//! | `exit`, `report`, `terminal_text`, `columns`, `waiting` | exit codes, and what is printed |
//! | `logging`, `signals`, `limits` | logs, signals, limits of the process |
//! | `dirs`, `volumes_in_memory` | default directories; volumes on tmpfs |
//! | `live`, `run_socket` | the runs of other commands: found, and asked |
//! | `node`, `pod_dialer`, `service_stream` | what the agent of `crib run` and `crib agent` is given |

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
