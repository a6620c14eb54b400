//! ◆ Pods of manifests with names that StatefulSets need. Pure.

use crate::manifest::{Workload, WorkloadObject};
use crate::pod::Pod;
use k8s_openapi::api::apps::v1::StatefulSet;

/// A sentence for each such pod: the set would wait for its removal forever.
pub fn problems(pods: &[Pod], workloads: &[Workload]) -> Vec<String> {
    let taken = |pod: &Pod| {
        let owner = workloads.iter().find(|workload| {
            let of_set = match &workload.object {
                WorkloadObject::StatefulSet(set) => has_pod(set, workload.name(), pod.name()),
                WorkloadObject::CronJob(_)
                | WorkloadObject::DaemonSet(_)
                | WorkloadObject::Deployment(_)
                | WorkloadObject::Job(_)
                | WorkloadObject::ReplicaSet(_)
                | WorkloadObject::ReplicationController(_) => false,
            };
            of_set && workload.namespace() == pod.namespace()
        })?;
        let (file, name) = (pod.origin(), pod.full_name());
        let example = owner.example();
        let place = match example.origin() {
            other if other == file => String::new(),
            other => format!(" in {other}"),
        };
        let owner = owner.full_name();
        Some(format!(
            "{file}: pod {name} has the same name as a pod of {owner}{place}: give one of them another name"
        ))
    };
    pods.iter().filter_map(taken).collect()
}

/// Whether a StatefulSet with this name has a pod with that name.
#[must_use]
pub fn has_pod(set: &StatefulSet, name: &str, pod: &str) -> bool {
    let ordinal = pod.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    let number = ordinal.and_then(|ordinal| ordinal.parse::<i32>().ok());
    let number = number.filter(|number| ordinal == Some(number.to_string().as_str()));
    let spec = set.spec.as_ref();
    let ordinals = spec.and_then(|spec| spec.ordinals.as_ref());
    let first = ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0);
    let count = spec.and_then(|spec| spec.replicas).unwrap_or(1);
    number.is_some_and(|number| (first..first.saturating_add(count)).contains(&number))
}

#[cfg(test)]
mod tests {
    use crate::manifest::{Strictness, parse};
    use rstest::rstest;

    use super::*;

    fn of(name: &str, namespace: &str) -> Vec<String> {
        let containers = "{containers: [{name: c, image: x}]}";
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {containers}\n"
        );
        let set = format!(
            "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: db}}\nspec:\n  replicas: 2\n  ordinals: {{start: 1}}\n  \
             serviceName: db\n  selector: {{matchLabels: {{a: b}}}}\n  template: {{metadata: {{labels: {{a: b}}}}, spec: {containers}}}\n"
        );
        let pods = parse("pod.yaml", &pod, Strictness::Strict);
        let sets = parse("set.yaml", &set, Strictness::Strict);
        assert_eq!((pods.pods.len(), sets.workloads.len()), (1, 1));
        problems(&pods.pods, &sets.workloads)
    }

    #[test]
    fn pod_with_name_of_a_pod_of_a_stateful_set_is_refused() {
        let sentence = "pod.yaml: pod default/db-2 has the same name as a pod of statefulset default/db in set.yaml: give one of them \
                        another name";
        assert_eq!(of("db-2", "default"), [sentence]);
    }

    #[rstest]
    #[case::below("db-0", "default")]
    #[case::above("db-3", "default")]
    #[case::another_spelling("db-01", "default")]
    #[case::another_set("web-1", "default")]
    #[case::another_namespace("db-1", "other")]
    fn pod_with_another_name_is_accepted(#[case] name: &str, #[case] namespace: &str) {
        assert_eq!(of(name, namespace), [""; 0]);
    }
}
