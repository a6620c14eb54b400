//! The subcommands of `crib`, one module each.
//!
//! | folder | commands |
//! |---|---|
//! | `runs` | `get`, `describe`, `wait`, `rollout`, `scale`, `top`, `down`, `explain-run`, `volume`: runs, their objects and volumes |
//! | `servers` | `runtime`, `agent`, `kubelet`, `registry`, `proxy` |
//! | `listing` | `ps`, `pods`, `images`, `inspect`, `stats`, `events`, `info`, `version` and related commands |
//! | `lifecycle` | `runp`, `create`, `start`, `stop`, `rm`, `update`, `checkpoint` and related commands |
//! | `image_store` | `pull`, `load`, `rmi` |
//! | `streams` | `exec`, `attach`, `cp`, `debug`, `logs`, `port-forward` |
//! | `measures` | `check`, `bench` |
//! | `shell` | `completions`, `man` |
//!
//! `explain_run::model` ◆ computes the explanation, and `explain_run::text` ◆ formats it. `describe::pod` ◆ formats a pod that an
//! agent reports, `describe::from_cri` a pod that only a runtime reports. `get::printers` ◆ contains the tables of `crib get`.

pub(crate) mod measures;
mod prelude;
pub(crate) mod runs;
pub(crate) mod shell;
pub(crate) mod streams;

pub(crate) mod image_store {
    //! Commands that add and remove images.

    pub(crate) mod load;
    pub(crate) mod pull;
    pub(crate) mod rmi;
}

pub(crate) mod lifecycle {
    //! Commands that create, change and remove pods and containers, as in crictl.

    pub(crate) mod create;
    pub(crate) mod rm;
    pub(crate) mod runp;
    pub(crate) mod start;
    pub(crate) mod update;
}

pub(crate) mod listing {
    //! Commands that show the state of a runtime.

    pub(crate) mod events;
    pub(crate) mod images;
    pub(crate) mod info;
    pub(crate) mod inspect;
    pub(crate) mod metricsp;
    pub(crate) mod pods;
    pub(crate) mod ps;
    pub(crate) mod stats;
    pub(crate) mod statsp;
    pub(crate) mod version;
}

pub(crate) mod servers {
    //! Commands that run servers: the runtime, the agent, a registry and the proxy.

    pub(crate) mod agent;
    pub(crate) mod kubelet;
    pub(crate) mod proxy;
    pub(crate) mod registry;
    pub(crate) mod runtime;
}
