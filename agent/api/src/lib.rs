//! What an API server knows of objects: manifests are decoded, defaulted and validated; labels are selected, quantities
//! summed, objects patched. Pure: no tasks, files, processes or clocks.
//!
//! | module | what |
//! |---|---|
//! | [`manifest`] | YAML to objects, all errors at once, each with file, line and path |
//! | `manifest::validate` | what a manifest may say: a file for each kind, a folder for pods |
//! | `manifest::fields` ◆ | which fields have an effect: one table, from which docs/manifests.md is written |
//! | `manifest::static_pod` | manifests as a kubelet reads static pods |
//! | `manifest::schedule` ◆ | cron expressions and when they are due next; time zones are part of the program |
//! | `manifest::workload` | objects with controllers, and what may change of them |
//! | [`manifest_set`] ◆ | the objects of all manifests together |
//! | [`claims`] ◆ | which volume a claim is bound to |
//! | [`pod`], [`pod_update`] ◆ | an accepted pod, and what may change of it |
//! | [`patch`] ◆ | JSON merge patches and strategic merge patches |
//! | [`quantity`], [`totals`], [`qos`], [`selector`], [`duration`] ◆ | values, and what is computed from them |
//! | [`generated_names`] ◆ | names and uids from a seed; stable hashes |
//!
//! No runtime, agent or terminal is known here: the store, the agent and the commands use it.

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
