//! Runs of `crib run` from their start to their end, in the foreground and the background.

pub(crate) mod background;
pub(crate) mod boxes;
pub(crate) mod completions;
pub(crate) mod dead_runs;
pub(crate) mod debug;
pub(crate) mod describe;
pub(crate) mod events;
pub(crate) mod get;
pub(crate) mod kubectl_workflow;
pub(crate) mod lifecycle;
pub(crate) mod live;
pub(crate) mod names;
pub(crate) mod no_namespaces;
pub(crate) mod output;
pub(crate) mod paths_in_use;
pub(crate) mod reported;
pub(crate) mod run;
pub(crate) mod scale;
pub(crate) mod shutdown;
pub(crate) mod statuses;
pub(crate) mod temporary;
pub(crate) mod top;
pub(crate) mod usage;
pub(crate) mod wait;
pub(crate) mod workload_pods;
