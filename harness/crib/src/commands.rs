//! The subcommands of `crib`, one module each.

pub(crate) mod agent;
pub(crate) mod attach;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod completions;
pub(crate) mod create;
pub(crate) mod describe;
pub(crate) mod down;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod explain_run;
pub(crate) mod imagefsinfo;
pub(crate) mod images;
pub(crate) mod info;
pub(crate) mod inspect;
pub(crate) mod inspecti;
pub(crate) mod inspectp;
mod interruptible;
pub(crate) mod load;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod metricdescs;
pub(crate) mod metricsp;
pub(crate) mod pods;
pub(crate) mod port_forward;
pub(crate) mod proxy;
pub(crate) mod ps;
pub(crate) mod pull;
pub(crate) mod pull_secrets;
pub(crate) mod registry;
pub(crate) mod rm;
pub(crate) mod rmi;
pub(crate) mod rmp;
pub(crate) mod run;
pub(crate) mod runp;
pub(crate) mod runtime;
pub(crate) mod runtime_config;
pub(crate) mod start;
pub(crate) mod stats;
pub(crate) mod statsp;
pub(crate) mod stop;
pub(crate) mod stopp;
pub(crate) mod update;
pub(crate) mod update_runtime_config;
pub(crate) mod version;
pub(crate) mod volume;

/// The name of this machine, which pods see as the name of their node.
pub(crate) fn node_name() -> String {
    let name = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty())
        .map_or_else(|| "localhost".to_owned(), |name| name.to_lowercase())
}
