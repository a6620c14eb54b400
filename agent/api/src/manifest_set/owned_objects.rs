//! ◆ Objects that a controller in the same manifests creates: `kubectl get all -o yaml` prints both. Pure.

use compact::Set;

use crate::manifest::Workload;
use crate::pod::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Removes pods, and objects that create pods, whose controller is in the manifests too, because it creates them again. Returns the
/// messages.
pub fn remove_owned(pods: &mut Vec<Pod>, workloads: &mut Vec<Workload>) -> Vec<String> {
    let controllers: Set<String> = workloads.iter().map(Workload::full_name).collect();
    let owner = |namespace: &str, metadata: &ObjectMeta| {
        let mut owners = metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true))?;
        let name = format!("{} {namespace}/{}", owner.kind.to_lowercase(), owner.name);
        controllers.contains(&name).then_some(name)
    };
    let mut warnings = Vec::new();
    let mut leave = |name: String, owner: Option<String>| match owner {
        Some(owner) => {
            warnings.push(format!(
                "{name} is skipped: {owner} is in the manifests too, and creates it"
            ));
            false
        }
        None => true,
    };
    pods.retain(|pod| {
        let name = format!("pod {}", pod.full_name());
        leave(name, owner(pod.namespace(), &pod.api().metadata))
    });
    workloads.retain(|workload| {
        let owner = owner(workload.namespace(), workload.metadata());
        leave(workload.full_name(), owner)
    });
    warnings
}
