//! ◆ Claims and PersistentVolumes that are not supported: an error if a pod uses them, else a warning. Pure.

use std::slice;

use agent::objects::ObjectMap;
use api::claims::{Binding, Bound, ClaimName, bind};
use api::manifest::storage::claims_of_pod;
use api::manifest::{Problem, Workload, WorkloadObject};
use api::manifest_set::named_pods;
use api::manifest_set::reserved_names::has_pod;
use api::pod::Pod;
use compact::Set;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::input::claims;

/// The messages about them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sorted {
    /// An error for each field, for claims and volumes that pods use.
    pub(crate) problems: Vec<String>,
    /// A warning for each object that no pod uses.
    pub(crate) warnings: Vec<String>,
}

/// Sorts the problems of claims and PersistentVolumes.
pub(crate) fn sort(
    found: &[Problem],
    pods: &[Pod],
    workloads: &[Workload],
    objects: &ObjectMap,
) -> Sorted {
    let mut sorted = Sorted::default();
    if found.is_empty() {
        return sorted;
    }
    let used = used(pods, workloads, objects);
    let mut unused: Vec<(&str, Vec<&Problem>)> = Vec::new();
    for problem in found {
        match problem.object.as_deref().filter(|object| !used.contains(*object)) {
            None => sorted.problems.push(problem.to_string()),
            Some(object) => match unused.iter_mut().find(|(known, _)| *known == object) {
                Some((_, problems)) => problems.push(problem),
                None => unused.push((object, vec![problem])),
            },
        }
    }
    let warnings = unused.iter().filter_map(|(object, problems)| warning(object, problems));
    sorted.warnings.extend(warnings);
    sorted
}

fn warning(object: &str, problems: &[&Problem]) -> Option<String> {
    let Problem { file, line, column, .. } = problems.first()?;
    let mut reasons = Vec::new();
    for Problem { path, message, .. } in problems {
        // The text after the colon is the remedy, which an unused object does not need.
        let reason = message.split_once(": ").map_or(message.as_str(), |(reason, _)| reason);
        let reason = format!("{path}: {reason}");
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    let reasons = reasons.join("; ");
    Some(format!("{file}:{line}:{column}: {object} is skipped, because no pod uses it ({reasons})"))
}

/// The full names of the claims and PersistentVolumes that pods use.
fn used(pods: &[Pod], workloads: &[Workload], objects: &ObjectMap) -> Set<String> {
    let users: Vec<Pod> = named_pods(pods, workloads).map(|(_, pod)| pod).collect();
    let mut mounted: Set<ClaimName> = claims::used(&users).into_iter().collect();
    let volumes = objects.persistent_volumes();
    let given = objects.persistent_volume_claims();
    let reserved = volumes.iter().filter_map(|volume| reserved_for(volume));
    let others = given.iter().map(|claim| ClaimName::of(claim)).chain(reserved);
    mounted.extend(others.filter(|name| is_of_stateful_set(workloads, name)));
    let names: Vec<ClaimName> = mounted.iter().cloned().collect();
    let (bindings, _) = claims::bindings(&names, objects);
    let bound = names.iter().filter_map(|name| match bindings.get(name) {
        Some(Ok(Binding::Volume(volume))) => Some(volume.as_str()),
        Some(Ok(Binding::Directory) | Err(_)) | None => None,
    });
    // The volume of a claim that is created with a pod is selected when the pod starts.
    let made = made_with_pods(&users, workloads);
    let may_get = volumes.iter().filter(|volume| {
        let mut made = made.iter();
        made.any(|claim| {
            let binding = bind(claim, slice::from_ref(*volume), &Bound::new());
            matches!(binding, Ok(Binding::Volume(_)))
        })
    });
    let may_get = may_get.filter_map(|volume| volume.metadata.name.as_deref());
    let volumes = bound.chain(may_get).map(|name| format!("persistentvolume {name}"));
    let claims = names.iter().map(|name| format!("persistentvolumeclaim {name}"));
    volumes.chain(claims).collect()
}

/// The claim that a volume's `claimRef` names.
fn reserved_for(volume: &PersistentVolume) -> Option<ClaimName> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let namespace = claim.namespace.as_deref().filter(|name| !name.is_empty());
    Some(ClaimName::new(namespace.unwrap_or("default"), claim.name.as_deref()?))
}

/// The StatefulSets among the workloads.
fn stateful_sets(workloads: &[Workload]) -> impl Iterator<Item = (&Workload, &StatefulSet)> {
    workloads.iter().filter_map(|workload| match &workload.object {
        WorkloadObject::StatefulSet(set) => Some((workload, set)),
        WorkloadObject::CronJob(_)
        | WorkloadObject::DaemonSet(_)
        | WorkloadObject::Deployment(_)
        | WorkloadObject::Job(_)
        | WorkloadObject::ReplicaSet(_)
        | WorkloadObject::ReplicationController(_) => None,
    })
}

/// Whether a pod of a StatefulSet mounts the claim.
fn is_of_stateful_set(workloads: &[Workload], claim: &ClaimName) -> bool {
    let mut sets = stateful_sets(workloads);
    sets.any(|(workload, set)| {
        let templates = set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter());
        let mut names = templates.flatten().filter_map(|claim| claim.metadata.name.as_deref());
        workload.namespace() == claim.namespace
            && names.any(|template| {
                let pod = claim.name.strip_prefix(template);
                let pod = pod.and_then(|rest| rest.strip_prefix('-'));
                pod.is_some_and(|pod| has_pod(set, workload.name(), pod))
            })
    })
}

/// Claims that are created with pods: of ephemeral volumes, and of StatefulSets with several pods.
fn made_with_pods(users: &[Pod], workloads: &[Workload]) -> Vec<PersistentVolumeClaim> {
    let ephemeral = users.iter().flat_map(|pod| {
        let volumes = pod.spec().volumes.iter().flatten();
        volumes.filter_map(|volume| {
            let template = volume.ephemeral.as_ref()?.volume_claim_template.clone()?;
            let mut metadata = template.metadata.unwrap_or_default();
            metadata.name = Some(format!("{}-{}", pod.name(), volume.name));
            metadata.namespace = Some(pod.namespace().to_owned());
            let spec = Some(template.spec);
            Some(PersistentVolumeClaim { metadata, spec, ..PersistentVolumeClaim::default() })
        })
    });
    let several = |set: &StatefulSet| {
        let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
        replicas.unwrap_or(1) > 1
    };
    let sets = stateful_sets(workloads).filter(|(_, set)| several(set));
    let of_sets = sets.flat_map(|(workload, set)| claims_of_pod(set, workload.name()));
    ephemeral.chain(of_sets).collect()
}

#[cfg(test)]
#[path = "unsupported_storage/tests.rs"]
mod tests;
