//! Tests on the host's own cgroups, if this user may make some. They use v2 only, because few hosts with v1 controllers
//! expose them. Each test has its own name in the hierarchy.

use std::{fs, io::Write as _, path::PathBuf, time::Duration};

use crate::kernel::cgroup::{
    CgroupPath, CgroupPlan, Limits, cleanup,
    device::{DeviceKind, DeviceRule, usual},
    directory,
    hierarchy::{Controller, Tree, mounted},
    plan::{CurrentValues, writes},
    program,
};

/// A cgroup on the v2 hierarchy only, with its controllers; removed at the end of the test.
struct Unified(CgroupPath);

impl Unified {
    fn new(test: &str) -> Option<Self> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let found = mounted(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        let only: Vec<_> = found.into_iter().filter(|h| h.v2).collect();
        let (tree, _) = super::detect::usable(&only, nix::unistd::geteuid().is_root());
        if tree.branches.is_empty() {
            let reason = "no v2 cgroup can be made here";
            let _ = writeln!(
                std::io::LineWriter::new(std::io::stderr()),
                "skipped: {test}: needs UnifiedCgroups: {reason}"
            );
            return None;
        }
        let cgroup = CgroupPath {
            own: vec![2],
            path: PathBuf::from(format!("crib-{test}-{}", std::process::id())).join("pod"),
            tree,
        };
        Some(Self(cgroup))
    }
}

impl Drop for Unified {
    fn drop(&mut self) {
        cleanup::kill(&self.0);
        cleanup::remove_in_time(&self.0, Duration::from_secs(5));
        cleanup::remove_own(&self.0);
    }
}

/// A shell in the cgroup.
fn inside(cgroup: &CgroupPath, script: &str) -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    let procs = cgroup.unified().unwrap().join("cgroup.procs");
    command.args(["-c", "echo 0 > \"$0\"; eval \"$1\""]).arg(procs).arg(script);
    command
}

#[test]
fn kill_ends_all_processes_and_cgroup_is_removed() {
    let Some(unified) = Unified::new("kill_ends_all_processes_and_cgroup_is_removed") else {
        return;
    };
    let cgroup = &unified.0;
    directory::make(cgroup).unwrap();
    directory::make(cgroup).unwrap();
    let mut child =
        inside(cgroup, "(setsid sleep 1000 &); mkdir $(dirname $0)/inner; echo; sleep 1000")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
    let mut said = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert!(!cleanup::remove(cgroup));
    cleanup::kill(cgroup);
    assert!(!child.wait().unwrap().success());
    assert!(cleanup::remove_in_time(cgroup, Duration::from_secs(5)));
    assert!(cleanup::remove(cgroup), "what is gone is gone");
    cleanup::kill(cgroup);
}

#[test]
fn huge_page_limit_applies_on_v2() {
    let Some(unified) = Unified::new("huge_page_limit_applies_on_v2") else {
        return;
    };
    let cgroup = &unified.0;
    let has = |controller| cgroup.tree.branch(controller).is_some();
    let size = fs::read_dir("/sys/kernel/mm/hugepages")
        .into_iter()
        .flatten()
        .flatten()
        .find(|entry| entry.file_name() == "hugepages-2048kB");
    if !has(Controller::Hugetlb) || size.is_none() {
        let reason = "no hugetlb controller on v2, or no pages of 2 MiB";
        let _ = writeln!(
            std::io::LineWriter::new(std::io::stderr()),
            "skipped: huge_page_limit_applies_on_v2: needs HugePages: {reason}"
        );
        return;
    }
    let limits =
        |limit| Limits { hugepages: [("2MB".to_owned(), limit)].into(), ..Limits::default() };
    let list =
        |limit| writes(&limits(limit), &cgroup.tree, &CurrentValues::default()).unwrap().list;
    let plan = CgroupPlan { path: cgroup.clone(), writes: list(4 << 20), devices: None };
    directory::prepare(&plan).unwrap();
    let file = cgroup.file(Controller::Hugetlb, "hugetlb.2MB.max").unwrap();
    let in_force = || fs::read_to_string(&file).unwrap().trim().to_owned();
    assert_eq!(in_force(), (4 << 20).to_string());
    directory::change(cgroup, &list(8 << 20)).unwrap();
    assert_eq!(in_force(), (8 << 20).to_string());
    // All writes apply or none.
    let mut some = list(2 << 20);
    some.push(super::Write {
        controller: Controller::Hugetlb,
        file: "hugetlb.3MB.max".to_owned(),
        value: "1".to_owned(),
        optional: false,
    });
    let failed = directory::change(cgroup, &some).unwrap_err();
    assert!(failed.to_string().contains("no pages of this size"), "{failed}");
    assert_eq!(in_force(), (8 << 20).to_string());
}

#[test]
fn device_program_blocks_unlisted_devices() {
    let test = "device_program_blocks_unlisted_devices";
    let Some(unified) = Unified::new(test) else {
        return;
    };
    if let Err(error) = program::probe() {
        let reason = format!("no program can be loaded: {error}");
        let _ = writeln!(
            std::io::LineWriter::new(std::io::stderr()),
            "skipped: {test}: needs DevicePrograms: {reason}"
        );
        return;
    }
    let cgroup = &unified.0;
    let output = |rules: Vec<DeviceRule>| {
        directory::prepare(&CgroupPlan {
            path: cgroup.clone(),
            writes: Vec::new(),
            devices: Some(rules),
        })
        .unwrap();
        let script =
            "head -c 3 /dev/zero | wc -c; head -c 0 /dev/kmsg && echo read; echo > /dev/full";
        let output = inside(cgroup, script).output().unwrap();
        assert!(cleanup::remove_in_time(cgroup, Duration::from_secs(5)));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (said, complained) = output(usual());
    assert_eq!(said, "3\n");
    assert!(complained.contains("not permitted"), "{complained}");
    // The open succeeds, and the write fails with ENOSPC, as each shell words it.
    let full = ["No space left", "I/O error"];
    assert!(full.iter().any(|w| complained.contains(w)), "{complained}");
    let mut more = usual();
    more.push(DeviceRule::new(DeviceKind::Character, 1, 11, "r"));
    assert_eq!(output(more).0, "3\nread\n");
}

#[test]
fn cgroup_calls_do_nothing_without_hierarchy() {
    let cgroup = CgroupPath { tree: Tree::default(), path: "x".into(), own: Vec::new() };
    directory::make(&cgroup).unwrap();
    assert!(cleanup::remove(&cgroup));
    assert_eq!(cleanup::oom_kills(&cgroup), None);
}
