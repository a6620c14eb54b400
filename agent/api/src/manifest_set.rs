//! ◆ The objects of all manifests together: what is wrong with one beside the others, or what an API server warns of. Pure.

pub mod extended_resources;
pub mod fractional_bytes;
pub mod owned_objects;
pub mod reserved_names;

use crate::manifest::Workload;
use crate::pod::Pod;

/// The bare pods (`pod default/web`), and an example of those of each object that makes pods (`deployment default/web`).
pub fn named_pods<'a>(
    pods: &'a [Pod],
    workloads: &'a [Workload],
) -> impl Iterator<Item = (String, Pod)> + 'a {
    let bare = pods.iter().map(|pod| (format!("pod {}", pod.full_name()), pod.clone()));
    let made = workloads.iter().map(|workload| (workload.full_name(), workload.example()));
    bare.chain(made)
}
