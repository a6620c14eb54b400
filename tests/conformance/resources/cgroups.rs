//! Cgroups: limits, updates and OOM kills.

use std::collections::HashMap;

use cri::v1::{
    ContainerConfig, ContainerState, ContainerStatus, HugepageLimit, LinuxContainerResources,
    UpdatePodSandboxResourcesRequest,
};

use crate::support::*;

const MIB: i64 = 1 << 20;

fn with(mut config: ContainerConfig, resources: LinuxContainerResources) -> ContainerConfig {
    config.linux.get_or_insert_default().resources = Some(resources);
    config
}

fn memory(limit: i64) -> LinuxContainerResources {
    LinuxContainerResources { memory_limit_in_bytes: limit, ..Default::default() }
}

fn resources(status: &ContainerStatus) -> LinuxContainerResources {
    let resources = status.resources.clone().unwrap();
    resources.linux.unwrap()
}

fn reason(status: &ContainerStatus) -> (i32, &str) {
    (status.exit_code, status.reason.as_str())
}

/// The limits that the kernel applies to a process.
fn applied_limits(process: ObservedProcess) -> HashMap<&'static str, String> {
    let cpu = process.cgroup_file("cpu", "cpu.cfs_quota_us", "cpu.max");
    HashMap::from([
        ("quota", cpu.split(' ').next().unwrap_or_default().to_owned()),
        ("memory", process.cgroup_file("memory", "memory.limit_in_bytes", "memory.max")),
        ("pids", process.cgroup_file("pids", "pids.max", "pids.max")),
        ("cpus", process.cgroup_file("cpuset", "cpuset.cpus", "cpuset.cpus")),
        ("weight", process.cgroup_file("cpu", "cpu.shares", "cpu.weight")),
    ])
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
    let (runtime, pod) = with_pod().await;
    rejected(
        pod.create(with(fixture::forever("c"), wished.clone())).await,
        Code::InvalidArgument,
        complaint,
    );
    let id = pod.create(fixture::forever("c")).await.unwrap();
    rejected(runtime.client.update(&id, wished).await, Code::InvalidArgument, complaint);
    assert_eq!(runtime.client.container(&id).await.unwrap().resources, None);
}

#[tokio::test]
async fn create_rejects_cpuset_with_missing_cpu() {
    harness::needs!(Cgroups);
    let (_runtime, pod) = with_pod().await;
    let wished = LinuxContainerResources { cpuset_cpus: "1000".to_owned(), ..Default::default() };
    rejected(
        pod.create(with(fixture::forever("c"), wished)).await,
        Code::InvalidArgument,
        "cpuset.cpus",
    );
    // The failed create leaves nothing, and the name is free.
    pod.start(fixture::forever("c")).await.unwrap();
}

#[tokio::test]
async fn oom_killed_child_does_not_make_container_oomkilled() {
    harness::needs!(Cgroups);
    let (runtime, pod) = with_pod().await;
    let script = "tail /dev/zero; echo $?; while :; do sleep 1000; done";
    let id = pod.start(with(pod.script("c", script), memory(15 * MIB))).await.unwrap();
    pod.logged(&id, "137").await.unwrap();
    runtime.client.stop(&id, 0).await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(reason(&status), (137, "Error"));
}

#[tokio::test]
async fn oom_kill_without_daemon_is_reported_after_restart() {
    harness::needs!(Cgroups);
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let volume = runtime.root().join("volume");
    std::fs::create_dir(&volume).unwrap();
    let at = volume.display();
    let script = format!("until [ -e {at}/go ]; do sleep 0.02; done; exec tail /dev/zero");
    let (mut config, mark) = marked(with(pod.script("c", &script), memory(15 * MIB)));
    config.mounts = vec![Mount {
        host_path: volume.display().to_string(),
        container_path: volume.display().to_string(),
        ..Default::default()
    }];
    let id = pod.start(config).await.unwrap();
    process_of(&mark).await;
    runtime.kill9().await;
    std::fs::write(volume.join("go"), "").unwrap();
    all_gone("the container's end", || procfs::marked(&mark)).await;
    runtime.restart().await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(reason(&status), (137, "OOMKilled"));
}

#[tokio::test]
async fn update_changes_limits_before_and_after_start() {
    harness::needs!(Cgroups);
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let first =
        LinuxContainerResources { cpu_period: 100_000, cpu_quota: 50_000, ..memory(64 * MIB) };
    let (config, mark) = marked(with(fixture::forever("c"), first));
    let id = pod.create(config).await.unwrap();
    let second = LinuxContainerResources { cpu_quota: 20_000, ..memory(32 * MIB) };
    runtime.client.update(&id, second).await.unwrap();
    runtime.client.start(&id).await.unwrap();
    let found = applied_limits(process_of(&mark).await);
    assert_eq!((&*found["quota"], &*found["memory"]), ("20000", "33554432"));
    // No limit: -1, as a kubelet sends it.
    let unlimited = LinuxContainerResources { cpu_quota: -1, ..memory(-1) };
    runtime.client.update(&id, unlimited).await.unwrap();
    let found = applied_limits(process_of(&mark).await);
    assert!(["max", "-1"].contains(&&*found["quota"]), "{found:?}");
    // On v1, the kernel's maximum number of pages.
    let memory_limits = ["max", "9223372036854771712"];
    assert!(memory_limits.contains(&&*found["memory"]), "{found:?}");
    // Up and down, beyond the previous limit of memory and swap.
    for (limit, quota) in [(128 * MIB, 200_000), (16 * MIB, 10_000), (48 * MIB, -1)] {
        let next = LinuxContainerResources { cpu_quota: quota, ..memory(limit) };
        runtime.client.update(&id, next).await.unwrap();
        let found = applied_limits(process_of(&mark).await);
        assert_eq!(found["memory"], limit.to_string());
        assert!(["max", &quota.to_string()].contains(&&*found["quota"]), "{found:?}");
    }
    runtime.kill_and_restart().await.unwrap();
    let status = runtime.client.container(&id).await.unwrap();
    let expected =
        LinuxContainerResources { cpu_period: 100_000, cpu_quota: -1, ..memory(48 * MIB) };
    assert_eq!(resources(&status), expected);
    runtime.client.update(&id, memory(40 * MIB)).await.unwrap();
    let found = applied_limits(process_of(&mark).await);
    assert_eq!(found["memory"], (40 * MIB).to_string());
    runtime.client.stop(&id, 5).await.unwrap();
    let late = runtime.client.update(&id, memory(30 * MIB)).await;
    assert_eq!(code(late), Code::FailedPrecondition);
    let unknown = runtime.client.update("nobody", memory(30 * MIB)).await;
    assert_eq!(code(unknown), Code::NotFound);
}

#[tokio::test]
async fn update_rejects_memory_limit_below_usage() {
    harness::needs!(Cgroups);
    let (runtime, pod) = with_pod().await;
    let script = r#"exec perl -e '$x = "x" x (40 << 20); $| = 1; print "ready\n"; sleep 1000'"#;
    let wished = LinuxContainerResources { cpu_shares: 512, ..memory(128 * MIB) };
    let (config, mark) = marked(with(pod.script("c", script), wished.clone()));
    let id = pod.start_ready(config).await.unwrap();
    // The rest of the update is not applied, either.
    let less = LinuxContainerResources { cpu_shares: 100, ..memory(20 * MIB) };
    rejected(runtime.client.update(&id, less).await, Code::InvalidArgument, "the old limit stays");
    let found = applied_limits(process_of(&mark).await);
    assert_eq!(found["memory"], (128 * MIB).to_string());
    assert!(["512", "59"].contains(&&*found["weight"]), "{found:?}");
    let status = runtime.client.container(&id).await.unwrap();
    assert_eq!(resources(&status), wished);
    assert_eq!(status.state(), ContainerState::ContainerRunning);
}

#[tokio::test]
async fn pod_cpu_shares_set_weight_of_pod_cgroup() {
    harness::needs!(Cgroups);
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    let shares = |cpu_shares| LinuxContainerResources {
        cpu_shares,
        // A kubelet sends the sum of the containers' limits even if some have none; this is not a limit of the pod.
        ..memory(MIB)
    };
    config.linux.get_or_insert_default().resources = Some(shares(1024));
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let (config, mark) = marked(fixture::forever("c"));
    let id = pod.start(config).await.unwrap();
    let cgroups = process_of(&mark).await.cgroups();
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
        resources: Some(LinuxContainerResources { cpu_quota: -1, ..memory(-1) }),
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
