//! Pods end before the machine shuts down.

use super::*;
use crate::cri::Code;
use crate::{Event, EventObjectKind, EventType};

const CRITICAL: i32 = 2_000_000_000;

/// A scene on a machine with this maximum delay of a shutdown. Regular pods get 20 s of it, critical ones 10 s.
fn scene(allowed: u64) -> (Scene, FakeLogind) {
    let mut scene = Scene::without_agent(seconds(10));
    let logind = FakeLogind::allowing(seconds(allowed));
    scene.logind = Some(logind.clone());
    let period = |priority, seconds| ShutdownPeriod { priority, seconds };
    scene.shutdown = vec![period(0, 20), period(CRITICAL, 10)];
    scene.fake.image("slow", slow(5));
    scene.fake.image("critical", slow(3));
    scene.start_agent();
    (scene, logind)
}

fn of_priority(uid: &str, image: &str, priority: i32) -> Pod {
    let spec = json!({"containers": [container("app", image)], "priority": priority});
    pod_with(uid, spec)
}

/// Runs pods of each kind, once the agent watches for shutdowns.
async fn run_pods(scene: &Scene) {
    scene.sleep(1).await;
    let pods = [
        of_priority("u1", "slow", 0),
        of_priority("u2", "slow", 5),
        of_priority("u3", "critical", CRITICAL),
    ];
    scene.want(&pods);
    for pod in &pods {
        scene.until_running(pod.uid().as_str()).await;
    }
}

/// The messages of the events about the node, which are all about shutdowns.
fn shutdowns(events: &[Event]) -> Vec<String> {
    let of_node = events.iter().filter(|event| event.object.kind == EventObjectKind::Node);
    let message = |event: &Event| {
        assert_eq!((event.kind, event.reason.as_str()), (EventType::Normal, "Shutdown"));
        event.message.clone()
    };
    of_node.map(message).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_end_by_priority_before_the_machine_does() {
    let (mut scene, logind) = scene(60);
    let mut events = scene.agent().events();
    run_pods(&scene).await;
    let view = scene.agent().view();
    assert_eq!((logind.locks(), view.not_ready()), (1, Vec::new()));
    let begun = scene.now();
    logind.send(true);
    let regular = scene.until_finished("u1").await.max(scene.until_finished("u2").await);
    assert_eq!(regular, begun + 5);
    assert_eq!(logind.locks(), 1, "the critical pod runs");
    assert_eq!(scene.until_finished("u3").await, begun + 8, "after the regular ones");
    scene.sleep(1).await;
    assert_eq!(logind.locks(), 0, "the machine may shut down");
    assert_eq!(view.not_ready(), ["node is shutting down"]);
    for uid in ["u1", "u2", "u3"] {
        assert_eq!(scene.status(uid), ("Failed".to_owned(), "Terminated".to_owned()), "{uid}");
    }
    let status = scene.report("u1").status;
    let message = "Pod was terminated in response to imminent node shutdown.";
    assert_eq!(status.message.as_deref(), Some(message));
    let conditions = status.conditions.as_ref().unwrap();
    let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
    assert_eq!(target.reason.as_deref(), Some("TerminationByKubelet"));
    let times = view.shutdown_times();
    let seconds = [times.start_time, times.end_time].map(|at| scene.second(at.unwrap()));
    assert_eq!(seconds, [begun, begun + 8]);
    let seen: Vec<Event> = drain(&mut events).collect();
    assert_eq!(shutdowns(&seen), ["Shutdown manager detected shutdown event"]);
    assert!(!seen.iter().any(|event| event.reason == "Terminated"), "{seen:?}");
    scene.restart_agent().await;
    scene.sleep(1).await;
    assert_eq!(scene.agent().view().shutdown_times(), times, "the next agent knows them");
}

#[tokio::test(start_paused = true)]
async fn shutdown_group_is_awaited_up_to_its_period() {
    let (scene, logind) = scene(60);
    run_pods(&scene).await;
    for call in ["StopContainer", "StopPodSandbox"] {
        scene.fake.fail(call, 100, Code::Internal, "stuck");
    }
    let begun = scene.now();
    logind.send(true);
    scene.sleep(29).await;
    assert_eq!(logind.locks(), 1);
    scene.sleep(2).await;
    assert_eq!((logind.locks(), scene.now() - begun), (0, 31));
}

#[tokio::test(start_paused = true)]
async fn pods_are_rejected_until_a_shutdown_is_cancelled() {
    let (scene, logind) = scene(60);
    let mut events = scene.agent().events();
    scene.sleep(1).await;
    logind.send(true);
    scene.sleep(1).await;
    scene.want(&[pod("u1", "app", "Always")]);
    scene.until_finished("u1").await;
    let report = scene.report("u1");
    assert_eq!(report.status.reason.as_deref(), Some("NodeShutdown"));
    let message = "Pod was rejected: Pod was rejected as the node is shutting down.";
    assert_eq!(report.status.message.as_deref(), Some(message));
    assert_eq!(logind.locks(), 0);
    logind.send(false);
    scene.sleep(1).await;
    assert_eq!((logind.locks(), scene.agent().view().not_ready()), (1, Vec::new()));
    let seen: Vec<Event> = drain(&mut events).collect();
    let messages = ["shutdown event", "shutdown cancellation"];
    assert_eq!(shutdowns(&seen), messages.map(|what| format!("Shutdown manager detected {what}")));
    scene.run(&pod("u2", "app", "Always")).await;
}

#[tokio::test(start_paused = true)]
async fn longer_inhibit_delay_is_requested() {
    let (scene, logind) = scene(5);
    scene.sleep(1).await;
    assert_eq!((logind.requested_delays(), logind.locks()), (vec![seconds(30)], 1));
    let (scene, logind) = self::scene(30);
    scene.sleep(1).await;
    assert_eq!((logind.requested_delays(), logind.locks()), (Vec::new(), 1));
}

#[tokio::test(start_paused = true)]
async fn lost_connection_is_made_again() {
    let (scene, logind) = scene(60);
    scene.sleep(1).await;
    logind.set_unavailable(true);
    scene.sleep(10).await;
    assert_eq!(logind.locks(), 0);
    logind.set_unavailable(false);
    scene.sleep(2).await;
    assert_eq!(logind.locks(), 1);
    logind.send(true);
    scene.sleep(1).await;
    assert_eq!(scene.agent().view().not_ready(), ["node is shutting down"]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_without_periods_is_not_delayed() {
    let mut scene = Scene::without_agent(seconds(10));
    let logind = FakeLogind::allowing(seconds(60));
    scene.logind = Some(logind.clone());
    scene.start_agent();
    scene.run(&pod("u1", "app", "Always")).await;
    assert_eq!(logind.locks(), 0);
}
