//! The real kubelet on a scenario's node: a process that reads static pods from a directory, without an API server.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::eventually::within;
use harness::process::Process;
use jiff::Timestamp;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::node::{PodState, WAIT_LIMIT};

/// The polling interval of the pods at its read-only server: the same as when the scenarios were recorded.
const POLL: Duration = Duration::from_millis(150);
/// The ports of the first kubelet; each kubelet has two.
static PORT: AtomicU16 = AtomicU16::new(20250);

/// How many events of an object and a type client-go sends in a burst; then one in five minutes
/// (k8s.io/client-go/tools/record/events_cache.go).
const EVENTS: usize = 25;

/// The node's address in the namespaces of `tests/interop/alone`.
const NODE_IP: &str = "192.0.2.2";

/// A kubelet. It must run in its own namespaces (`tests/interop/alone`): it bind-mounts its directory on itself.
pub(crate) struct Kubelet {
    program: PathBuf,
    /// The ports of its server and of its read-only server.
    ports: (u16, u16),
    process: Option<Process>,
    root: PathBuf,
    states: watch::Sender<Vec<PodState>>,
    /// Every change of a pod's state.
    history: Arc<Mutex<Vec<Change>>>,
    poll: Option<AbortHandle>,
}

/// A new state of a pod, or its removal.
struct Change {
    at: Instant,
    before: Option<PodState>,
    after: Option<PodState>,
}

impl Kubelet {
    /// Creates a kubelet without starting it. Its directories are below `root`.
    pub(crate) fn new(program: &Path, root: &Path) -> Self {
        let port = PORT.fetch_add(2, Ordering::Relaxed);
        Self {
            program: program.to_owned(),
            ports: (port, port + 1),
            process: None,
            root: root.to_owned(),
            states: watch::Sender::new(Vec::new()),
            history: Arc::default(),
            poll: None,
        }
    }

    /// Starts the kubelet, and waits until it serves.
    pub(crate) async fn start(&mut self, node: &str, socket: &Path) {
        let config = self.root.join("kubelet.yaml");
        fs::write(&config, self.config(socket)).unwrap();
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(config);
        command.arg("--root-dir").arg(self.root.join("root"));
        command.arg("--cert-dir").arg(self.root.join("pki"));
        command.args(["--hostname-override", node]);
        command.args(["--node-ip", NODE_IP]);
        command.current_dir("/").stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.process = Some(Process::spawn(&mut command).unwrap());
        let deadline = Instant::now() + WAIT_LIMIT;
        let port = self.ports.1;
        while pods(port).await.is_none() {
            let ended = self.process.as_mut().and_then(Process::try_wait);
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "the kubelet does not serve: {}",
                self.last_lines()
            );
            tokio::time::sleep(POLL).await;
        }
        let (states, history) = (self.states.clone(), self.history.clone());
        let poll = tokio::spawn(async move {
            loop {
                if let Some(pods) = pods(port).await {
                    let at = Instant::now();
                    let changes = changes(&states.borrow(), &pods, at);
                    if !changes.is_empty() {
                        history.lock().unwrap().extend(changes);
                        states.send_replace(pods);
                    }
                }
                tokio::time::sleep(POLL).await;
            }
        });
        self.poll = Some(poll.abort_handle());
    }

    /// Waits until it has read its manifests for the first time: before that it pauses for up to 5 s, until the runtime has
    /// responded.
    pub(crate) async fn sync_loop_runs(&self) {
        let looked = within(WAIT_LIMIT, "the kubelet to look at its manifests", async || {
            let log = self.log_text();
            log.contains("SyncLoop ADD").then_some(()).ok_or("nothing")
        });
        looked.await.unwrap();
    }

    pub(crate) async fn stop(&mut self, signal: Signal) {
        if let Some(poll) = self.poll.take() {
            poll.abort();
        }
        if let Some(mut process) = self.process.take() {
            process.signal(signal);
            process.wait(WAIT_LIMIT).await;
        }
    }

    /// The latest state of each pod.
    pub(crate) fn pods(&self) -> Vec<PodState> {
        self.states.borrow().clone()
    }

    /// Every observed state, in the form of `status_history.jsonl`.
    pub(crate) fn history(&self, zero: Instant) -> Vec<Value> {
        let history = self.history.lock().unwrap();
        let entries = history.iter().filter_map(|change| {
            let at = change.at.saturating_duration_since(zero).as_secs_f64();
            let pod = change.after.as_ref().or(change.before.as_ref())?;
            let metadata = &pod.entry["metadata"];
            let name =
                format!("{}/{}", metadata["namespace"].as_str()?, metadata["name"].as_str()?);
            Some(match change.after {
                Some(_) => json!({
                    "t": at, "pod": name, "metadata": metadata, "status": pod.entry["status"],
                }),
                None => json!({"t": at, "pod": name, "gone": true}),
            })
        });
        entries.collect()
    }

    /// Waits until `found` returns true for the pods' states, for at most `limit`.
    pub(crate) async fn until(
        &self,
        limit: Duration,
        mut found: impl FnMut(&[PodState]) -> bool,
    ) -> bool {
        let mut states = self.states.subscribe();
        let wait = states.wait_for(|states| found(states));
        matches!(tokio::time::timeout(limit, wait).await, Ok(Ok(_)))
    }

    /// The events about pods, in the form of `events.json`. Without an API server they are only in the log, which also contains the
    /// events beyond the limit of [`EVENTS`].
    pub(crate) fn events(&self, zero: Timestamp) -> Vec<Value> {
        let log = self.log_text();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let events = lines.filter(|line| line["msg"] == "Event occurred" && line["kind"] == "Pod");
        let mut counts = HashMap::new();
        events
            .filter(|line| {
                let of = [&line["object"]["name"], &line["type"]].map(Value::to_string);
                let count = counts.entry(of).or_insert(0);
                *count += 1;
                *count <= EVENTS
            })
            .map(|line| {
                json!({
                    "t": line["ts"].as_f64().unwrap() / 1000.0 - zero.as_duration().as_secs_f64(),
                    "pod": line["object"]["name"],
                    "field_path": line["fieldPath"],
                    "type": line["type"],
                    "reason": line["reason"],
                    "message": line["message"],
                    "source": "agent log",
                })
            })
            .collect()
    }

    /// Stops the kubelet, and unmounts everything below its directory.
    pub(crate) async fn end(mut self) {
        self.stop(Signal::SIGTERM).await;
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = self.root.join("root").display().to_string();
        let mut points: Vec<&str> = table
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .filter(|point| point.starts_with(&own))
            .collect();
        points.sort_by_key(|point| std::cmp::Reverse(point.len()));
        for point in points {
            umount2(point, MntFlags::MNT_DETACH).unwrap();
        }
    }

    fn log(&self) -> PathBuf {
        self.root.join("kubelet.log")
    }

    /// Its complete log.
    pub(crate) fn log_text(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn last_lines(&self) -> String {
        let log = self.log_text();
        let mut lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.reverse();
        lines.join("\n")
    }

    /// The configuration of the recordings; all files are in its directory.
    fn config(&self, socket: &Path) -> String {
        let root = self.root.display();
        let (port, read_only) = self.ports;
        let socket = socket.display();
        format!(
            r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: {root}/manifests
podLogsDir: {root}/pod-logs
volumePluginDir: {root}/volume-plugins
resolvConf: {root}/resolv.conf
containerRuntimeEndpoint: unix://{socket}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
address: 127.0.0.1
port: {port}
readOnlyPort: {read_only}
healthzPort: 0
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
clusterDNS: [10.199.0.10]
clusterDomain: cluster.local
evictionHard: {{memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}}
imageGCHighThresholdPercent: 100
logging: {{format: json, verbosity: 3}}
"#
        )
    }
}

/// The changes between two polls of the pods.
fn changes(before: &[PodState], after: &[PodState], at: Instant) -> Vec<Change> {
    let of = |pods: &[PodState], uid: &str| pods.iter().find(|pod| pod.uid() == uid).cloned();
    let new = after.iter().filter(|pod| !before.contains(pod));
    let new = new.map(|pod| Change { at, before: of(before, pod.uid()), after: Some(pod.clone()) });
    let gone = before.iter().filter(|pod| of(after, pod.uid()).is_none()).map(|pod| Change {
        at,
        before: Some(pod.clone()),
        after: None,
    });
    gone.chain(new).collect()
}

/// The pods from a kubelet's read-only server; `None` if it does not respond.
async fn pods(port: u16) -> Option<Vec<PodState>> {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    server.write_all(b"GET /pods HTTP/1.0\r\n\r\n").await.ok()?;
    let mut answer = String::new();
    server.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if !head.lines().next()?.contains(" 200 ") {
        return None;
    }
    let list: Value = serde_json::from_str(body).ok()?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let states = items.iter().map(|pod| {
        let metadata = &pod["metadata"];
        PodState {
            entry: json!({
                "metadata": {
                    "name": metadata["name"],
                    "namespace": metadata["namespace"],
                    "uid": metadata["uid"],
                },
                "status": pod["status"],
            }),
            finished: false,
        }
    });
    Some(states.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, phase: &str) -> PodState {
        PodState {
            entry: json!({"metadata": {"uid": uid}, "status": {"phase": phase}}),
            finished: false,
        }
    }

    #[test]
    fn changes_are_added_modified_and_removed_pods() {
        let before = [pod("a", "Running"), pod("b", "Running"), pod("c", "Pending")];
        let after = [pod("a", "Running"), pod("c", "Failed"), pod("d", "Pending")];
        let found = changes(&before, &after, Instant::now());
        let found: Vec<_> = found
            .iter()
            .map(|change| {
                let phase = |pod: &Option<PodState>| pod.as_ref().map(|pod| pod.phase().to_owned());
                (phase(&change.before), phase(&change.after))
            })
            .collect();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            found,
            [(text("Running"), None), (text("Pending"), text("Failed")), (None, text("Pending")),]
        );
    }
}
