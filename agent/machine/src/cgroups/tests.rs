//! Tests with plain files in place of `/sys/fs/cgroup`. The fake kernel creates and removes the cgroup files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rstest::rstest;
use tempfile::TempDir;

use super::*;

/// The files of a new cgroup with their content.
const V1_FILES: [(&str, &[(&str, &str)]); 4] = [
    (
        "cpu,cpuacct",
        &[("cpu.shares", "1024"), ("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", "100000")],
    ),
    ("cpuset", &[("cpuset.cpus", "\n"), ("cpuset.mems", "\n")]),
    (
        "memory",
        &[("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "42")],
    ),
    ("pids", &[("pids.max", "max")]),
];
const V2_FILES: [(&str, &str); 7] = [
    ("cgroup.subtree_control", ""),
    ("cgroup.kill", ""),
    ("cpu.weight", "100"),
    ("cpu.max", "max 100000"),
    ("memory.max", "max"),
    ("memory.current", "42"),
    ("pids.max", "max"),
];

/// A file of the fake kernel: the cgroup has a process of a PID namespace that the agent cannot see, which cgroup v1 does not list.
pub(super) const UNLISTED: &str = "unlisted";

/// Creates the files of new directories by hierarchy, and records killed processes.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeKernel {
    mount: PathBuf,
    killed: Arc<Mutex<Vec<i32>>>,
    /// For how many calls of `remove` killed processes remain.
    dying: Arc<Mutex<usize>>,
}

impl Kernel for FakeKernel {
    fn make(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir(directory)?;
        fs::write(directory.join("cgroup.procs"), "")?;
        let hierarchy = directory.strip_prefix(&self.mount).unwrap();
        let hierarchy = hierarchy.iter().next().unwrap().to_str().unwrap();
        let v1 = V1_FILES.iter().find(|(name, _)| *name == hierarchy);
        match v1 {
            Some((_, files)) => {
                for (name, text) in *files {
                    fs::write(directory.join(name), text)?;
                }
            }
            None => {
                for (name, text) in V2_FILES {
                    fs::write(directory.join(name), text)?;
                }
                let parent = directory.parent().unwrap().join("cgroup.subtree_control");
                let given = fs::read_to_string(parent)?.replace('+', " ");
                fs::write(directory.join("cgroup.controllers"), given)?;
            }
        }
        Ok(())
    }

    fn remove(&self, directory: &Path) -> io::Result<()> {
        let mut dying = self.dying.lock().unwrap();
        if *dying > 0 {
            *dying -= 1;
            return Err(io::Error::from(io::ErrorKind::ResourceBusy));
        }
        let all_killed =
            fs::read_to_string(directory.join("cgroup.kill")).is_ok_and(|it| it == "1");
        let left = kernel::processes(directory);
        if !all_killed && !left.iter().all(|it| self.killed.lock().unwrap().contains(it)) {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy));
        }
        Ok(file_tree::remove(directory)?)
    }

    fn remove_one(&self, directory: &Path) -> io::Result<()> {
        let has_inner = fs::read_dir(directory)?.any(|it| it.unwrap().path().is_dir());
        let procs = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        if has_inner || !procs.trim().is_empty() || directory.join(UNLISTED).exists() {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy));
        }
        Ok(file_tree::remove(directory)?)
    }

    fn kill(&self, process: i32) {
        self.killed.lock().unwrap().push(process);
    }
}

/// Everything below a directory: directories, and files with their content.
fn tree(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_dir() {
                found.insert(format!("{name}/"), String::new());
                open.push(path);
            } else {
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

pub(super) struct Machine {
    pub(super) mount: TempDir,
    pub(super) kernel: FakeKernel,
}

impl Machine {
    fn new(files: &[(&str, &str)]) -> Self {
        let mount = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = mount.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let kernel = FakeKernel { mount: mount.path().to_owned(), ..FakeKernel::default() };
        Self { mount, kernel }
    }

    /// cgroup v1 as distributions mount it, with a unified hierarchy without controllers.
    pub(super) fn v1() -> Self {
        let machine = Self::new(&[
            ("cpu,cpuacct/cgroup.procs", "1\n"),
            ("cpuset/cgroup.procs", "1\n"),
            ("cpuset/cpuset.cpus", "0-3\n"),
            ("cpuset/cpuset.mems", "0\n"),
            ("memory/cgroup.procs", "1\n"),
            ("pids/cgroup.procs", "1\n"),
            ("systemd/cgroup.procs", "1\n"),
            ("unified/cgroup.controllers", "\n"),
            ("unified/cgroup.subtree_control", "\n"),
            ("other/file", ""),
        ]);
        std::os::unix::fs::symlink("cpu,cpuacct", machine.mount.path().join("cpu")).unwrap();
        machine
    }

    pub(super) fn v2(enabled: &str) -> Self {
        Self::new(&[
            ("cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("cgroup.subtree_control", enabled),
        ])
    }

    fn cgroups(&self) -> HostCgroups<FakeKernel> {
        HostCgroups::on(self.kernel.clone(), self.mount.path(), "/own").unwrap()
    }

    pub(super) fn text(&self, path: &str) -> String {
        let text = fs::read_to_string(self.mount.path().join(path));
        text.unwrap_or_else(|error| format!("{path}: {error}"))
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        fs::write(self.mount.path().join(path), text).unwrap();
    }
}

fn values() -> CgroupValues {
    CgroupValues {
        cpu_shares: Some(512),
        cpu_quota: Some((20_000, 10_000)),
        memory: Some(1 << 30),
        pids: Some(9),
        ..CgroupValues::default()
    }
}

const POD: &str = "/own/kubepods/burstable/podu";

#[test]
fn pod_is_limited_in_each_hierarchy_of_v1() {
    let machine = Machine::v1();
    let cgroups = machine.cgroups();
    assert_eq!(cgroups.missing_controllers(), [""; 0]);
    assert!(!cgroups.exists(POD));
    cgroups.make(POD, &values()).unwrap();
    assert!(cgroups.exists(POD));
    let pod = &POD[1..];
    for (file, text) in [
        ("cpu,cpuacct/PODcpu.shares", "512"),
        ("cpu,cpuacct/PODcpu.cfs_quota_us", "20000"),
        ("cpu,cpuacct/PODcpu.cfs_period_us", "10000"),
        ("cpuset/PODcpuset.cpus", "0-3"),
        ("cpuset/PODcpuset.mems", "0"),
        ("memory/PODmemory.limit_in_bytes", "1073741824"),
        ("pids/PODpids.max", "9"),
        // The parents have no limits, but CPUs.
        ("pids/own/pids.max", "max"),
        ("cpuset/own/kubepods/cpuset.cpus", "0-3"),
    ] {
        assert_eq!(machine.text(&file.replace("POD", &format!("{pod}/"))), text, "{file}");
    }
    assert!(machine.mount.path().join("unified").join(pod).is_dir());
    assert!(!machine.mount.path().join("systemd/own").exists(), "that of systemd's own");
    assert!(!machine.mount.path().join("other/own").exists(), "no hierarchy");
    assert_eq!(cgroups.memory_usage(POD), Some(42));
}

#[test]
fn pod_is_limited_in_the_unified_hierarchy() {
    let machine = Machine::v2("cpuset cpu memory pids\n");
    let cgroups = machine.cgroups();
    assert_eq!(cgroups.missing_controllers(), [""; 0]);
    cgroups.make(POD, &values()).unwrap();
    let pod = &POD[1..];
    for (file, text) in [
        ("PODcpu.weight", "20"),
        ("PODcpu.max", "20000 10000"),
        ("PODmemory.max", "1073741824"),
        ("PODpids.max", "9"),
        ("own/memory.max", "max"),
    ] {
        assert_eq!(machine.text(&file.replace("POD", &format!("{pod}/"))), text, "{file}");
    }
    let enabled = machine.text("own/kubepods/burstable/cgroup.subtree_control");
    assert_eq!(enabled, "+cpuset +cpu +memory +pids");
    assert_eq!(machine.text(&format!("{pod}/cgroup.subtree_control")), "", "for the runtime");
    assert_eq!(machine.text("cgroup.subtree_control"), "cpuset cpu memory pids\n");
    assert_eq!(cgroups.memory_usage(POD), Some(42));
}

#[rstest]
#[case::nothing_mounted(Machine::new(&[]), &["no cgroup hierarchy is mounted at MOUNT: mount one there"])]
#[case::unified_without_controllers(
    Machine::new(&[("cgroup.controllers", "\n"), ("cgroup.subtree_control", "\n")]),
    &["the kernel has no controller cpu at MOUNT", "the kernel has no controller cpuset at MOUNT",
      "the kernel has no controller memory at MOUNT", "the kernel has no controller pids at MOUNT"],
)]
#[case::unified_with_a_controller_disabled(
    Machine::v2("cpuset cpu pids\n"),
    &["controller memory is not enabled: write +memory to MOUNT/cgroup.subtree_control"],
)]
#[case::v1_without_one(
    Machine::new(&[("cpu/tasks", ""), ("cpuset/tasks", ""), ("pids/tasks", "")]),
    &["the kernel has no controller memory at MOUNT"],
)]
fn missing_controllers_are_reported(#[case] machine: Machine, #[case] expected: &[&str]) {
    let mount = machine.mount.path().display().to_string();
    let expected: Vec<String> = expected.iter().map(|it| it.replace("MOUNT", &mount)).collect();
    assert_eq!(machine.cgroups().missing_controllers(), expected);
}

#[test]
fn pods_are_limited_by_the_controllers_that_exist() {
    let machine = Machine::v2("");
    let before = tree(machine.mount.path());
    machine.cgroups().make(POD, &values()).unwrap();
    let after = tree(machine.mount.path());
    let others = after.iter().filter(|(name, _)| !name.starts_with("own/"));
    let others: BTreeMap<_, _> = others.map(|(a, b)| (a.clone(), b.clone())).collect();
    assert_eq!(others, before, "only the agent's own are written");
    let nothing = Machine::new(&[]);
    let error = nothing.cgroups().make(POD, &values()).unwrap_err().to_string();
    assert!(error.contains("no cgroup hierarchy is mounted"), "{error}");
}

#[test]
fn make_completes_an_interrupted_creation() {
    let machine = Machine::v1();
    let cgroups = machine.cgroups();
    // As if the agent was killed after the first directories.
    machine.kernel.make(&machine.mount.path().join("memory/own")).unwrap();
    machine.kernel.make(&machine.mount.path().join("cpuset/own")).unwrap();
    machine.kernel.make(&machine.mount.path().join("memory/own/kubepods")).unwrap();
    assert!(!cgroups.exists("/own/kubepods"));
    cgroups.make(POD, &values()).unwrap();
    let all = tree(machine.mount.path());
    cgroups.make(POD, &values()).unwrap();
    assert_eq!(tree(machine.mount.path()), all);
    assert_eq!(machine.text("cpuset/own/cpuset.mems"), "0");
}

#[test]
fn values_change_one_by_one() {
    let machine = Machine::v1();
    let cgroups = machine.cgroups();
    cgroups.make(POD, &values()).unwrap();
    let change = CgroupValues { memory: Some(-1), cpu_shares: Some(2), ..CgroupValues::default() };
    cgroups.set(POD, &change).unwrap();
    let file =
        |name: &str| machine.text(&format!("{}{POD}/{name}", name.split('.').next().unwrap()));
    assert_eq!(file("memory.limit_in_bytes"), "-1");
    assert_eq!(machine.text(&format!("cpu{POD}/cpu.shares")), "2");
    assert_eq!(file("pids.max"), "9");
    let error = cgroups.set("/own/kubepods/podx", &change).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
}

#[rstest]
#[case::v1(Machine::v1(), &["memory", "pids"])]
#[case::v2(Machine::v2("cpu memory pids"), &[""])]
fn destroy_kills_processes_and_removes_the_cgroup(
    #[case] machine: Machine,
    #[case] hierarchies: &[&str],
) {
    let cgroups = machine.cgroups();
    cgroups.make(POD, &values()).unwrap();
    cgroups.make("/own/kubepods/podother", &values()).unwrap();
    for hierarchy in hierarchies {
        let inner = machine.mount.path().join(hierarchy).join(format!("{}/container", &POD[1..]));
        machine.kernel.make(&inner).unwrap();
        fs::write(inner.join("cgroup.procs"), "71\n72\n").unwrap();
    }
    *machine.kernel.dying.lock().unwrap() = 1;
    let error = cgroups.destroy(POD).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{error}");
    cgroups.destroy(POD).unwrap();
    if hierarchies.len() > 1 {
        let killed = machine.kernel.killed.lock().unwrap().clone();
        assert!(killed.contains(&71) && killed.contains(&72), "{killed:?}");
    }
    let left = tree(machine.mount.path());
    assert!(!left.keys().any(|name| name.contains("podu")), "{left:?}");
    assert!(left.keys().any(|name| name.contains("podother")));
    cgroups.destroy(POD).unwrap();
}

#[test]
fn children_covers_all_hierarchies() {
    let machine = Machine::v1();
    let cgroups = machine.cgroups();
    assert_eq!(cgroups.children("/own/kubepods").unwrap(), Set::new());
    cgroups.make("/own/kubepods/poda", &CgroupValues::default()).unwrap();
    // As if a killed agent left it in one hierarchy.
    machine.kernel.make(&machine.mount.path().join("pids/own/kubepods/podb")).unwrap();
    let names = cgroups.children("/own/kubepods").unwrap();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["poda", "podb"]);
}

#[rstest]
#[case::another_root("/kubepods/podu")]
#[case::the_root_itself("/")]
#[case::nothing("")]
#[case::a_way_out("/own/../other")]
#[case::the_name_continued("/ownother/podu")]
#[case::a_line("/own/a\nb")]
fn foreign_cgroups_are_rejected(#[case] path: &str) {
    let machine = Machine::v1();
    for directory in ["memory/kubepods", "memory/kubepods/podu", "memory/other", "memory/ownother"]
    {
        machine.kernel.make(&machine.mount.path().join(directory)).unwrap();
    }
    let before = tree(machine.mount.path());
    let cgroups = machine.cgroups();
    for error in [
        cgroups.make(path, &values()).unwrap_err(),
        cgroups.set(path, &values()).unwrap_err(),
        cgroups.destroy(path).unwrap_err(),
        cgroups.children(path).unwrap_err(),
    ] {
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
    cgroups.remove_empty(path);
    assert!(cgroups.destroy("/own").is_err(), "the root of all pods");
    assert_eq!(tree(machine.mount.path()), before);
}

#[test]
fn named_cgroups_get_values_and_are_kept() {
    let machine = Machine::v1();
    machine.kernel.make(&machine.mount.path().join("memory/system")).unwrap();
    let cgroups = machine.cgroups().with_named(["/system"]).unwrap();
    cgroups.set("/system", &values()).unwrap();
    assert_eq!(machine.text("memory/system/memory.limit_in_bytes"), "1073741824");
    assert!(cgroups.destroy("/system").is_err() && cgroups.make("/system", &values()).is_err());
    assert!(machine.mount.path().join("memory/system").is_dir());
}

#[test]
fn process_enters_a_cgroup_in_each_hierarchy() {
    let machine = Machine::v1();
    let cgroups = HostCgroups::on(machine.kernel.clone(), machine.mount.path(), "/a/kubelet");
    cgroups.unwrap().enter(71).unwrap();
    for hierarchy in ["cpu,cpuacct", "cpuset", "memory", "pids", "unified"] {
        assert_eq!(machine.text(&format!("{hierarchy}/a/kubelet/cgroup.procs")), "71");
    }
    assert_eq!(machine.text("cpuset/a/kubelet/cpuset.cpus"), "0-3", "or no process could enter");
}

#[test]
fn remove_empty_keeps_cgroups_with_processes() {
    let machine = Machine::v1();
    let cgroups = machine.cgroups();
    cgroups.make("/own/kubepods/burstable", &CgroupValues::default()).unwrap();
    cgroups.remove_empty("/own/kubepods");
    assert!(cgroups.exists("/own/kubepods/burstable"));
    machine.write("pids/own/kubepods/burstable/cgroup.procs", "5\n");
    cgroups.remove_empty("/own/kubepods/burstable");
    assert!(machine.mount.path().join("pids/own/kubepods/burstable").is_dir());
    machine.write("pids/own/kubepods/burstable/cgroup.procs", "");
    for path in ["/own/kubepods/burstable", "/own/kubepods", "/own"] {
        cgroups.remove_empty(path);
    }
    let left = tree(machine.mount.path());
    assert!(!left.keys().any(|name| name.contains("own")), "{left:?}");
}
