//! Lifecycle hooks: their calls, their duration, and the effects of their failure.

use super::*;
use crate::cri::ExecOutput;

fn exit(code: i32) -> ExecOutput {
    ExecOutput { stdout: b"no\n".to_vec(), exit_code: code, ..ExecOutput::default() }
}

fn with_hook(name: &str, image: &str, hook: &str, handler: Value) -> Value {
    container_with(name, image, "lifecycle", json!({hook: handler}))
}

/// A pod with these containers and this grace period.
fn pod_of(containers: Value, grace: i64) -> Pod {
    pod_with("u1", json!({"containers": containers, "terminationGracePeriodSeconds": grace}))
}

/// Starts the pod, and removes it from its source once it runs. Returns the second of the removal.
async fn run_and_remove(scene: &Scene, pod: Pod) -> u64 {
    let begun = scene.run(&pod).await;
    scene.remove_all().await;
    begun
}

#[tokio::test(start_paused = true)]
async fn next_container_starts_after_post_start_hook() {
    let scene = Scene::new();
    scene.fake.command(&["slow"], seconds(4), exit(0));
    let first = with_hook("a", "app", "postStart", exec("slow"));
    scene.want(&[pod_of(json!([first, container("b", "app")]), 2)]);
    scene.sleep(3).await;
    // A container runs once its hook has succeeded.
    assert_eq!(phase(&scene.report("u1")), "Pending");
    assert_eq!(reason(&scene.report("u1"), "a"), "ContainerCreating");
    let starting = scene.report("u1").containers.swap_remove(0);
    let (_, log) = starting.in_hook.expect("its log is rotated");
    assert!(log.ends_with("a/0.log"), "{log:?}");
    scene.until_all_run("u1").await;
    assert!(scene.report("u1").containers.iter().all(|container| container.in_hook.is_none()));
    assert_eq!(
        scene.calls(),
        [
            "RunPodSandbox pod-u1/0",
            "CreateContainer a/0",
            "StartContainer a/0",
            "ExecSync a/0 slow",
            "CreateContainer b/0",
            "StartContainer b/0",
        ]
    );
    assert_eq!(scene.seconds("CreateContainer b/0"), [4]);
}

#[tokio::test(start_paused = true)]
async fn failed_post_start_hook_kills_container() {
    let scene = Scene::new();
    scene.fake.command(&["fails"], seconds(0), exit(7));
    let first = with_hook("a", "app", "postStart", exec("fails"));
    scene.want(&[pod_of(json!([first, container("b", "app")]), 2)]);
    scene.until_reason("u1", "a", "PostStartHookError").await;
    assert_eq!(
        scene.report("u1").containers[0].message,
        "Exec lifecycle hook ([fails]) for Container \"a\" in Pod \"pod-u1_default(u1)\" failed - error: command 'fails' exited with 7: , message: \"no\\n\""
    );
    scene.sleep(5).await;
    assert_eq!(
        scene.calls()[..9],
        [
            "RunPodSandbox pod-u1/0",
            "CreateContainer a/0",
            "StartContainer a/0",
            "ExecSync a/0 fails",
            "StopContainer a/0 2s",
            "CreateContainer b/0",
            "StartContainer b/0",
            "CreateContainer a/1",
            "StartContainer a/1",
        ],
        "and it is restarted like after a crash"
    );
    assert_eq!(reason(&scene.report("u1"), "a"), "CrashLoopBackOff");
}

#[tokio::test(start_paused = true)]
async fn sleep_and_invalid_handlers_behave_as_in_a_kubelet() {
    let scene = Scene::new();
    let sleeps = with_hook("a", "app", "postStart", json!({"sleep": {"seconds": 3}}));
    let invalid = with_hook("b", "app", "postStart", json!({"tcpSocket": {"port": 80}}));
    scene.want(&[pod_of(json!([sleeps, invalid]), 2)]);
    scene.sleep(4).await;
    assert_eq!(scene.seconds("StartContainer b/0"), [3]);
    assert_eq!(scene.seconds("StopContainer b/0 2s"), [3], "a hook with a socket fails");
}

#[tokio::test(start_paused = true)]
async fn removed_pod_waits_for_its_post_start_hook() {
    let scene = Scene::new();
    scene.fake.command(&["slow"], seconds(12), exit(0));
    let first = with_hook("a", "app", "postStart", exec("slow"));
    scene.want(&[pod_of(json!([first]), 3)]);
    scene.sleep(4).await;
    scene.remove_all().await;
    assert_eq!(scene.seconds("StopContainer a/0 3s"), [12]);
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn kill_now_ends_post_start_hook() {
    let scene = Scene::new();
    scene.fake.command(&["slow"], seconds(1200), exit(0));
    let first = with_hook("a", "app", "postStart", exec("slow"));
    scene.want(&[pod_of(json!([first]), 300)]);
    scene.sleep(4).await;
    scene.want(&[]);
    scene.agent().kill_now();
    assert_eq!(scene.until_removed("u1").await, 4);
}

#[tokio::test(start_paused = true)]
async fn pre_stop_hook_uses_up_grace_period() {
    // The hook's duration, the grace period, and when and with which timeout the container is stopped.
    let table = [(3, 8, 3, "5s"), (0, 5, 0, "5s"), (30, 4, 4, "2s"), (30, 0, 1, "2s")];
    for (takes, grace, after, timeout) in table {
        let scene = Scene::new();
        scene.fake.command(&["hook"], seconds(takes), exit(0));
        let app = with_hook("a", "deaf", "preStop", exec("hook"));
        let begun = run_and_remove(&scene, pod_of(json!([app]), grace)).await;
        assert_eq!(scene.seconds("ExecSync a/0 hook"), [begun]);
        let stop = scene.seconds(&format!("StopContainer a/0 {timeout}"));
        assert_eq!(stop, [begun + after], "{takes} {grace}: {:?}", scene.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn failed_pre_stop_hook_does_not_keep_container() {
    let scene = Scene::new();
    let mut events = scene.agent().events();
    scene.fake.command(&["fails"], seconds(1), exit(5));
    let app = with_hook("a", "app", "preStop", exec("fails"));
    let begun = run_and_remove(&scene, pod_of(json!([app]), 5)).await;
    assert_eq!(scene.seconds("StopContainer a/0 4s"), [begun + 1]);
    let reasons: Vec<String> = drain(&mut events).map(|event| event.reason).collect();
    assert_eq!(reasons[reasons.len() - 2..], ["Killing", "FailedPreStopHook"]);
}

#[tokio::test(start_paused = true)]
async fn pre_stop_hook_runs_before_container_is_replaced() {
    let scene = Scene::new();
    scene.fake.command(&["hook"], seconds(2), exit(0));
    let app = |image| with_hook("a", image, "preStop", exec("hook"));
    scene.run(&pod_of(json!([app("one")]), 6)).await;
    scene.want(&[pod_of(json!([app("two")]), 6)]);
    scene.until_restarted("u1").await;
    assert_eq!(
        scene.calls()[3..],
        ["ExecSync a/0 hook", "StopContainer a/0 4s", "CreateContainer a/1", "StartContainer a/1"]
    );
}

#[tokio::test(start_paused = true)]
async fn http_hook_without_host_fails_in_host_network() {
    let scene = Scene::new();
    let request = json!({"httpGet": {"port": 80, "path": "/x"}});
    let app = with_hook("a", "app", "postStart", request);
    scene.want(&[pod_with("u1", json!({"containers": [app], "hostNetwork": true}))]);
    scene.until_reason("u1", "a", "PostStartHookError").await;
    assert_eq!(
        scene.report("u1").containers[0].message,
        "HTTP lifecycle hook (/x) for Container \"a\" in Pod \"pod-u1_default(u1)\" failed - error: failed to find networking container"
    );
}
