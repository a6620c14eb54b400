//! The order of steps, and their content.
#![allow(clippy::unwrap_used)]

use compact::Map;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;

fn pod(containers: &[(&str, Value)]) -> Pod {
    let containers: Vec<Value> = containers
        .iter()
        .map(|(name, resources)| json!({"name": name, "resources": resources}))
        .collect();
    fixtures::pod(
        json!({"metadata": {"uid": "u", "name": "p"}, "spec": {"containers": containers}}),
    )
}

fn node() -> Node {
    let mut node = Node::new("n", "/r", "/l");
    node.cgroup_version = CgroupVersion::V1;
    node.memory_capacity = 8 << 30;
    node
}

/// CPU and memory, as requests and limits.
fn both(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

/// The resize of running containers from `old` to `new`.
fn resize(old: &Pod, new: &Pod) -> (Resize, Actuated) {
    let actuated = Actuated::new(old, &node());
    let mut resize = Resize::default();
    let of = |container: &Container| ContainerResize {
        id: ContainerId::new(format!("id-{}", container.name)),
        name: container.name.clone(),
        from: actuated.container(&container.name),
        to: CpuMemory::of_container(new, container),
    };
    for container in new.containers() {
        let of = of(container);
        if of.from.memory_limit != of.to.memory_limit
            || of.from.memory_request != of.to.memory_request
        {
            resize.memory.push(of.clone());
        }
        if of.from.cpu_limit != of.to.cpu_limit || of.from.cpu_request != of.to.cpu_request {
            resize.cpu.push(of);
        }
    }
    (resize, actuated)
}

fn shown(steps: &[Step]) -> Vec<String> {
    let words = |resources: &Resources| {
        format!(
            "shares={} quota={} memory={}",
            resources.cpu_shares,
            resources.cpu_quota,
            resources.memory_limit >> 20
        )
    };
    let show = |step: &Step| match step {
        Step::Pod { of, resources, .. } => format!("pod {of} {}", words(resources)),
        Step::Container { name, resources, .. } => format!("{name} {}", words(resources)),
        Step::Whole(_) => "whole".to_owned(),
    };
    steps.iter().map(show).collect()
}

#[rstest]
#[case::more(
    ("1", "64Mi"),
    ("2", "128Mi"),
    &[
        "pod memory shares=1024 quota=100000 memory=128",
        "a shares=1024 quota=100000 memory=128",
        "pod cpu shares=1024 quota=200000 memory=128",
        "pod cpu shares=2048 quota=200000 memory=128",
        "a shares=2048 quota=200000 memory=128",
    ]
)]
#[case::less(
    ("2", "128Mi"),
    ("1", "64Mi"),
    &[
        "a shares=2048 quota=200000 memory=64",
        "pod memory shares=2048 quota=200000 memory=64",
        "a shares=1024 quota=100000 memory=64",
        "pod cpu shares=1024 quota=200000 memory=64",
        "pod cpu shares=1024 quota=100000 memory=64",
    ]
)]
#[case::cpu_alone(
    ("1", "64Mi"),
    ("2", "64Mi"),
    &[
        "pod cpu shares=1024 quota=200000 memory=64",
        "pod cpu shares=2048 quota=200000 memory=64",
        "a shares=2048 quota=200000 memory=64",
    ]
)]
fn pod_grows_before_and_shrinks_after_its_containers(
    #[case] old: (&str, &str),
    #[case] new: (&str, &str),
    #[case] expected: &[&str],
) {
    let (old, new) = (pod(&[("a", both(old.0, old.1))]), pod(&[("a", both(new.0, new.1))]));
    let (resize, actuated) = resize(&old, &new);
    let steps = steps(&new, &resize, &actuated, &node());
    assert_eq!(shown(&steps), expected);
}

#[test]
fn pod_without_limits_keeps_none() {
    let requests = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let (old, new) = (pod(&[("a", requests("1"))]), pod(&[("a", requests("2"))]));
    let (resize, actuated) = resize(&old, &new);
    let steps = steps(&new, &resize, &actuated, &node());
    let Step::Pod { resources, .. } = &steps[0] else {
        panic!("{steps:?}");
    };
    assert_eq!((resources.cpu_quota, resources.cpu_shares), (-1, 2048));
    assert_eq!(resources.memory_limit, UNLIMITED_MEMORY);
    assert_eq!(steps.len(), 2);
}

#[test]
fn container_record_has_the_actuated_resources() {
    let (old, new) = (pod(&[("a", both("1", "64Mi"))]), pod(&[("a", both("2", "128Mi"))]));
    let (resize, actuated) = resize(&old, &new);
    let sent: Vec<CpuMemory> = steps(&new, &resize, &actuated, &node())
        .into_iter()
        .filter_map(|step| match step {
            Step::Container { now, .. } => Some(now),
            Step::Pod { .. } | Step::Whole(_) => None,
        })
        .collect();
    assert_eq!(sent[0].cpu_limit, 1000);
    assert_eq!(sent[0].memory_limit, 128 << 20);
    assert_eq!(sent[1], CpuMemory::of_container(&new, &new.containers()[0]));
}

#[rstest]
#[case::grows("64Mi", "128Mi", 100, None)]
#[case::shrinks_enough("128Mi", "64Mi", 10, None)]
#[case::in_use(
    "128Mi",
    "64Mi",
    100,
    Some(
        "cannot decrease memory limits: [attempting to set pod memory limit (67108864) below current usage (104857600), attempting to set container \"a\" memory limit (67108864) below current usage (104857600)]"
    )
)]
fn limit_does_not_shrink_below_what_is_used(
    #[case] old: &str,
    #[case] new: &str,
    #[case] used: u64,
    #[case] message: Option<&str>,
) {
    let (old, new) = (pod(&[("a", both("1", old))]), pod(&[("a", both("1", new))]));
    let (resize, actuated) = resize(&old, &new);
    let limits = NewLimits::of(&new, &resize, &actuated, &node());
    let usage = MemoryUsage {
        pod: Some(used << 20),
        containers: Map::from([("a".to_owned(), Some(used << 20))]),
    };
    assert_eq!(
        limits.any(),
        new.containers()[0].resources.clone().unwrap().limits.unwrap()["memory"].0 == "64Mi"
    );
    assert_eq!(limits.check(&usage).err().as_deref(), message);
}

#[test]
fn message_about_a_container_has_the_usage_of_its_pod() {
    let limits = NewLimits { pod: None, containers: Map::from([("a".to_owned(), 10)]) };
    let used = |pod| MemoryUsage { pod, containers: Map::from([("a".to_owned(), Some(20))]) };
    let message = |pod| limits.check(&used(pod)).unwrap_err();
    let begin = "cannot decrease memory limits: attempting to set container \"a\" memory limit (10) below current usage";
    assert_eq!(message(Some(30)), format!("{begin} (30)"));
    assert_eq!(message(None), format!("{begin} (20)"));
}
