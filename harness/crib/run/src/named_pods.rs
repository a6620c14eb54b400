//! The pods that manifests make, each with what people know it by.

use api::manifest::Workload;
use api::pod::Pod;

/// The bare pods (`pod default/web`), and an example of those of each object that makes pods (`deployment default/web`).
pub fn named_pods<'a>(
    pods: &'a [Pod],
    workloads: &'a [Workload],
) -> impl Iterator<Item = (String, Pod)> + 'a {
    let bare = pods.iter().map(|pod| (format!("pod {}", pod.full_name()), pod.clone()));
    let made = workloads.iter().map(|workload| (workload.full_name(), workload.example()));
    bare.chain(made)
}
