//! Features of manifests: workload kinds, Services, volumes, and warnings.

pub(crate) mod behave;
pub(crate) mod cluster_manifests;
pub(crate) mod controllers;
pub(crate) mod examples;
pub(crate) mod explain_run;
pub(crate) mod host_names;
pub(crate) mod interpreters;
pub(crate) mod kinds;
pub(crate) mod pull_secrets;
pub(crate) mod runtime_classes;
pub(crate) mod secrets;
pub(crate) mod services;
pub(crate) mod trust_bundles;
pub(crate) mod volumes;
pub(crate) mod warnings;
pub(crate) mod watch;
