//! Control groups: limits, updates and OOM kills.

use std::collections::HashMap;

use cri::v1::{
    ContainerConfig, ContainerState, ContainerStatus, HugepageLimit, KeyValue,
    LinuxContainerResources, UpdateContainerResourcesRequest, UpdatePodSandboxResourcesRequest,
};
use harness::{Client, PATIENCE, Pod, Runtime, eventually, fixture, witness, witness::Witness};
use rstest::rstest;
use tonic::{Code, Status};

use crate::support::{Means, code, skip_if, trimmed};

const MIB: i64 = 1 << 20;

fn with(mut config: ContainerConfig, resources: LinuxContainerResources) -> ContainerConfig {
    config.linux.get_or_insert_default().resources = Some(resources);
    config
}

fn memory(limit: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        memory_limit_in_bytes: limit,
        ..Default::default()
    }
}

/// A container whose processes can be found from outside.
fn marked(mut config: ContainerConfig) -> (ContainerConfig, String) {
    let mark = fixture::unique("mark");
    config.envs.push(KeyValue {
        key: "CRIB_TEST_MARK".to_owned(),
        value: mark.clone().into(),
    });
    (config, format!("CRIB_TEST_MARK={mark}"))
}

async fn process(mark: &str) -> Witness {
    eventually(PATIENCE, "the container's process", || async {
        witness::marked(mark).first().copied().ok_or(())
    })
    .await
}

async fn update(client: &Client, id: &str, linux: LinuxContainerResources) -> Result<(), Status> {
    let request = UpdateContainerResourcesRequest {
        container_id: id.to_owned(),
        linux: Some(linux),
        ..Default::default()
    };
    let mut calls = client.runtime.clone();
    calls.update_container_resources(request).await.map(drop)
}

fn resources(status: &ContainerStatus) -> LinuxContainerResources {
    let resources = status.resources.clone().unwrap();
    resources.linux.unwrap()
}

fn reason(status: &ContainerStatus) -> (i32, &str) {
    (status.exit_code, status.reason.as_str())
}

/// The limits that the kernel applies to a process.
fn applied_limits(process: Witness) -> HashMap<&'static str, String> {
    let cpu = process.cgroup_file("cpu", "cpu.cfs_quota_us", "cpu.max");
    HashMap::from([
        (
            "quota",
            cpu.split(' ').next().unwrap_or_default().to_owned(),
        ),
        (
            "memory",
            process.cgroup_file("memory", "memory.limit_in_bytes", "memory.max"),
        ),
        ("pids", process.cgroup_file("pids", "pids.max", "pids.max")),
        (
            "cpus",
            process.cgroup_file("cpuset", "cpuset.cpus", "cpuset.cpus"),
        ),
        (
            "weight",
            process.cgroup_file("cpu", "cpu.shares", "cpu.weight"),
        ),
    ])
}

#[tokio::test]
async fn limits_apply_to_every_process_of_container() {
    let runtime = Runtime::start().await.unwrap();
    let means = Means::of(&runtime).await;
    skip_if!(
        "limits_apply_to_every_process_of_container",
        means.no_limits()
    );
    let pod = runtime.pod("p").await.unwrap();
    let wished = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 64 * MIB,
        cpuset_cpus: "0".to_owned(),
        cpuset_mems: "0".to_owned(),
        unified: HashMap::from([("pids.max".to_owned(), "77".to_owned())]),
        ..Default::default()
    };
    let (config, mark) = marked(with(fixture::forever("c"), wished.clone()));
    let id = pod.create(config).await.unwrap();
    // Before the start, the process does not have the mark in its environment.
    runtime.client.start(&id).await.unwrap();
    let found = applied_limits(process(&mark).await);
    assert_eq!(found["quota"], "50000");
    assert_eq!(found["memory"], (64 * MIB).to_string());
    assert_eq!(found["pids"], "77");
    assert_eq!(found["cpus"], "0");
    assert!(["512", "59"].contains(&&*found["weight"]), "{found:?}");
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(resources(&status), wished);
    // The limits apply to children and execs too.
    let inside = runtime
        .client
        .sh(&id, "export CRIB_TEST_MARK=exec; cat /proc/self/cgroup")
        .await
        .unwrap();
    for line in inside.lines() {
        assert!(line.ends_with(":/"), "not at its root: {line}");
    }
    let cgroups = process(&mark).await.cgroups();
    for process in witness::marked(&mark) {
        assert_eq!(process.cgroups(), cgroups);
    }
    let sleeps = runtime.client.sh(&id, "exec sleep 1000 & echo started");
    assert_eq!(trimmed(&sleeps.await.unwrap()), "started");
    let inner = cgroups.values().find(|at| at.ends_with(&id)).unwrap();
    let members = std::fs::read_to_string(inner.join("cgroup.procs")).unwrap();
    assert!(members.lines().count() >= 3, "{members}");
    let unlimited = pod.start(fixture::forever("unlimited")).await.unwrap();
    runtime.client.stop(&unlimited, 5).await.unwrap();
}

#[rstest]
#[case::negative_memory(memory(-2), "memory_limit_in_bytes -2 is negative")]
#[case::low_memory(memory(2000), "too low")]
#[case::swap(LinuxContainerResources { memory_swap_limit_in_bytes: MIB, ..memory(2 * MIB) }, "memory and swap together")]
#[case::quota(LinuxContainerResources { cpu_quota: -5, ..Default::default() }, "cpu_quota -5")]
#[case::period(LinuxContainerResources { cpu_period: i64::MAX, ..Default::default() }, "cpu_period")]
#[case::shares(LinuxContainerResources { cpu_shares: i64::MIN, ..Default::default() }, "cpu_shares")]
#[case::processors(LinuxContainerResources { cpuset_cpus: "all".into(), ..Default::default() }, "cpuset_cpus \"all\"")]
#[case::dot_dot(LinuxContainerResources { unified: HashMap::from([("../../cgroup.procs".into(), "1".into())]), ..Default::default() }, "is not a file of a cgroup")]
#[case::page(LinuxContainerResources { hugepage_limits: vec![HugepageLimit { page_size: "/../x".into(), limit: 1 }], ..Default::default() }, "page size")]
#[tokio::test]
async fn create_and_update_reject_invalid_limits(
    #[case] wished: LinuxContainerResources,
    #[case] complaint: &str,
) {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let refused = pod
        .create(with(fixture::forever("c"), wished.clone()))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains(complaint), "{refused}");
    let id = pod.create(fixture::forever("c")).await.unwrap();
    let refused = update(&runtime.client, &id, wished).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains(complaint), "{refused}");
    assert_eq!(runtime.client.container(&id).await.unwrap().resources, None);
}

#[tokio::test]
async fn create_rejects_cpuset_with_missing_cpu() {
    let runtime = Runtime::start().await.unwrap();
    let means = Means::of(&runtime).await;
    skip_if!("create_rejects_cpuset_with_missing_cpu", means.no_limits());
    let pod = runtime.pod("p").await.unwrap();
    let wished = LinuxContainerResources {
        cpuset_cpus: "1000".to_owned(),
        ..Default::default()
    };
    let refused = pod.create(with(fixture::forever("c"), wished)).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("cpuset.cpus"), "{refused}");
    // The failed create leaves nothing, and the name is free.
    pod.start(fixture::forever("c")).await.unwrap();
}

/// Exceeding the memory limit kills that container and no other.
#[tokio::test]
async fn container_over_memory_limit_exits_oomkilled() {
    let runtime = Runtime::start().await.unwrap();
    let means = Means::of(&runtime).await;
    skip_if!(
        "container_over_memory_limit_exits_oomkilled",
        means.no_limits()
    );
    let pod = runtime.pod("p").await.unwrap();
    let good = pod
        .start(with(fixture::forever("good"), memory(64 * MIB)))
        .await
        .unwrap();
    let all = (0..8).map(|number| {
        let pod = pod.clone();
        // The first process exceeds the limit, or a child whose exit code it returns.
        let script = if number % 2 == 0 {
            "exec tail /dev/zero"
        } else {
            "tail /dev/zero; exit $?"
        };
        let config = with(
            pod.script(&format!("bad-{number}"), script),
            memory(15 * MIB),
        );
        tokio::spawn(async move {
            let id = pod.start(config).await.unwrap();
            pod.ended(&id).await.unwrap()
        })
    });
    for ended in all.collect::<Vec<_>>() {
        let status = ended.await.unwrap();
        assert_eq!(reason(&status), (137, "OOMKilled"), "{status:?}");
        assert!(!status.message.is_empty());
    }
    let status = runtime.client.container(&good).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    runtime.client.stop(&good, 0).await.unwrap();
    let status = runtime.client.container(&good).await.unwrap();
    assert_eq!(reason(&status), (137, "Error"));
}

#[tokio::test]
async fn oom_killed_child_does_not_make_container_oomkilled() {
    let runtime = Runtime::start().await.unwrap();
    let means = Means::of(&runtime).await;
    skip_if!(
        "oom_killed_child_does_not_make_container_oomkilled",
        means.no_limits()
    );
    let pod = runtime.pod("p").await.unwrap();
    let script = "tail /dev/zero; echo $?; while :; do sleep 1000; done";
    let config = with(pod.script("c", script), memory(15 * MIB));
    let id = pod.start(config).await.unwrap();
    pod.logged(&id, "137").await.unwrap();
    runtime.client.stop(&id, 0).await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(reason(&status), (137, "Error"));
}

#[tokio::test]
async fn oom_kill_without_daemon_is_reported_after_restart() {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let means = Means::of(&runtime).await;
    skip_if!(
        "oom_kill_without_daemon_is_reported_after_restart",
        means.no_limits()
    );
    let pod = runtime.pod("p").await.unwrap();
    let volume = runtime.root().join("volume");
    std::fs::create_dir(&volume).unwrap();
    let at = volume.display();
    let script = format!("until [ -e {at}/go ]; do sleep 0.02; done; exec tail /dev/zero");
    let (mut config, mark) = marked(with(pod.script("c", &script), memory(15 * MIB)));
    config.mounts = vec![cri::v1::Mount {
        host_path: volume.display().to_string(),
        container_path: volume.display().to_string(),
        ..Default::default()
    }];
    let id = pod.start(config).await.unwrap();
    process(&mark).await;
    runtime.kill9().await;
    std::fs::write(volume.join("go"), "").unwrap();
    eventually(PATIENCE, "the container's end", || async {
        let left = witness::marked(&mark);
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    runtime.restart().await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(reason(&status), (137, "OOMKilled"));
}

#[tokio::test]
async fn update_changes_limits_before_and_after_start() {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let means = Means::of(&runtime).await;
    skip_if!(
        "update_changes_limits_before_and_after_start",
        means.no_limits()
    );
    let pod = runtime.pod("p").await.unwrap();
    let first = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        ..memory(64 * MIB)
    };
    let (config, mark) = marked(with(fixture::forever("c"), first));
    let id = pod.create(config).await.unwrap();
    let second = LinuxContainerResources {
        cpu_quota: 20_000,
        ..memory(32 * MIB)
    };
    update(&runtime.client, &id, second).await.unwrap();
    runtime.client.start(&id).await.unwrap();
    let found = applied_limits(process(&mark).await);
    assert_eq!((&*found["quota"], &*found["memory"]), ("20000", "33554432"));
    // No limit: -1, as a kubelet sends it.
    let unlimited = LinuxContainerResources {
        cpu_quota: -1,
        ..memory(-1)
    };
    update(&runtime.client, &id, unlimited).await.unwrap();
    let found = applied_limits(process(&mark).await);
    assert!(["max", "-1"].contains(&&*found["quota"]), "{found:?}");
    // The kernel's greatest number of pages on v1.
    let memory_limits = ["max", "9223372036854771712"];
    assert!(memory_limits.contains(&&*found["memory"]), "{found:?}");
    // Up and down, beyond the previous limit of memory and swap.
    for (limit, quota) in [(128 * MIB, 200_000), (16 * MIB, 10_000), (48 * MIB, -1)] {
        let next = LinuxContainerResources {
            cpu_quota: quota,
            ..memory(limit)
        };
        update(&runtime.client, &id, next).await.unwrap();
        let found = applied_limits(process(&mark).await);
        assert_eq!(found["memory"], limit.to_string());
        assert!(
            ["max", &quota.to_string()].contains(&&*found["quota"]),
            "{found:?}"
        );
    }
    runtime.kill9().await;
    runtime.restart().await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    let expected = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: -1,
        ..memory(48 * MIB)
    };
    assert_eq!(resources(&status), expected);
    update(&runtime.client, &id, memory(40 * MIB))
        .await
        .unwrap();
    let found = applied_limits(process(&mark).await);
    assert_eq!(found["memory"], (40 * MIB).to_string());
    runtime.client.stop(&id, 5).await.unwrap();
    let late = update(&runtime.client, &id, memory(30 * MIB)).await;
    assert_eq!(code(late), Code::FailedPrecondition);
    let unknown = update(&runtime.client, "nobody", memory(30 * MIB)).await;
    assert_eq!(code(unknown), Code::NotFound);
}

#[tokio::test]
async fn update_rejects_memory_limit_below_usage() {
    let runtime = Runtime::start().await.unwrap();
    let means = Means::of(&runtime).await;
    skip_if!("update_rejects_memory_limit_below_usage", means.no_limits());
    let pod = runtime.pod("p").await.unwrap();
    let script = r#"exec perl -e '$x = "x" x (40 << 20); $| = 1; print "ready\n"; sleep 1000'"#;
    let wished = LinuxContainerResources {
        cpu_shares: 512,
        ..memory(128 * MIB)
    };
    let (config, mark) = marked(with(pod.script("c", script), wished.clone()));
    let id = pod.start(config).await.unwrap();
    pod.logged(&id, "ready").await.unwrap();
    // The rest of the update is not applied either.
    let less = LinuxContainerResources {
        cpu_shares: 100,
        ..memory(20 * MIB)
    };
    let refused = update(&runtime.client, &id, less).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("the old limit stays"),
        "{refused}"
    );
    let found = applied_limits(process(&mark).await);
    assert_eq!(found["memory"], (128 * MIB).to_string());
    assert!(["512", "59"].contains(&&*found["weight"]), "{found:?}");
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(resources(&status), wished);
    assert_eq!(status.state(), ContainerState::ContainerRunning);
}

#[tokio::test]
async fn pod_cpu_shares_set_weight_of_pod_cgroup() {
    let runtime = Runtime::start().await.unwrap();
    let means = Means::of(&runtime).await;
    skip_if!("pod_cpu_shares_set_weight_of_pod_cgroup", means.no_limits());
    let mut config = runtime.sandbox("p");
    let shares = |cpu_shares| LinuxContainerResources {
        cpu_shares,
        // A kubelet sums the limits of containers that have one; this is not a limit of the pod.
        ..memory(MIB)
    };
    config.linux.get_or_insert_default().resources = Some(shares(1024));
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let (config, mark) = marked(fixture::forever("c"));
    let id = pod.start(config).await.unwrap();
    let cgroups = process(&mark).await.cgroups();
    let weight = || {
        let files = cgroups.values().filter_map(|at| {
            let pod = at.parent()?;
            ["cpu.shares", "cpu.weight"]
                .iter()
                .find_map(|name| std::fs::read_to_string(pod.join(name)).ok())
        });
        let found: Vec<String> = files.collect();
        trimmed(&found[0]).to_owned()
    };
    assert!(["1024", "100"].contains(&&*weight()), "{}", weight());
    let request = UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id.clone(),
        resources: Some(shares(2048)),
        overhead: None,
    };
    let mut calls = runtime.client.runtime.clone();
    calls.update_pod_sandbox_resources(request).await.unwrap();
    assert!(["2048", "174"].contains(&&*weight()), "{}", weight());
    let request = UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id.clone(),
        resources: Some(LinuxContainerResources {
            cpu_quota: -1,
            ..memory(-1)
        }),
        overhead: None,
    };
    calls.update_pod_sandbox_resources(request).await.unwrap();
    assert!(["2048", "174"].contains(&&*weight()), "{}", weight());
    let request = UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id.clone(),
        resources: Some(memory(-2)),
        overhead: None,
    };
    let refused = calls.update_pod_sandbox_resources(request).await;
    assert_eq!(code(refused), Code::InvalidArgument);
    assert_eq!(runtime.client.sh(&id, "echo fine").await.unwrap(), "fine\n");
}
