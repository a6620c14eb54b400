//! The objects of one cluster, as an API server keeps them, without HTTP.
//!
//! [`Store`] is the hub: writers of objects write there, and readers watch it. All watchers see one order of writes.
//!
//! This package knows no runtime, no agent and no HTTP: an adapter runs the pods, which is `hub` in `crib run`. Controllers
//! decide; `manager` has them watch the store, and its caller has the clock, and creates and deletes their pods.
//!
//! | file | what |
//! |---|---|
//! | `store` | the store that tasks share, and watches |
//! | `state` ◆ | the objects, their versions and the history of changes |
//! | `write` ◆ | what a create, an update and each subresource may change of an object |
//! | `scale` ◆ | the subresource `scale` |
//! | `patch` ◆ | merge patches and strategic merge patches |
//! | `delete` ◆ | what a delete does: a grace period, finalizers, or the end |
//! | `selection` ◆ | which objects a list or a watch is about |
//! | `key`, `kind` ◆ | what an object is found by; kinds, and how their objects are kept |
//! | `object` ◆ | one object and its metadata |
//! | `controllers` ◆ | what Jobs, Deployments and their kind want: pods to create and to delete; a file for each kind |
//! | `controllers::rollout` ◆ | how a changed object replaces its pods |
//! | `controllers::cron_job` ◆ | when a CronJob starts a Job; `api::manifest::schedule` has the times |
//! | `apply` ◆ | what a change of manifests does to the objects that they have |
//! | `endpoint_slices` | the controller that watches Services and pods, and keeps the EndpointSlices of those that changed |
//! | `claims` | the controller that binds claims to volumes, or to directories |
//! | `manager` | the task of all controllers: it watches the store, and writes statuses and what controllers make |
//! | `garbage` ◆ | what becomes of objects whose owners are deleted |
//!
//! Files with ◆ are pure. Objects of kinds that nobody knows are kept as they are.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/registry and pkg/registry.

pub mod apply;
pub mod claims;
pub mod controllers;
mod delete;
pub mod endpoint_slices;
mod error;
#[cfg(test)]
mod fixtures;
mod followed;
pub mod garbage;
mod key;
mod kind;
pub mod manager;
mod object;
mod patch;
mod scale;
mod selection;
mod state;
mod store;
mod write;

pub use delete::{DeleteOptions, Deleted, Propagation};
pub use error::Error;
pub use key::Key;
pub use kind::Kind;
pub use object::Object;
pub use patch::Patch;
pub use selection::Selection;
pub use state::{Event, List};
pub use store::{Store, Watch};
pub use write::Part;
