//! Pods, with the data of TestPrintPod, TestPrintPodWithRestartableInitContainer and TestPrintPodwide.

use rstest::rstest;
use serde_json::json;

use super::*;

/// A container's status: `ready`, `notready`, then its state, and `restarts=3`, `ago=10`, `started`, `name=x`.
///
/// States: `running`, `waiting`, `waiting:REASON`, `exited:CODE`, `exited:CODE:REASON`, `signal:NUMBER`.
fn container(words: &str) -> Value {
    let mut status = json!({"restartCount": 0, "ready": false, "state": {}, "lastState": {}});
    for word in words.split_whitespace() {
        let number = |text: &str| text.parse::<i64>().unwrap();
        match word.split_once(['=', ':']) {
            None if word == "ready" => status["ready"] = json!(true),
            None if word == "started" => status["started"] = json!(true),
            None => status["state"][word] = json!({}),
            Some(("restarts", text)) => status["restartCount"] = json!(number(text)),
            Some(("name", text)) => status["name"] = json!(text),
            Some(("ago", text)) => {
                status["lastState"]["terminated"] = json!({"finishedAt": ago(number(text))});
            }
            Some(("waiting", reason)) => status["state"]["waiting"] = json!({"reason": reason}),
            Some(("signal", text)) => {
                status["state"]["terminated"] = json!({"exitCode": 137, "signal": number(text)});
            }
            Some(("exited", text)) => {
                let (code, reason) = text.split_once(':').unwrap_or((text, ""));
                status["state"]["terminated"] = json!({"exitCode": number(code), "reason": reason});
            }
            Some(other) => panic!("{other:?}"),
        }
    }
    status
}

fn statuses(all: &[&str]) -> Vec<Value> {
    all.iter().map(|words| container(words)).collect()
}

/// Containers of a spec, of which sidecars have names that begin with `sidecar`.
fn specs(names: &[&str]) -> Vec<Value> {
    let spec = |name: &&str| match name.starts_with("sidecar") {
        true => json!({"name": name, "restartPolicy": "Always"}),
        false => json!({"name": name}),
    };
    names.iter().map(spec).collect()
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason})
}

#[rstest]
#[case::no_state("podPhase", 2, &["ready running restarts=3", "restarts=3"], "1/2 | podPhase | 6")]
#[case::waiting(
    "podPhase", 2, &["ready running restarts=3", "waiting:ContainerWaitingReason restarts=3"],
    "1/2 | ContainerWaitingReason | 6"
)]
#[case::first_wins(
    "podPhase", 2,
    &["waiting:ContainerWaitingReason restarts=3", "exited:0:ContainerTerminatedReason restarts=3"],
    "0/2 | ContainerWaitingReason | 6"
)]
#[case::ready_without_state(
    "podPhase", 2, &["ready running restarts=3", "ready restarts=3"], "1/2 | podPhase | 6"
)]
#[case::one_completed(
    "Running", 2, &["ready exited:0:Completed restarts=3", "ready running restarts=3"],
    "1/2 | NotReady | 6"
)]
#[case::restarted(
    "Running", 1, &["ready running restarts=3 ago=432000"], "1/1 | Running | 3 (5d ago)"
)]
#[case::other_restarted(
    "Running", 2, &["ready running", "ready running restarts=3 ago=864000"],
    "2/2 | Running | 3 (10d ago)"
)]
#[case::latest_restart(
    "Running", 2,
    &["ready running restarts=6 ago=432000", "ready running restarts=3 ago=1728000"],
    "2/2 | Running | 9 (5d ago)"
)]
#[case::succeeded("Succeeded", 1, &["exited:0:Completed"], "0/1 | Completed | 0")]
#[case::failed("Failed", 1, &["exited:1:Error"], "0/1 | Error | 0")]
#[case::crashed_before_running(
    "Failed", 2, &["exited:1:podCrash", "ready running"], "1/2 | podCrash | 0"
)]
#[case::crashed_after_running(
    "Failed", 2, &["ready running", "exited:1:podCrash"], "1/2 | podCrash | 0"
)]
#[case::crashed_between(
    "Failed", 3, &["ready running", "ready exited:1:podCrash", "ready exited:0"],
    "1/3 | podCrash | 0"
)]
#[case::nothing_ready(
    "Failed", 3, &["running", "exited:1:podCrash", "exited:0"], "0/3 | podCrash | 0"
)]
#[case::completed_and_failed(
    "Failed", 2, &["exited:0:Completed", "exited:3:Error"], "0/2 | Error | 0"
)]
#[case::exit_code("Failed", 1, &["exited:7"], "0/1 | ExitCode:7 | 0")]
#[case::signal("Failed", 1, &["signal:9"], "0/1 | Signal:9 | 0")]
#[case::crash_loop(
    "Running", 1, &["waiting:CrashLoopBackOff restarts=2 ago=5"],
    "0/1 | CrashLoopBackOff | 2 (5s ago)"
)]
#[case::creating("Pending", 1, &["waiting:ContainerCreating"], "0/1 | ContainerCreating | 0")]
#[case::pending("Pending", 1, &[], "0/1 | Pending | 0")]
fn containers_make_status(
    #[case] phase: &str,
    #[case] containers: usize,
    #[case] all: &[&str],
    #[case] expected: &str,
) {
    let pod = json!({
        "metadata": {"name": "test"},
        "spec": {"containers": vec![json!({}); containers]},
        "status": {"phase": phase, "containerStatuses": statuses(all)},
    });
    assert_eq!(cells("", "Pod", &pod, false), format!("{expected} | <unknown>"));
}

#[rstest]
#[case::reason(
    "podPhase", json!({"reason": "podReason"}), &["ready running restarts=3", "ready restarts=3"],
    "1/2 | podReason | 6"
)]
#[case::ready(
    "Running", json!({"conditions": [condition("Ready", "True", "")]}),
    &["ready exited:0:Completed restarts=3", "ready running restarts=3"], "1/2 | Running | 6"
)]
#[case::gated(
    "podPhase", json!({"conditions": [condition("PodScheduled", "False", "SchedulingGated")]}), &[],
    "0/2 | SchedulingGated | 0"
)]
#[case::terminating("Running", json!({"deleted": true}), &["running"], "0/2 | Terminating | 0")]
#[case::terminating_pending("Pending", json!({"deleted": true}), &[], "0/2 | Terminating | 0")]
#[case::deleted_when_over(
    "Succeeded", json!({"deleted": true}), &["exited:0:Completed"], "0/2 | Completed | 0"
)]
#[case::node_lost(
    "Running", json!({"deleted": true, "reason": "NodeLost"}), &["running"], "0/2 | Unknown | 0"
)]
fn pod_makes_status(
    #[case] phase: &str,
    #[case] mut status: Value,
    #[case] all: &[&str],
    #[case] expected: &str,
) {
    let deleted = status["deleted"].as_bool().unwrap_or_default();
    status["phase"] = json!(phase);
    status["containerStatuses"] = json!(statuses(all));
    let deletion = deleted.then(|| ago(10));
    let pod = json!({
        "metadata": {"name": "test", "deletionTimestamp": deletion},
        "spec": {"containers": [{}, {}]},
        "status": status,
    });
    assert_eq!(cells("", "Pod", &pod, false), format!("{expected} | <unknown>"));
}

#[rstest]
#[case::first_runs(
    "podPhase", &["a"], &["running restarts=3 ago=10"], &["waiting"], None,
    "0/1 | Init:0/1 | 3 (10s ago)"
)]
#[case::second_waits(
    "podPhase", &["a", "b"], &["running restarts=3 ago=10", "waiting"], &["waiting"], None,
    "0/1 | Init:0/2 | 3 (10s ago)"
)]
#[case::second_runs(
    "podPhase", &["a", "b"], &["exited:0", "running restarts=3 ago=10"], &["waiting"], None,
    "0/1 | Init:1/2 | 3 (10s ago)"
)]
#[case::both_restarted(
    "podPhase", &["a", "b"], &["exited:0 restarts=2 ago=120", "running restarts=3 ago=10"],
    &["waiting"], None, "0/1 | Init:1/2 | 5 (10s ago)"
)]
#[case::done(
    "Running", &["a"], &["exited:0 restarts=2 ago=120"], &["running restarts=4 ago=20"], None,
    "0/1 | Running | 4 (20s ago)"
)]
#[case::failed(
    "Pending", &["a"], &["exited:1:Error"], &["waiting:PodInitializing"], None,
    "0/1 | Init:Error | 0"
)]
#[case::exit_code("Pending", &["a"], &["exited:2"], &[], None, "0/1 | Init:ExitCode:2 | 0")]
#[case::signal("Pending", &["a"], &["signal:9"], &[], None, "0/1 | Init:Signal:9 | 0")]
#[case::crash_loop(
    "Pending", &["a"], &["waiting:CrashLoopBackOff restarts=1 ago=5"], &[], None,
    "0/1 | Init:CrashLoopBackOff | 1 (5s ago)"
)]
#[case::not_initialized(
    "Pending", &["a"], &["waiting:PodInitializing"], &["waiting:PodInitializing"], None,
    "0/1 | Init:0/1 | 0"
)]
#[case::initialized(
    "Pending", &["a"], &["exited:0:Completed"], &["waiting:PodInitializing"], None,
    "0/1 | PodInitializing | 0"
)]
#[case::sidecar_not_started(
    "Pending", &["sidecar-1", "sidecar-2"],
    &["name=sidecar-1 running restarts=3 ago=10", "name=sidecar-2 waiting"], &["waiting"],
    Some("False"), "0/3 | Init:0/2 | 3 (10s ago)"
)]
#[case::sidecar_started(
    "Pending", &["sidecar-1", "sidecar-2"],
    &["name=sidecar-1 running started restarts=3 ago=10", "name=sidecar-2 running"], &["waiting"],
    Some("False"), "0/3 | Init:1/2 | 3 (10s ago)"
)]
#[case::sidecars_started(
    "Running", &["sidecar-1", "sidecar-2"],
    &["name=sidecar-1 running started restarts=3 ago=10", "name=sidecar-2 running started"],
    &["ready running restarts=4 ago=20"], Some("True"), "1/3 | Running | 7 (10s ago)"
)]
#[case::sidecar_ready(
    "Running", &["sidecar-1"], &["name=sidecar-1 ready running started"], &["ready running"],
    Some("True"), "2/2 | Running | 0"
)]
#[case::sidecars_killed(
    "Succeeded", &["sidecar-1", "sidecar-2"],
    &["name=sidecar-1 exited:137:Error restarts=3 ago=10", "name=sidecar-2 exited:137:Error"],
    &["exited:0:Completed restarts=4 ago=20"], Some("True"), "0/3 | Completed | 7 (10s ago)"
)]
#[case::unknown_containers(
    "Running", &["init1", "sidecar1"], &["name=initinvalid", "name=init1", "name=sidecar1"],
    &["name=containerinvalid", "name=container1"], None, "0/2 | Init:0/2 | 0"
)]
fn init_containers_make_status(
    #[case] phase: &str,
    #[case] init: &[&str],
    #[case] init_statuses: &[&str],
    #[case] all: &[&str],
    #[case] initialized: Option<&str>,
    #[case] expected: &str,
) {
    let conditions: Vec<Value> =
        initialized.into_iter().map(|status| condition("Initialized", status, "")).collect();
    let mut init_statuses = statuses(init_statuses);
    for (status, name) in init_statuses.iter_mut().zip(init) {
        if status["name"].is_null() {
            status["name"] = json!(name);
        }
    }
    let pod = json!({
        "metadata": {"name": "test"},
        "spec": {"containers": [{"name": "container1"}], "initContainers": specs(init)},
        "status": {
            "phase": phase,
            "conditions": conditions,
            "initContainerStatuses": init_statuses,
            "containerStatuses": statuses(all),
        },
    });
    assert_eq!(cells("", "Pod", &pod, false), format!("{expected} | <unknown>"));
}

#[test]
fn wide_columns_have_addresses_and_gates() {
    let gates = ["condition1", "condition2", "condition3"];
    let pod = json!({
        "metadata": {"name": "test1"},
        "spec": {
            "containers": [{}, {}],
            "nodeName": "test1",
            "readinessGates": gates.map(|gate| json!({"conditionType": gate})),
        },
        "status": {
            "phase": "podPhase",
            "conditions": [condition("condition1", "False", ""), condition("condition2", "True", "")],
            "podIPs": [{"ip": "1.1.1.1"}, {"ip": "2001:db8::"}],
            "containerStatuses": statuses(&["ready running restarts=3", "restarts=3"]),
            "nominatedNodeName": "node1",
        },
    });
    let expected = "1/2 | podPhase | 6 | <unknown> | 1.1.1.1 | test1 | node1 | 1/3";
    assert_eq!(cells("", "Pod", &pod, true), expected);
    let pod = json!({"spec": {"containers": [{}, {}]}, "status": {"phase": "podPhase"}});
    let expected = "0/2 | podPhase | 0 | <unknown> | <none> | <none> | <none> | <none>";
    assert_eq!(cells("", "Pod", &pod, true), expected);
}
