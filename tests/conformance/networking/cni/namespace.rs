//! Plugins get the pod's network namespace or none.

use std::process::{Child, Command, Stdio};

use super::*;
use crate::support::*;

/// The PID of the only sandbox's keeper.
fn keeper(runtime: &Runtime) -> i32 {
    let sandboxes = fs::read_dir(runtime.state_dir().join("sandboxes")).unwrap();
    let directories: Vec<PathBuf> = sandboxes.map(|entry| entry.unwrap().path()).collect();
    let [directory] = &directories[..] else { panic!("{directories:?}") };
    let pid = fs::read_to_string(directory.join("keeper.pid")).unwrap();
    pid.trim().parse().unwrap()
}

fn network_namespace(process: &str) -> String {
    let link = fs::read_link(format!("/proc/{process}/ns/net")).unwrap();
    link.display().to_string()
}

/// Kills a process, and waits until its PID is free.
async fn end(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    eventually(WAIT_LIMIT, "the end of the keeper", async || {
        let there = Path::new(&format!("/proc/{pid}")).exists();
        if there { Err("it is there") } else { Ok(()) }
    })
    .await;
}

/// Reuses a PID for a process in the test's own network namespace, if the test may choose PIDs.
struct Successor(Option<Child>);

impl Successor {
    fn with(pid: i32) -> Self {
        if !nix::unistd::geteuid().is_root() {
            return Self(None);
        }
        // Another process may get the PID first; it is also in this network namespace.
        let script = "tries=0
            while [ $tries -lt 1000 ] && [ ! -e /proc/$1 ]; do
                tries=$((tries + 1))
                echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid
                sleep 1000 &
                if [ $! = $1 ]; then echo taken; wait $!; fi
                kill $!
            done";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", &pid.to_string()]);
        // The whole process group is killed at the end.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = [0; 1];
        let _ = std::io::Read::read(child.stdout.as_mut().unwrap(), &mut printed);
        Self(Some(child))
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let group = Pid::from_raw(-i32::try_from(child.id()).unwrap());
            let _ = kill(group, Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

async fn called(plugins: &Plugins, call: &str) {
    eventually(WAIT_LIMIT, call, async || {
        let calls = fs::read_to_string(plugins.path("calls")).unwrap_or_default();
        if calls.contains(call) { Ok(()) } else { Err(calls) }
    })
    .await;
}

/// If a keeper is killed while a plugin runs, its PID may be reused before the plugin opens the namespace.
#[tokio::test]
async fn plugins_get_pod_namespace_after_keeper_is_killed() {
    harness::needs!(Namespaces);
    let plugins = Plugins::configured();
    let runtime = plugins.options().start().await.unwrap();
    let hold = plugins.path("hold.ADD.one");
    nix::unistd::mkfifo(&hold, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    let (client, config) = (runtime.client.clone(), runtime.sandbox("pod"));
    let run = tokio::spawn(async move { client.run_pod(config).await });
    called(&plugins, "ADD one").await;
    let keeper = keeper(&runtime);
    let (pods, own) = (network_namespace(&keeper.to_string()), network_namespace("self"));
    assert_ne!(pods, own);
    end(keeper).await;
    let successor = Successor::with(keeper);
    let released = tokio::task::spawn_blocking(move || fs::write(hold, ""));
    released.await.unwrap().unwrap();
    let error = run.await.unwrap().unwrap_err();
    assert!(error.message().contains("ended"), "{error}");
    drop(successor);
    let expected =
        ["ADD one", "ADD two", "DEL two", "DEL one"].map(|call| format!("{call} {pods}"));
    assert_eq!(plugins.lines("namespaces"), expected);
    assert_eq!(super::pods(&runtime).await, []);
}

/// The restarted daemon did not itself run ADD.
#[tokio::test]
async fn check_and_del_get_pod_namespace_after_restart() {
    harness::needs!(Namespaces);
    let plugins = Plugins::configured();
    let mut runtime = plugins.options().durable().start().await.unwrap();
    let pod = runtime.pod("pod").await.unwrap();
    let pods = network_namespace(&keeper(&runtime).to_string());
    runtime.kill_and_restart().await.unwrap();
    called(&plugins, "CHECK two there").await;
    runtime.client.stop_pod(&pod.id).await.unwrap();
    let expected = ["ADD one", "ADD two", "CHECK one", "CHECK two", "DEL two", "DEL one"];
    let expected = expected.map(|call| format!("{call} {pods}"));
    assert_eq!(plugins.lines("namespaces"), expected);
}

#[tokio::test]
async fn run_pod_fails_when_claimed_interface_is_missing() {
    harness::needs!(Namespaces);
    let plugins = Plugins::configured();
    let runtime = plugins.options().start().await.unwrap();
    fs::write(plugins.path("claim"), "").unwrap();
    plugins.lines("calls");
    let error = runtime.client.run_pod(runtime.sandbox("pod")).await.unwrap_err();
    assert!(error.message().contains("no interface eth0"), "{error}");
    let seen = plugins.lines("calls");
    assert_eq!(seen, ["ADD one there", "ADD two there", "DEL two there", "DEL one there"]);
    assert_eq!(super::pods(&runtime).await, []);
}
