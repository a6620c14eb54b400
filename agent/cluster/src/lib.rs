//! The objects of one cluster, stored as by an API server, without HTTP.
//!
//! [`Store`] is the hub: writers of objects write to it, and readers watch it. All watchers see the writes in the same order.
//!
//! This package uses no runtime, no agent and no HTTP: an adapter runs the pods (`hub` in `crib run`). Controllers decide;
//! `manager` lets them watch the store, and its caller passes the time, and creates and deletes their pods.
//!
//! | file | responsibility |
//! |---|---|
//! | `store` | the store that tasks share, and watches |
//! | `state` ◆ | the objects, their versions and the history of changes |
//! | `write` ◆ | which fields of an object a create, an update and each subresource may change |
//! | `patch` ◆ | merge patches and strategic merge patches |
//! | `delete` ◆ | the effect of a delete: a grace period, finalizers, or removal |
//! | `selection` ◆ | which objects a list or a watch selects |
//! | `key`, `kind` ◆ | the key of an object; kinds, and the rules for storing them |
//! | `object` ◆ | one object and its metadata |
//! | `controllers` ◆ | plans of Jobs, Deployments and the like: pods to create and to delete; a file for each kind |
//! | `controllers::rollout` ◆ | how a changed object replaces its pods |
//! | `controllers::cron_job` ◆ | when a CronJob starts a Job; `api::manifest::schedule` computes the times |
//! | `apply` ◆ | the effects of changed manifests on their objects |
//! | `endpoint_slices` | the controller that watches Services and pods, and updates the EndpointSlices of changed ones |
//! | `claims` | the controller that binds claims to volumes, or to directories |
//! | `manager` | the task of all controllers: it watches the store, and writes statuses and created objects |
//! | `garbage` ◆ | what happens to objects whose owners are deleted |
//!
//! Files with ◆ are pure. Objects of unknown kinds are stored unchanged.
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
