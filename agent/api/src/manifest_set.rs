//! ◆ The objects of all manifests together: conflicts between them, and an API server's warnings. Pure.

pub mod extended_resources;
pub mod fractional_bytes;
pub mod owned_objects;
pub mod reserved_names;

use crate::manifest::Workload;
use crate::pod::Pod;

/// The bare pods (`pod default/web`), and one example pod of each object that creates pods (`deployment default/web`).
pub fn named_pods<'a>(
    pods: &'a [Pod],
    workloads: &'a [Workload],
) -> impl Iterator<Item = (String, Pod)> + 'a {
    let bare = pods.iter().map(|pod| (format!("pod {}", pod.full_name()), pod.clone()));
    let made = workloads.iter().map(|workload| (workload.full_name(), workload.example()));
    bare.chain(made)
}
