//! The cost of the store: microseconds per write, and memory of 1,000 pods. `cargo bench -p cluster`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::fs;
use std::time::Instant;

use cluster::{DeleteOptions, Key, Part, Patch, Selection, Store};
use jiff::Timestamp;
use serde_json::{Value, json};

const PODS: usize = 1000;

fn main() {
    // Arguments such as a test filter are ignored.
    let store = Store::new(1);
    let now = Timestamp::UNIX_EPOCH;
    let key = |number: usize| Key::pod("default", &format!("web-{number}"));
    let before = resident();
    let from = store.list(&Selection::default()).version;
    measure("create", |number| drop(store.create(pod(number), now).unwrap()));
    let kib = (resident() - before) / PODS;
    println!("memory of a pod: {kib} KiB, with the change that made it in the history");
    measure("bind", |number| drop(store.bind(&key(number), "n", now).unwrap()));
    measure("write a status", |number| {
        let status = |value: &mut Value| {
            value["status"] = status(number);
            Ok(())
        };
        store.change(&key(number), Part::Status, status).unwrap();
    });
    let label = Patch::Strategic(json!({"metadata": {"labels": {"tier": "front"}}}));
    measure("patch a label", |number| {
        drop(store.patch(&key(number), Part::Main, &label).unwrap());
    });
    measure("get", |number| drop(store.get(&key(number)).unwrap()));
    let mut watch = store.watch(Selection::default(), from).unwrap();
    let begun = Instant::now();
    let mut changes: u32 = 0;
    while watch.try_next().unwrap().is_some() {
        changes += 1;
    }
    println!("watch: {:.2} µs a change", begun.elapsed().as_secs_f64() * 1e6 / f64::from(changes));
    measure("delete", |number| {
        drop(store.delete(&key(number), &DeleteOptions::now(), now).unwrap());
    });
}

/// Runs `act` for each pod, and prints the time for one.
fn measure(what: &str, mut act: impl FnMut(usize)) {
    let begun = Instant::now();
    (0..PODS).for_each(&mut act);
    println!("{what}: {:.1} µs", begun.elapsed().as_secs_f64() * 1e6 / 1000.0);
}

/// The memory of this process, in KiB.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": format!("web-{number}"), "labels": {"app": "web", "pod-template-hash": "abc"}},
        "spec": {
            "containers": [{
                "name": "app", "image": "registry.example/app:1", "command": ["/bin/app", "--port", "80"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "token", "mountPath": "/token"}],
                "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 5},
                "terminationMessagePath": "/dev/termination-log", "imagePullPolicy": "IfNotPresent",
            }],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "token", "secret": {"secretName": "t"}}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
        },
    })
}

fn status(number: usize) -> Value {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"});
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition);
    json!({
        "phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.0.0.254", "startTime": "2026-01-02T03:04:05Z",
        "conditions": conditions,
        "containerStatuses": [{
            "name": "app", "image": "registry.example/app:1", "imageID": "sha256:0123", "ready": true, "restartCount": 0,
            "containerID": format!("cri://{number}"), "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
        }],
    })
}
