//! The part of an API server that concerns single objects: it decodes, defaults and validates manifests, matches labels, computes
//! quantities, and patches objects. Pure: no tasks, files, processes or clocks.
//!
//! | module | responsibility |
//! |---|---|
//! | [`manifest`] | converts YAML to objects; reports all errors, each with file, line and path |
//! | `manifest::validate` | validates manifests: a file for each kind, a folder for pods |
//! | `manifest::fields` ◆ | which fields have an effect: one table, from which docs/manifests.md is generated |
//! | `manifest::static_pod` | manifests as a kubelet reads static pods |
//! | `manifest::schedule` ◆ | cron expressions and their next times; time zones are part of the program |
//! | `manifest::workload` | objects with controllers, and which of their fields may change |
//! | [`manifest_set`] ◆ | the objects of all manifests together |
//! | [`claims`] ◆ | which volume a claim is bound to |
//! | [`pod`], [`pod_update`] ◆ | an accepted pod, and which of its fields may change |
//! | [`patch`] ◆ | JSON merge patches and strategic merge patches |
//! | [`quantity`], [`totals`], [`qos`], [`selector`], [`duration`] ◆ | values, and computations with them |
//! | [`generated_names`] ◆ | names and uids from a seed; stable hashes |
//!
//! This package uses no runtime, agent or terminal: the store, the agent and the commands use it.

pub mod claims;
pub mod duration;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod generated_names;
pub mod manifest;
pub mod manifest_set;
pub mod patch;
pub mod pod;
pub mod pod_update;
pub mod qos;
pub mod quantity;
pub mod selector;
pub mod totals;
