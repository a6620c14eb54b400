//! The subcommands of `crib`, one module each.

pub(crate) mod agent;
pub(crate) mod attach;
pub(crate) mod completions;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod images;
pub(crate) mod inspect;
pub(crate) mod inspecti;
pub(crate) mod inspectp;
pub(crate) mod load;
pub(crate) mod logs;
pub(crate) mod pods;
pub(crate) mod port_forward;
pub(crate) mod ps;
pub(crate) mod pull;
pub(crate) mod registry;
pub(crate) mod rmi;
pub(crate) mod run;
pub(crate) mod runtime;
pub(crate) mod stats;
pub(crate) mod version;

/// The name of this machine, which pods see as the name of their node.
pub(crate) fn node_name() -> String {
    let name = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty())
        .map_or_else(|| "localhost".to_owned(), |name| name.to_lowercase())
}
