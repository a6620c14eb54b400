//! Slices of a scripted systemd on a real bus. The cgroups are plain files.

use std::sync::{Arc, Mutex};

use rstest::rstest;

use super::super::tests::{FakeKernel, Machine, UNLISTED};
use super::*;
use crate::dbus::Value;
use crate::dbus::testing::{Answer, Daemon, JobRemoved, Reaction, serve};

const ALL: &str = "/own.slice/own-kubepods.slice";
const POD: &str = "/own.slice/own-kubepods.slice/own-kubepods-podu_1.slice";
const POD_SLICE: &str = "own-kubepods-podu_1.slice";

/// The state of the scripted systemd, and its calls.
#[derive(Default)]
struct State {
    units: Vec<String>,
    /// The calls with their unit and properties.
    calls: Vec<String>,
    jobs: u32,
    /// The result of jobs; `None`: the regular result.
    result: Option<&'static str>,
}

impl State {
    fn react(&mut self, member: &str, values: &[Value]) -> Reaction {
        let unit = values.first().and_then(Value::text).unwrap_or_default().to_owned();
        let properties = values.iter().filter_map(shown).collect::<Vec<_>>().join(" ");
        let call = [member, &unit, &properties].into_iter().filter(|it| !it.is_empty());
        self.calls.push(call.collect::<Vec<_>>().join(" "));
        let is_known = self.units.contains(&unit);
        match member {
            "StartTransientUnit" if is_known => error("org.freedesktop.systemd1.UnitExists"),
            "StartTransientUnit" => {
                if self.result.is_none() {
                    self.units.push(unit.clone());
                }
                self.job(unit)
            }
            "StopUnit" | "SetUnitProperties" if !is_known => {
                error("org.freedesktop.systemd1.NoSuchUnit")
            }
            "StopUnit" => {
                self.units.retain(|known| *known != unit);
                self.job(unit)
            }
            _ => (Vec::new(), Answer::Nothing, Vec::new()),
        }
    }

    /// A job whose end is signalled before or after the answer, together with another job's.
    fn job(&mut self, unit: String) -> Reaction {
        self.jobs += 1;
        let path = format!("/org/freedesktop/systemd1/job/{}", self.jobs);
        let result = self.result.unwrap_or("done").to_owned();
        let other = JobRemoved(77, "/job/77".to_owned(), unit.clone(), "canceled".to_owned());
        let own = JobRemoved(self.jobs, path.clone(), unit, result);
        match self.jobs % 2 {
            0 => (vec![other, own], Answer::Path(path), Vec::new()),
            _ => (vec![other], Answer::Path(path), vec![own]),
        }
    }
}

fn error(name: &'static str) -> Reaction {
    (Vec::new(), Answer::Error(name), Vec::new())
}

/// The properties of a call.
fn shown(value: &Value) -> Option<String> {
    let Value::List(properties) = value else {
        return None;
    };
    let one = |property: &Value| match property {
        Value::List(pair) => match pair.as_slice() {
            [Value::Text(name), Value::Text(text)] => format!("{name}={text}"),
            [Value::Text(name), Value::Number(number)] => format!("{name}={number}"),
            [Value::Text(name), Value::Flag(flag)] => format!("{name}={flag}"),
            [Value::Text(name), Value::List(texts)] => {
                let texts: Vec<&str> = texts.iter().filter_map(Value::text).collect();
                format!("{name}={}", texts.join(","))
            }
            other => format!("{other:?}"),
        },
        other @ (Value::Text(_) | Value::Number(_) | Value::Flag(_)) => format!("{other:?}"),
    };
    Some(properties.iter().map(one).collect::<Vec<_>>().join(" "))
}

struct Scene {
    machine: Machine,
    state: Arc<Mutex<State>>,
    daemon: Daemon,
}

impl Scene {
    /// `None` if the machine has no dbus-daemon.
    fn new() -> Option<Self> {
        Self::on(Machine::v2("cpuset cpu memory pids\n"))
    }

    fn on(machine: Machine) -> Option<Self> {
        let daemon = Daemon::start()?;
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        serve(&daemon.socket(), SERVICE, OBJECT, MANAGER, move |member, values| {
            shared.lock().unwrap().react(member, values)
        });
        Some(Self { machine, state, daemon })
    }

    fn slices(&self) -> SystemdSlices<FakeKernel> {
        let (kernel, mount) = (self.machine.kernel.clone(), self.machine.mount.path());
        let files = HostCgroups::on(kernel, mount, "/own.slice").unwrap();
        SystemdSlices::new(&self.daemon.socket(), files)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// The calls since the last call of this function, except subscriptions.
    fn calls(&self) -> Vec<String> {
        let calls = std::mem::take(&mut self.state.lock().unwrap().calls);
        calls.into_iter().filter(|call| call != "Subscribe").collect()
    }
}

fn values() -> CgroupValues {
    CgroupValues {
        cpu_shares: Some(512),
        cpu_quota: Some((1100, 100_000)),
        memory: Some(1 << 30),
        pids: Some(9),
        ..CgroupValues::default()
    }
}

#[test]
fn slice_is_started_limited_and_stopped_by_systemd() {
    let Some(scene) = Scene::new() else { return };
    let slices = scene.slices();
    slices.make(ALL, &CgroupValues::default()).unwrap();
    let usual = "MemoryAccounting=true CPUAccounting=true IOAccounting=true TasksAccounting=true DefaultDependencies=false";
    let start = |slice: &str, parent: &str| {
        format!(
            "StartTransientUnit {slice} Description=libcontainer container {slice} Wants={parent} {usual} "
        )
    };
    assert_eq!(scene.calls(), [start("own-kubepods.slice", "own.slice")]);
    slices.make(POD, &values()).unwrap();
    let limits = "MemoryMax=1073741824 CPUWeight=20 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=20000 TasksMax=9";
    let set = format!("SetUnitProperties {POD_SLICE} {limits}");
    assert_eq!(scene.calls(), [start(POD_SLICE, "own-kubepods.slice"), set.clone()]);
    assert!(slices.exists(POD));
    for (file, text) in
        [("memory.max", "1073741824"), ("cpu.max", "2000 100000"), ("pids.max", "9")]
    {
        assert_eq!(scene.machine.text(&format!("{}/{file}", &POD[1..])), text, "{file}");
    }
    // A restarted agent finds the existing slice.
    slices.make(POD, &values()).unwrap();
    assert_eq!(scene.calls(), [start(POD_SLICE, "own-kubepods.slice"), set]);
    slices.set(POD, &CgroupValues { pids: Some(0), ..CgroupValues::default() }).unwrap();
    assert_eq!(scene.calls(), [format!("SetUnitProperties {POD_SLICE} TasksMax=1")]);
    assert_eq!(slices.memory_usage(POD), Some(42));

    scene.machine.write(&format!("{}/cgroup.procs", &POD[1..]), "");
    slices.destroy(POD).unwrap();
    assert_eq!(
        scene.calls(),
        [format!("StopUnit {POD_SLICE}"), format!("ResetFailedUnit {POD_SLICE}")]
    );
    assert!(!slices.exists(POD));
    slices.destroy(POD).unwrap();
    assert_eq!(scene.calls(), [""; 0], "what is not there needs no systemd");
    slices.remove_empty(ALL);
    assert!(!slices.exists(ALL));
    assert_eq!(scene.state.lock().unwrap().units, [""; 0]);
}

#[test]
fn failed_job_error_has_slice_and_result() {
    let Some(scene) = Scene::new() else { return };
    let slices = scene.slices();
    scene.set(|state| state.result = Some("failed"));
    let error = slices.make(ALL, &CgroupValues::default()).unwrap_err().to_string();
    assert_eq!(error, "failed to start own-kubepods.slice: job result \"failed\"");
    assert_eq!(scene.calls().last().unwrap(), "ResetFailedUnit own-kubepods.slice");
    assert!(!slices.exists(ALL), "nothing is made beside systemd");
}

#[test]
fn remove_empty_keeps_slice_with_children() {
    let Some(scene) = Scene::new() else { return };
    let slices = scene.slices();
    slices.make(ALL, &CgroupValues::default()).unwrap();
    slices.make(POD, &CgroupValues::default()).unwrap();
    slices.remove_empty(ALL);
    scene.machine.write(&format!("{}/cgroup.procs", &POD[1..]), "7\n");
    slices.remove_empty(POD);
    assert!(slices.exists(POD));
    assert_eq!(scene.state.lock().unwrap().units, ["own-kubepods.slice", POD_SLICE]);
}

#[rstest]
#[case::v1(Machine::v1(), &["cpu,cpuacct", "cpuset", "memory", "pids", "unified"], UNLISTED, "")]
#[case::v2(Machine::v2("cpuset cpu memory pids\n"), &["."], "cgroup.procs", "0\n")]
fn remove_empty_keeps_slice_with_unseen_process(
    #[case] machine: Machine,
    #[case] hierarchies: &[&str],
    #[case] file: &str,
    #[case] text: &str,
) {
    let Some(scene) = Scene::on(machine) else { return };
    let slices = scene.slices();
    slices.make(POD, &CgroupValues::default()).unwrap();
    for hierarchy in hierarchies {
        scene.machine.write(&format!("{hierarchy}/{}/{file}", &POD[1..]), text);
    }
    slices.remove_empty(POD);
    assert!(slices.exists(POD));
    assert_eq!(scene.state.lock().unwrap().units, [POD_SLICE]);
}

#[test]
fn foreign_slices_are_not_changed() {
    let Some(scene) = Scene::new() else { return };
    let slices = scene.slices();
    for path in ["/system.slice", "/own.slice/../system.slice", "/"] {
        assert!(slices.make(path, &values()).is_err(), "{path}");
        assert!(slices.set(path, &values()).is_err(), "{path}");
        assert!(slices.destroy(path).is_err(), "{path}");
        slices.remove_empty(path);
    }
    assert!(slices.destroy("/own.slice").is_err(), "the root of all pods");
    assert_eq!(scene.calls(), [""; 0]);
}

#[test]
fn machine_without_systemd_is_an_error_with_the_remedy() {
    let machine = Machine::v2("cpuset cpu memory pids\n");
    let files =
        HostCgroups::on(machine.kernel.clone(), machine.mount.path(), "/own.slice").unwrap();
    let slices = SystemdSlices::new(&machine.mount.path().join("none"), files);
    let error = slices.make(ALL, &values()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("or set cgroupDriver: cgroupfs"), "{error}");
    assert!(!slices.exists(ALL));
}
