//! The edits of devices to a plan, as tables.

use std::{collections::BTreeMap, path::Path};

use cri::v1::{ContainerConfig, ContainerMetadata, PodSandboxConfig};
use keeper::contract::plan::{DeviceKind, DeviceNode, IsolationMode, MountSource, RootPlan};
use rstest::rstest;

use super::*;
use crate::launch::{self, ContainerInputs, ImageDefaults};

fn device(path: &str, host: &str) -> DevicePlan {
    DevicePlan {
        path: path.into(),
        host: host.into(),
        node: DeviceNode {
            kind: DeviceKind::Character,
            major: 1,
            minor: 3,
            file_mode: 0o666,
            uid: 0,
            gid: 0,
        },
        access: "rwm".into(),
    }
}

fn mount(host: &str, container: &str) -> Mount {
    Mount { host_path: host.into(), container_path: container.into(), ..Default::default() }
}

fn plan(isolation: IsolationMode, mounts: Vec<Mount>, devices: Vec<DevicePlan>) -> LaunchPlan {
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "c".into(), attempt: 0 }),
        command: vec!["/bin/true".into()],
        envs: vec![cri::v1::KeyValue { key: "GPU".into(), value: "none".into() }],
        mounts,
        ..Default::default()
    };
    let inputs = ContainerInputs {
        isolation,
        directory: "/c".into(),
        sandbox_directory: Path::new("/s"),
        root: RootPlan::Host,
        image: &ImageDefaults::default(),
        behaviour: None,
        volumes: BTreeMap::new(),
        target: None,
        devices,
        log_max: None,
    };
    launch::container(&config, &PodSandboxConfig::default(), inputs).unwrap()
}

#[test]
fn edits_replace_what_has_the_same_name_or_path() {
    let mut plan = plan(
        IsolationMode::Root,
        vec![mount("/old", "/lib/gpu"), mount("/deep", "/opt/gpu/data")],
        vec![device("/dev/gpu", "/dev/null"), device("/dev/other", "/dev/full")],
    );
    let edits = PlanEdits {
        process: ProcessEdits {
            env: vec!["GPU=a=b".into(), "MORE=1".into()],
            additional_gids: vec![44, 44],
        },
        devices: vec![device("/dev/gpu", "/dev/zero")],
        mounts: vec![mount("/new", "/lib//gpu/"), mount("/shallow", "/opt/gpu")],
    };
    edits.apply(&mut plan).unwrap();
    assert_eq!(plan.process.env, ["GPU=a=b", "MORE=1"]);
    assert_eq!(plan.process.user.additional_gids, [44]);
    let hosts: Vec<_> = plan.devices.iter().map(|d| d.host.to_str().unwrap()).collect();
    assert_eq!(hosts, ["/dev/full", "/dev/zero"]);
    let requested: Vec<_> = plan
        .mounts
        .iter()
        .filter_map(|mount| {
            let MountSource::Host(path) = &mount.source else {
                return None;
            };
            (!path.starts_with("/s")).then(|| path.to_str().unwrap())
        })
        .collect();
    // A mount below another one comes after it.
    assert_eq!(requested, ["/new", "/shallow", "/deep"]);
}

#[rstest]
#[case::node_elsewhere(PlanEdits { devices: vec![device("/dev/gpu", "/dev/null")], ..PlanEdits::default() }, "/dev/null cannot be at /dev/gpu")]
#[case::mount(PlanEdits { mounts: vec![mount("/a", "/b")], ..PlanEdits::default() }, "nothing can be mounted at /b")]
fn edits_that_need_mount_namespace_are_refused(#[case] edits: PlanEdits, #[case] expected: &str) {
    let mut plan = plan(IsolationMode::Process, Vec::new(), Vec::new());
    let error = edits.apply(&mut plan).unwrap_err();
    assert!(error.0.contains(expected), "{error}");
}

#[test]
fn invalid_mount_of_device_is_refused() {
    let mut plan = plan(IsolationMode::Root, Vec::new(), Vec::new());
    let edits = PlanEdits { mounts: vec![mount("/a", "relative")], ..PlanEdits::default() };
    let error = edits.apply(&mut plan).unwrap_err();
    assert!(error.0.contains("not an absolute path"), "{error}");
}
