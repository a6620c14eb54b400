//! Probes: their results, their times, and their effects.

use k8s_openapi::api::core::v1::ContainerStatus;

use super::*;

/// The period of housekeeping in seconds.
const HOUSEKEEPING: u64 = 2;

fn probed(name: &str, probes: Value) -> Value {
    let mut container = container(name, "app");
    for (key, probe) in probes.as_object().unwrap() {
        container[key] = json!({
            "exec": {"command": [key]}, "periodSeconds": 10, "timeoutSeconds": 1,
            "successThreshold": 1, "failureThreshold": 3,
        });
        let given = probe.as_object().unwrap().clone();
        container[key].as_object_mut().unwrap().extend(given);
    }
    container
}

fn one(probes: Value) -> Pod {
    pod_with("u1", json!({"containers": [probed("app", probes)]}))
}

impl Scene {
    fn exec_fails(&self, container: &str, fails: bool) {
        let output = if fails { "no\n" } else { "" };
        self.fake.exec(container, seconds(0), i32::from(fails), output);
    }

    async fn run_ready(&self, pod: &Pod) -> u64 {
        self.want(std::slice::from_ref(pod));
        self.until("u1", "ready", is_ready).await
    }
}

fn status(report: &PodReport, name: &str) -> ContainerStatus {
    let statuses = report.status.container_statuses.iter().flatten();
    let inits = report.status.init_container_statuses.iter().flatten();
    statuses.chain(inits).find(|status| status.name == name).cloned().unwrap_or_default()
}

fn is_started(report: &PodReport, name: &str) -> bool {
    status(report, name).started == Some(true)
}

fn is_ready(report: &PodReport) -> bool {
    let mut conditions = report.status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[tokio::test(start_paused = true)]
async fn failed_liveness_probe_restarts_container_with_grace_period_of_probe() {
    let scene = Scene::new();
    scene.run_ready(&one(json!({"livenessProbe": {"terminationGracePeriodSeconds": 7}}))).await;
    scene.sleep(15).await;
    scene.exec_fails("app", true);
    let restarted = |report: &PodReport| {
        scene.exec_fails("app", report.containers[0].restarts == 0);
        report.containers[0].restarts == 1
    };
    scene.until("u1", "restarted", restarted).await;
    assert_eq!(scene.seconds("ExecSync app/0 livenessProbe"), [10, 20, 30, 40]);
    assert_eq!(scene.seconds("StopContainer app/0 7s"), [40]);
    // The other container is still probed.
    scene.sleep(60).await;
    assert!(!scene.seconds("ExecSync app/1 livenessProbe").is_empty());
    assert_eq!(scene.report("u1").containers[0].restarts, 1);
}

#[tokio::test(start_paused = true)]
async fn failed_probe_is_the_cause_of_container_termination() {
    let scene = Scene::new();
    let mut transitions = scene.agent().transitions();
    scene.exec_fails("app", true);
    let liveness = json!({"livenessProbe": {"periodSeconds": 1}});
    let spec = json!({"containers": [probed("app", liveness)], "restartPolicy": "Never"});
    scene.want(&[pod_with("u1", spec)]);
    scene.until_finished("u1").await;
    assert_eq!(scene.seconds("StopContainer app/0 30s"), [3]);
    let causes = drain(&mut transitions).map(|seen| format!("{}: {}", seen.to, seen.cause));
    let causes: Vec<String> = causes.collect();
    let expected = "Liveness probe failed: no";
    assert!(causes.contains(&format!("Terminated(Error): {expected}")), "{causes:#?}");
    assert!(causes.contains(&format!("Terminating: app {expected}")), "{causes:#?}");
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_its_probe_and_thresholds() {
    let scene = Scene::new();
    scene.exec_fails("app", true);
    let readiness = json!({"readinessProbe": {"periodSeconds": 5, "successThreshold": 2, "failureThreshold": 2}});
    scene.want(&[one(readiness)]);
    let started = scene.until("u1", "started", |report| is_started(report, "app")).await;
    assert!(!is_ready(&scene.report("u1")));
    // It is probed immediately, not at the first tick.
    scene.sleep(1).await;
    assert_eq!(scene.seconds("ExecSync app/0 readinessProbe")[0], started);
    scene.sleep(20).await;
    assert!(!is_ready(&scene.report("u1")));
    scene.exec_fails("app", false);
    let changed = scene.now();
    let ready = scene.until("u1", "ready", is_ready).await;
    assert!(ready > changed + 4 && ready <= changed + 10, "{changed} {ready}");
    scene.exec_fails("app", true);
    let unready = scene.until("u1", "not ready", |report| !is_ready(report)).await;
    assert!(unready > ready + 4 && unready <= ready + 10, "{ready} {unready}");
    assert_eq!(scene.report("u1").containers[0].restarts, 0);
    assert_eq!(scene.seconds("StartContainer app/0"), [0]);
}

#[tokio::test(start_paused = true)]
async fn startup_probe_delays_other_probes() {
    let scene = Scene::new();
    scene.exec_fails("app", true);
    scene.want(&[one(json!({
        "startupProbe": {"periodSeconds": 2, "failureThreshold": 30},
        "livenessProbe": {"periodSeconds": 1},
        "readinessProbe": {"periodSeconds": 60},
    }))]);
    scene.until_running("u1").await;
    scene.sleep(21).await;
    assert!(!is_started(&scene.report("u1"), "app"));
    assert!(scene.seconds("ExecSync app/0 livenessProbe").is_empty());
    assert!(scene.seconds("ExecSync app/0 readinessProbe").is_empty());
    scene.exec_fails("app", false);
    let started = scene.until("u1", "started", |report| is_started(report, "app")).await;
    // Readiness does not wait for its next tick.
    assert_eq!(scene.until("u1", "ready", is_ready).await, started);
    scene.sleep(5).await;
    let startups = scene.seconds("ExecSync app/0 startupProbe");
    assert_eq!(startups.last(), Some(&started), "it is not run again");
    assert!(scene.seconds("ExecSync app/0 livenessProbe").len() >= 4);
}

#[tokio::test(start_paused = true)]
async fn failed_startup_probe_restarts_container() {
    let scene = Scene::new();
    scene.exec_fails("app", true);
    scene.want(&[one(json!({"startupProbe": {"periodSeconds": 1, "failureThreshold": 3}}))]);
    scene.until_restarted("u1").await;
    assert_eq!(scene.seconds("ExecSync app/0 startupProbe"), [1, 2, 3]);
    assert_eq!(scene.seconds("StopContainer app/0 30s"), [3]);
}

#[tokio::test(start_paused = true)]
async fn initial_delay_counts_from_start_of_container() {
    let scene = Scene::new();
    let probe = json!({"livenessProbe": {"periodSeconds": 3, "initialDelaySeconds": 10}});
    scene.want(&[one(probe)]);
    scene.sleep(20).await;
    assert_eq!(scene.seconds("ExecSync app/0 livenessProbe"), [12, 15, 18]);
}

#[tokio::test(start_paused = true)]
async fn app_starts_when_startup_probe_of_sidecar_succeeds() {
    let scene = Scene::new();
    scene.exec_fails("side", true);
    let mut side =
        probed("side", json!({"startupProbe": {"periodSeconds": 1, "failureThreshold": 60}}));
    side["restartPolicy"] = json!("Always");
    let spec = json!({"initContainers": [side], "containers": [container("app", "app")]});
    scene.want(&[pod_with("u1", spec)]);
    scene.until("u1", "running", |report| status(report, "side").container_id.is_some()).await;
    scene.sleep(10).await;
    assert_eq!(scene.fake.running(), ["side"]);
    scene.exec_fails("side", false);
    let changed = scene.now();
    scene.until("u1", "ready", is_ready).await;
    let started = scene.seconds("StartContainer app/0");
    assert!(started == [changed] || started == [changed + 1], "{changed} {started:?}");
}

#[tokio::test(start_paused = true)]
async fn readiness_gate_waits_for_its_condition() {
    let scene = Scene::new();
    let spec = json!({"containers": [container("app", "app")], "readinessGates": [{"conditionType": "x/y"}]});
    scene.run(&pod_with("u1", spec)).await;
    scene.sleep(5).await;
    assert!(status(&scene.report("u1"), "app").ready);
    assert!(!is_ready(&scene.report("u1")));
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_keeps_running_containers() {
    let mut scene = Scene::new();
    let probes = json!({
        "startupProbe": {"periodSeconds": 1}, "livenessProbe": {"periodSeconds": 1},
        "readinessProbe": {"periodSeconds": 10},
    });
    scene.run_ready(&one(probes.clone())).await;
    scene.sleep(60).await;
    scene.stop_agent().await;
    let stopped = scene.now();
    scene.sleep(60).await;
    scene.start_agent();
    let ready = scene.run_ready(&one(probes)).await;
    assert!(ready >= stopped + 60 && ready <= stopped + 70, "{stopped} {ready}");
    scene.sleep(30).await;
    assert_eq!(scene.report("u1").containers[0].restarts, 0);
    assert_eq!(scene.seconds("StartContainer app/0").len(), 1);
    // Its readiness is the result of its probe.
    scene.exec_fails("app", true);
    scene.until("u1", "not ready", |report| !is_ready(report)).await;
}

#[tokio::test(start_paused = true)]
async fn readiness_is_probed_until_containers_have_stopped() {
    let scene = Scene::new();
    scene.fake.image("app", slow(10));
    let probes =
        json!({"livenessProbe": {"periodSeconds": 1}, "readinessProbe": {"periodSeconds": 1}});
    scene.run_ready(&one(probes)).await;
    scene.sleep(10).await;
    let ends = scene.now();
    scene.remove_all().await;
    let last = |kind: &str| *scene.seconds(&format!("ExecSync app/0 {kind}")).last().unwrap();
    assert!(last("livenessProbe") <= ends);
    assert!(last("readinessProbe") >= ends + 8, "{} {ends}", last("readinessProbe"));
    let calls = scene.calls().len();
    scene.sleep(60).await;
    assert_eq!(scene.calls().len(), calls, "nothing is probed any more");
}

#[tokio::test(start_paused = true)]
async fn removed_static_pod_is_probed_until_its_status_is_forgotten() {
    let scene = Scene::new();
    scene.fake.image("app", slow(10));
    let pod = one(json!({"readinessProbe": {"periodSeconds": 1}}));
    scene.run_ready(&of_source("file", &pod)).await;
    scene.sleep(10).await;
    let ends = scene.now();
    scene.remove_all().await;
    let checks = scene.seconds("ExecSync app/0 readinessProbe");
    let last = checks.last().unwrap();
    assert!((ends + 1..=ends + HOUSEKEEPING).contains(last), "{checks:?} {ends}");
}

#[tokio::test(start_paused = true)]
async fn slow_check_is_a_failure_and_delays_the_next() {
    let scene = Scene::new();
    scene.fake.exec("app", seconds(10), 0, "");
    let probe =
        json!({"livenessProbe": {"periodSeconds": 2, "timeoutSeconds": 3, "failureThreshold": 2}});
    scene.want(&[one(probe)]);
    scene.until_restarted("u1").await;
    assert_eq!(scene.seconds("ExecSync app/0 livenessProbe"), [2, 5]);
    assert_eq!(scene.seconds("StopContainer app/0 30s"), [8]);
}
