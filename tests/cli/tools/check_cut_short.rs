//! Checks that end early: by a signal, or because their runtime is gone. Nothing is left.

use std::path::Path;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::ChildStderr;

use crate::command::*;
use crate::tools::check::{pod_of_check, start_proxy};

/// The next line that is not a log line: on a busy machine, a check may warn about slow calls.
async fn sentence(lines: &mut Lines<BufReader<ChildStderr>>) -> String {
    loop {
        let line = lines.next_line().await.unwrap().unwrap();
        if line.starts_with("crib: ") {
            return line;
        }
    }
}

#[tokio::test]
async fn second_signal_ends_check_whose_runtime_hangs() {
    let place = Place::unchecked();
    let (runtime, upstream) = place.runtime().await;
    // The rule waits for its call, then the removal of its pod waits for another one.
    let faults = ["PodSandboxStatus hang", "StopPodSandbox hang"];
    let (proxy, endpoint, trace) = start_proxy(&place, &upstream, &faults).await;
    let mut check =
        place.start(&["check", "--runtime-endpoint", &endpoint, "--select", "CRI-SBX-031"]);
    pod_of_check(&trace).await;
    let mut message = BufReader::new(check.child.stderr.take().unwrap()).lines();
    check.signal(Signal::SIGINT);
    let first = sentence(&mut message).await;
    let expected =
        "crib: received SIGINT: removing the pods of the check; a second signal exits immediately";
    assert_eq!(first, expected);
    // A different signal: the same one shortly afterwards would count as an echo of the first.
    check.signal(Signal::SIGTERM);
    check.end().await.exits(130);
    let last = sentence(&mut message).await;
    assert_eq!(last, "crib: pods of the check were not removed: the next check removes them");
    proxy.stop().await;
    runtime.stop().await;
}

#[rstest]
#[case::rule_that_waits(&["PodSandboxStatus hang"], "CRI-SBX-031")]
#[case::pods_that_are_being_made(&[], "CRI-CTR,CRI-STP,CRI-SBX")]
#[tokio::test]
async fn signal_ends_check_and_removes_its_pods(#[case] faults: &[&str], #[case] select: &str) {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, trace) = start_proxy(&place, &upstream, faults).await;
    let args = ["check", "--runtime-endpoint", &endpoint, "--select", select];
    let check = place.start(&args);
    pod_of_check(&trace).await;
    let ended = check.interrupt().await.exits(130);
    let last =
        "interrupted: the other rules did not end; everything that the check made is removed";
    assert!(ended.out.ends_with(last), "{ended:?}");
    let pods = place.crib(&["pods", "--quiet", "--runtime-endpoint", &upstream]).await;
    assert_eq!((pods.code, pods.out.as_str()), (Some(0), ""), "{pods:?}");
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn check_ends_when_runtime_exits() {
    let place = Place::unchecked();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, trace) = start_proxy(&place, &upstream, &[]).await;
    let select = "CRI-CTR,CRI-STP,CRI-SBX";
    let args = ["check", "--runtime-endpoint", &endpoint, "--select", select];
    let check = place.start(&args);
    pod_of_check(&trace).await;
    runtime.stop().await;
    let ended = check.end().await.exits(3);
    ended.out_has("the runtime stopped responding (");
    proxy.stop().await;
}

#[tokio::test]
async fn next_check_removes_directory_and_cgroups_of_one_whose_pods_are_gone() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, trace) = start_proxy(&place, &upstream, &["PodSandboxStatus hang"]).await;
    let select = ["--select", "CRI-SBX-031"];
    let args = [&["check", "--runtime-endpoint", &endpoint], &select[..]].concat();
    let killed = place.start(&args);
    pod_of_check(&trace).await;
    let mut runs = files(&place.path("tmp")).into_iter();
    let run = runs.find(|name| name.starts_with("crib-check-")).unwrap();
    killed.signal(Signal::SIGKILL);
    killed.end().await;
    let removal = ["rmp", "--all", "--force", "--runtime-endpoint", &upstream];
    place.crib(&removal).await.exits(0);
    // As left by a killed runtime. Only root can be sure to be allowed to create a cgroup.
    if nix::unistd::geteuid().is_root() {
        let hierarchies = files(Path::new("/sys/fs/cgroup")).into_iter();
        let mut hierarchies = hierarchies.map(|name| Path::new("/sys/fs/cgroup").join(name));
        let v1 =
            hierarchies.find(|at| at.join("cgroup.procs").exists() && at.join("tasks").exists());
        let hierarchy = v1.unwrap_or_else(|| "/sys/fs/cgroup".into());
        std::fs::create_dir_all(hierarchy.join(&run).join("pod")).unwrap();
        assert_eq!(cgroups_of(&run).len(), 1);
    }
    let args = [&["check", "--runtime-endpoint", &upstream], &select[..]].concat();
    place.crib(&args).await.exits(0);
    assert_eq!(cgroups_of(&run), [""; 0]);
    assert!(!place.path("tmp").join(&run).exists());
    proxy.stop().await;
    runtime.stop().await;
}

/// The cgroups with this name in all hierarchies.
fn cgroups_of(name: &str) -> Vec<String> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = files(root).into_iter().map(|name| root.join(name));
    let groups = hierarchies.chain([root.to_owned()]).map(|at| at.join(name));
    let there = groups.filter(|group| group.exists());
    there.map(|group| group.display().to_string()).collect()
}

/// The names in a directory.
fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}
