//! The subcommands of `crib`, one module each.
//!
//! | folder | commands |
//! |---|---|
//! | `runs` | `get`, `describe`, `down`, `explain-run`, `volume`: runs of `crib run`, their objects and volumes |
//! | `servers` | `runtime`, `agent`, `registry`, `proxy` |
//! | `listing` | `ps`, `pods`, `images`, `inspect`, `stats`, `events` and their kind |
//! | `lifecycle` | `runp`, `create`, `start`, `stop`, `rm`, `update`, `checkpoint` and their kind |
//! | `image_store` | `pull`, `load`, `rmi` |
//! | `streams` | `exec`, `attach`, `logs`, `port-forward` |
//! | `measures` | `check`, `bench` |
//! | `shell` | `completions`, `man` |
//!
//! `explain_run::model` ◆ decides what is explained and `explain_run::text` ◆ formats it; `describe::pod` ◆ formats a pod that an agent
//! reports, `describe::from_cri` one that only a runtime knows. `get::printers` ◆ has the tables of `crib get`, `get::jsonpath` ◆ its
//! templates.

pub(crate) mod image_store;
pub(crate) mod lifecycle;
pub(crate) mod listing;
pub(crate) mod measures;
mod prelude;
pub(crate) mod runs;
pub(crate) mod servers;
pub(crate) mod shell;
pub(crate) mod streams;
