//! Summaries of scripted answers of a runtime and a machine.
#![allow(clippy::unwrap_used)]

use std::fs;

use agent::cri::{ListedSandbox, PodRef};
use api::pod::PodUid;
use compact::Map;

use super::*;
use crate::stats::proc::{Load, Memory};
use crate::stats::summary::InterfaceStats;

/// A machine with these values. Its file systems are named after the paths below `/`.
#[derive(Default)]
struct FakeMachine {
    load: Load,
    interfaces: Vec<InterfaceStats>,
    disks: Map<PathBuf, FsStats>,
    tasks: (Option<u64>, Option<u64>),
}

impl Machine for FakeMachine {
    fn load(&self) -> Load {
        self.load.clone()
    }

    fn interfaces(&self) -> Vec<InterfaceStats> {
        self.interfaces.clone()
    }

    fn fs(&self, path: &Path) -> Option<FsStats> {
        self.disks.get(path).cloned()
    }

    fn tasks(&self) -> (Option<u64>, Option<u64>) {
        self.tasks
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn summarizer(machine: FakeMachine, logs: &Path) -> Summarizer {
    let locations = Locations {
        node: "n1".to_owned(),
        root_dir: "/agent".into(),
        logs: logs.to_owned(),
        pods_cgroup: None,
    };
    Summarizer::new(Arc::new(machine), locations)
}

fn pod(name: &str) -> PodRef {
    PodRef {
        uid: PodUid::new(format!("uid-{name}")),
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        agent: None,
    }
}

fn sandbox(name: &str, ready: bool) -> ListedSandbox {
    let id = SandboxId::new(format!("s-{name}"));
    ListedSandbox { id, pod: pod(name), ready, created_at: at(100) }
}

fn container(name: &str, of: &str, state: ListedState) -> ListedContainer {
    ListedContainer {
        id: ContainerId::new(format!("c-{of}-{name}")),
        sandbox_id: SandboxId::new(format!("s-{of}")),
        pod: pod(of),
        name: name.to_owned(),
        state,
        created_at: at(200),
    }
}

fn usage(nanoseconds: u64, working_set: u64) -> cri_stats::Usage {
    cri_stats::Usage {
        cpu: Some(cri_stats::CpuStats {
            at: at(300),
            core_nanoseconds: Some(nanoseconds),
            ..cri_stats::CpuStats::default()
        }),
        memory: Some(cri_stats::MemoryStats {
            at: at(300),
            working_set: Some(working_set),
            ..cri_stats::MemoryStats::default()
        }),
        io: Some(cri_stats::IoStats { at: at(300), pressure: None }),
    }
}

fn container_stats(id: &str, nanoseconds: u64) -> cri_stats::ContainerStats {
    cri_stats::ContainerStats {
        id: ContainerId::new(id),
        usage: usage(nanoseconds, 10),
        swap: Some(cri_stats::SwapStats { at: at(300), used: Some(1), available: None }),
        layer: Some(cri_stats::LayerStats {
            at: at(300),
            mountpoint: "/images".to_owned(),
            used_bytes: Some(1000),
            inodes_used: Some(3),
        }),
    }
}

/// A runtime with a running pod, one that has ended, and one without measurements.
fn answers(measures_pods: bool) -> RuntimeAnswers {
    let containers = vec![
        container_stats("c-web-app", 5),
        container_stats("c-web-helper", 7),
        container_stats("c-gone-app", 9),
    ];
    let of_pod = cri_stats::SandboxStats {
        id: SandboxId::new("s-web"),
        usage: usage(20, 50),
        processes: Some(4),
        containers: containers.clone(),
        ..cri_stats::SandboxStats::default()
    };
    let of_none = cri_stats::SandboxStats { containers, ..cri_stats::SandboxStats::default() };
    RuntimeAnswers {
        lists: (
            vec![sandbox("web", true), sandbox("gone", false), sandbox("new", true)],
            vec![
                container("helper", "web", ListedState::Running),
                container("app", "web", ListedState::Running),
                container("init", "web", ListedState::Exited),
                container("app", "gone", ListedState::Exited),
            ],
        ),
        pods: vec![if measures_pods { of_pod } else { of_none }],
        images: Some(FsUsage { mountpoint: "/images".to_owned(), used_bytes: 500, inodes_used: 0 }),
        runtime: None,
    }
}

#[test]
fn summary_has_runtime_stats_of_pod_and_containers() {
    let logs = tempfile::tempdir().unwrap();
    let of_app = logs.path().join("ns_web_uid-web/app");
    fs::create_dir_all(&of_app).unwrap();
    fs::write(of_app.join("0.log"), "x".repeat(5000)).unwrap();
    let disk = FsStats { capacity_bytes: Some(9000), used_bytes: Some(8000), ..FsStats::default() };
    let disks = ["/images", "/agent"].map(|path| (PathBuf::from(path), disk.clone())).into();
    let machine = FakeMachine { disks, ..FakeMachine::default() };
    let summary = summarizer(machine, logs.path()).summary(answers(true), false);

    assert_eq!(summary.pods.len(), 1);
    let pod = &summary.pods[0];
    assert_eq!((pod.pod_ref.name.as_str(), pod.start_time), ("web", at(100).into()));
    assert_eq!(pod.cpu.as_ref().unwrap().usage_core_nano_seconds, Some(20));
    assert_eq!(pod.memory.as_ref().unwrap().working_set_bytes, Some(50));
    assert_eq!(pod.processes.as_ref().unwrap().process_count, Some(4));
    assert_eq!(pod.swap.as_ref().unwrap().swap_usage_bytes, Some(2));
    let names: Vec<&str> = pod.containers.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["app", "helper"]);
    let app = &pod.containers[0];
    assert_eq!((app.id.as_str(), app.start_time), ("c-web-app", at(200).into()));
    let rootfs = app.rootfs.as_ref().unwrap();
    assert_eq!((rootfs.used_bytes, rootfs.capacity_bytes), (Some(1000), Some(9000)));
    let logs = app.logs.as_ref().unwrap().used_bytes.unwrap();
    assert!(logs >= 5000, "{logs}");
    assert_eq!(pod.containers[1].logs, None);
    let storage = pod.ephemeral_storage.as_ref().unwrap();
    assert_eq!((storage.used_bytes, storage.capacity_bytes), (Some(2000 + logs), Some(9000)));
    let images = summary.node.runtime.unwrap().image_fs.unwrap();
    assert_eq!((images.used_bytes, images.inodes_used), (Some(500), None));
}

#[test]
fn ephemeral_storage_has_hosts_file_and_logs_of_the_pod() {
    let place = tempfile::tempdir().unwrap();
    let (of_pod, logs) = (place.path().join("pods/uid-web"), place.path().join("logs"));
    fs::create_dir_all(&of_pod).unwrap();
    fs::write(of_pod.join("etc-hosts"), "127.0.0.1 localhost\n").unwrap();
    fs::create_dir_all(logs.join("ns_web_uid-web/app")).unwrap();
    fs::write(logs.join("ns_web_uid-web/shim.log"), "x".repeat(5000)).unwrap();
    let mut summarizer = summarizer(FakeMachine::default(), &logs);
    summarizer.locations.root_dir = place.path().to_owned();
    let pod = summarizer.summary(answers(true), false).pods.remove(0);
    let storage = pod.ephemeral_storage.unwrap();
    // Each of two containers has 1000 bytes in 3 files.
    assert!(storage.used_bytes > Some(7000), "{storage:?}");
    assert_eq!(storage.inodes_used, Some(3 + 3 + 2));
}

#[test]
fn pod_usage_is_sum_of_containers_without_pod_stats() {
    let none = Path::new("/no/such/path");
    let summary = summarizer(FakeMachine::default(), none).summary(answers(false), false);
    assert_eq!(summary.pods.len(), 1);
    let pod = &summary.pods[0];
    assert_eq!(pod.cpu.as_ref().unwrap().usage_core_nano_seconds, Some(12));
    assert_eq!(pod.memory.as_ref().unwrap().working_set_bytes, Some(20));
    assert_eq!((&pod.io, &pod.network, &pod.processes), (&None, &None, &None));
}

/// Writes the cgroup v2 files of a pod. Each pressure file has a different total.
fn write_cgroup(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
    write("cpu.stat", "usage_usec 5\n");
    write("memory.current", "1000\n");
    write("memory.max", "max\n");
    write("memory.stat", "anon 300\ninactive_file 200\n");
    for (name, total) in [("cpu", 1), ("memory", 2), ("io", 3)] {
        let line = format!("avg10=1.00 avg60=0.50 avg300=0.10 total={total}");
        write(&format!("{name}.pressure"), &format!("some {line}\nfull {line}\n"));
    }
}

/// The totals of a pod's pressure.
fn pressure(pod: &PodStats) -> [Option<u64>; 3] {
    let cpu = pod.cpu.as_ref().and_then(|cpu| cpu.psi);
    let memory = pod.memory.as_ref().and_then(|memory| memory.psi);
    let io = pod.io.as_ref().and_then(|io| io.psi);
    [cpu, memory, io].map(|psi| psi.map(|psi| psi.some.total))
}

#[test]
fn pod_has_psi_of_its_cgroup_if_runtime_reports_none() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("cgroup.controllers"), "cpu memory io\n").unwrap();
    write_cgroup(&place.path().join("kubepods/burstable/poduid-web"));
    let none = Path::new("/no/such/path");
    let summary = |pods_cgroup: Option<&str>, answers: RuntimeAnswers| {
        let mut summarizer = summarizer(FakeMachine::default(), none);
        summarizer.locations.pods_cgroup = pods_cgroup.map(PathBuf::from);
        summarizer.cgroups = Cgroups::at(place.path(), none);
        summarizer.summary(answers, false).pods.remove(0)
    };
    let of_cgroup = [Some(1000), Some(2000), Some(3000)];
    let pod = summary(Some("/kubepods"), answers(true));
    assert_eq!(pressure(&pod), of_cgroup);
    assert_eq!(pod.cpu.unwrap().usage_core_nano_seconds, Some(20), "the rest is the runtime's");
    // A runtime that measures only containers.
    let pod = summary(Some("/kubepods"), answers(false));
    assert_eq!(pressure(&pod), of_cgroup);
    assert_eq!(pod.cpu.unwrap().usage_core_nano_seconds, Some(5000));
    assert_eq!(pod.memory.unwrap().working_set_bytes, Some(800));
    assert_eq!(pressure(&summary(Some("/other"), answers(true))), [None; 3]);
    assert_eq!(pressure(&summary(None, answers(true))), [None; 3]);

    let mut said = answers(true);
    let stall = cri_stats::Stall { total: 7, ..cri_stats::Stall::default() };
    let of_runtime = Some(cri_stats::Pressure { some: stall, full: stall });
    let set = |usage: &mut cri_stats::Usage| {
        usage.cpu.as_mut().unwrap().pressure = of_runtime;
        usage.memory.as_mut().unwrap().pressure = of_runtime;
        usage.io.as_mut().unwrap().pressure = of_runtime;
    };
    set(&mut said.pods[0].usage);
    set(&mut said.pods[0].containers[0].usage);
    let pod = summary(Some("/kubepods"), said);
    assert_eq!(pressure(&pod), [Some(7); 3]);
    let app = &pod.containers[0];
    let of_app = [app.cpu.as_ref().unwrap().psi, app.memory.as_ref().unwrap().psi];
    assert_eq!(of_app.map(|psi| psi.unwrap().full.total), [7, 7]);
    assert_eq!(app.io.as_ref().unwrap().psi.unwrap().some.total, 7);
}

#[test]
fn only_cpu_and_memory_omits_other_stats() {
    let load = Load {
        at: at(300),
        started_at: Some(at(50)),
        busy: Some(1000),
        memory: Memory {
            usage: Some(70),
            working_set: Some(60),
            swap_used: Some(0),
            ..Memory::default()
        },
        ..Load::default()
    };
    let machine = || FakeMachine {
        load: load.clone(),
        interfaces: vec![InterfaceStats::default()],
        tasks: (Some(5), Some(2)),
        disks: [(PathBuf::from("/agent"), FsStats::default())].into(),
    };
    let none = Path::new("/no/such/path");
    let summary = summarizer(machine(), none).summary(answers(true), true);
    let value = serde_json::to_value(&summary).unwrap();
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let mut node = keys(&value["node"]);
    node.sort();
    assert_eq!(node, ["cpu", "memory", "nodeName", "startTime", "swap"]);
    let mut pod = keys(&value["pods"][0]);
    pod.sort();
    assert_eq!(pod, ["containers", "cpu", "memory", "podRef", "startTime", "swap"]);
    let mut container = keys(&value["pods"][0]["containers"][0]);
    container.sort();
    assert_eq!(container, ["cpu", "memory", "name", "startTime", "swap"]);

    let whole = summarizer(machine(), none).summary(answers(true), false).node;
    assert_eq!(whole.rlimit.unwrap().max_pid, Some(5));
    assert!(whole.fs.is_some() && whole.network.is_some());
    assert_eq!(whole.start_time, at(50).into());
}

#[test]
fn cpu_rate_is_absent_in_first_summary() {
    let none = Path::new("/no/such/path");
    let summarizer = summarizer(FakeMachine::default(), none);
    let rate =
        |summary: &Summary| summary.pods[0].containers[0].cpu.as_ref().unwrap().usage_nano_cores;
    // Old measurements are removed by the clock.
    let first = Timestamp::now();
    let measured = |at: Timestamp, total: u64| {
        let mut answers = answers(true);
        for container in &mut answers.pods[0].containers {
            let cpu = container.usage.cpu.as_mut().unwrap();
            (cpu.at, cpu.core_nanoseconds) = (at, Some(total));
        }
        answers
    };
    assert_eq!(rate(&summarizer.summary(measured(first, 5), true)), None);
    let later = measured(first + jiff::SignedDuration::from_secs(10), 5_000_000_005);
    assert_eq!(rate(&summarizer.summary(later, true)), Some(500_000_000));
}

#[test]
fn machine_without_data_has_only_its_name() {
    let none = Path::new("/no/such/path");
    let summary =
        summarizer(FakeMachine::default(), none).summary(RuntimeAnswers::default(), false);
    let value = serde_json::to_value(&summary).unwrap();
    let expected = serde_json::json!({"node": {"nodeName": "n1", "startTime": null}, "pods": []});
    assert_eq!(value, expected);
}
