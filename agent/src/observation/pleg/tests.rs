//! The pleg task on a paused clock, with the scripted runtime.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;
use crate::clock::TokioClock;
use crate::cri::Code;
use crate::cri::fake::{Behaviour, FakeCri};
use crate::labels;
use crate::observation::cache::{Cache, Snapshots};
use crate::pod_spec::spec::{ContainerSpec, ImageSpec, SandboxSpec};
use crate::reporting::measures::Counted;

struct Scene {
    fake: FakeCri,
    cache: Cache,
    pods: RuntimePods,
    measures: Measures,
    _task: JoinSet<()>,
}

fn scene() -> Scene {
    scene_with(true)
}

/// A scene whose pleg subscribes to events, or does not.
fn scene_with(events: bool) -> Scene {
    let clock: Arc<dyn Clock> =
        Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()));
    let fake = FakeCri::new(Arc::clone(&clock));
    fake.image("job", Behaviour::ends(Duration::from_secs(30), 3));
    let (cache, requests) = Cache::new();
    let (sender, pods) = watch::channel(None);
    let periods = RelistPeriods {
        alone: Duration::from_secs(1),
        with_events: events.then_some(Duration::from_secs(10)),
    };
    let (mut task, measures) = (JoinSet::new(), Measures::default());
    task.spawn(run(
        Arc::new(fake.clone()),
        clock,
        periods,
        requests,
        sender,
        mpsc::unbounded_channel().0,
        measures.clone(),
    ));
    Scene { fake, cache, pods, measures, _task: task }
}

impl Scene {
    /// The numbers of opened and of failed event streams.
    fn streams(&self) -> (u64, u64) {
        let counts = self.measures.now().counts;
        let of = |happened: Counted| counts.get(&happened).copied().unwrap_or_default();
        (of(Counted::EventStreamOpened), of(Counted::EventStreamFailed))
    }
}

fn pod_labels() -> BTreeMap<String, String> {
    [
        (labels::POD_UID, "u1"),
        (labels::POD_NAMESPACE, "default"),
        (labels::POD_NAME, "p"),
        (labels::CONTAINER_NAME, "app"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// Starts a container in a sandbox of pod u1, as a worker does.
async fn start(fake: &FakeCri) {
    let sandbox =
        SandboxSpec { name: "p".to_owned(), labels: pod_labels(), ..SandboxSpec::default() };
    let id = fake.run_sandbox(&sandbox).await.unwrap();
    let image = ImageSpec { image: "job".to_owned(), ..ImageSpec::default() };
    let spec = ContainerSpec {
        name: "app".to_owned(),
        labels: pod_labels(),
        image,
        ..ContainerSpec::default()
    };
    let container = fake.create_container(&id, &spec, &sandbox).await.unwrap();
    fake.start_container(&container).await.unwrap();
}

/// Waits for a snapshot and returns the second of the test at which it arrived.
async fn seconds_until(
    snapshots: &mut Snapshots,
    since: Instant,
    what: impl Fn(&Snapshot) -> bool,
) -> u64 {
    let wait = snapshots.wait_for(|seen| seen.as_ref().is_some_and(&what));
    tokio::time::timeout(Duration::from_secs(120), wait).await.expect("never seen").unwrap();
    since.elapsed().as_secs()
}

fn runs(seen: &Snapshot) -> bool {
    seen.observed.container("app").is_some_and(|container| container.state.is_running())
}

fn ended(seen: &Snapshot) -> bool {
    seen.observed
        .container("app")
        .is_some_and(|container| container.state.exit().is_some_and(|exit| exit.code == 3))
}

#[tokio::test(start_paused = true)]
async fn events_refresh_pod_immediately() {
    let scene = scene();
    let mut snapshots = scene.cache.subscribe(&PodUid::new("u1"));
    seconds_until(&mut snapshots, Instant::now(), |_| true).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let since = Instant::now();
    start(&scene.fake).await;
    assert_eq!(seconds_until(&mut snapshots, since, runs).await, 0);
    assert_eq!(seconds_until(&mut snapshots, since, ended).await, 30);
    assert!(snapshots.borrow().as_ref().unwrap().causes.of_pod().contains("app exited"));
}

#[tokio::test(start_paused = true)]
async fn relisting_every_second_replaces_events() {
    let scene = scene();
    scene.fake.disable_events();
    let mut snapshots = scene.cache.subscribe(&PodUid::new("u1"));
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let since = Instant::now();
    start(&scene.fake).await;
    assert!(seconds_until(&mut snapshots, since, runs).await <= 1);
    assert!((30..=31).contains(&seconds_until(&mut snapshots, since, ended).await));
    assert_eq!(scene.streams(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn pods_are_refreshed_only_by_relisting_without_event_driven_pleg() {
    let scene = scene_with(false);
    let mut snapshots = scene.cache.subscribe(&PodUid::new("u1"));
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let since = Instant::now();
    start(&scene.fake).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(!snapshots.borrow().as_ref().is_some_and(runs));
    assert_eq!(seconds_until(&mut snapshots, since, runs).await, 0);
    assert_eq!(seconds_until(&mut snapshots, since, ended).await, 30);
    assert_eq!(scene.fake.count("GetContainerEvents"), 0);
    // 33 s, each with a listing of sandboxes.
    let listings = scene.fake.count("ListPodSandbox");
    assert!((32..=40).contains(&listings), "{listings} listings");
}

#[tokio::test(start_paused = true)]
async fn relisting_recovers_lost_events() {
    let scene = scene();
    let mut snapshots = scene.cache.subscribe(&PodUid::new("u1"));
    seconds_until(&mut snapshots, Instant::now(), |_| true).await;
    scene.fake.drop_events();
    let since = Instant::now();
    start(&scene.fake).await;
    let seen = seconds_until(&mut snapshots, since, runs).await;
    assert!((1..=10).contains(&seen), "seen after {seen} s");
}

#[tokio::test(start_paused = true)]
async fn broken_stream_causes_relisting_and_reconnect() {
    let scene = scene();
    let mut snapshots = scene.cache.subscribe(&PodUid::new("u1"));
    seconds_until(&mut snapshots, Instant::now(), |_| true).await;
    let since = Instant::now();
    scene.fake.close_event_streams();
    start(&scene.fake).await;
    assert_eq!(seconds_until(&mut snapshots, since, runs).await, 0);
    assert_eq!(seconds_until(&mut snapshots, since, ended).await, 30, "by the new stream");
    assert_eq!(scene.streams(), (2, 1));
    let delays = scene.measures.now().event_delays;
    assert_eq!((delays.count() > 0, delays.sum()), (true, 0.0));
}

#[tokio::test(start_paused = true)]
async fn cache_refresh_completes_after_runtime_outage() {
    let scene = scene();
    let uid = PodUid::new("u1");
    let mut snapshots = scene.cache.subscribe(&uid);
    start(&scene.fake).await;
    seconds_until(&mut snapshots, Instant::now(), runs).await;
    scene.fake.set_down(true);
    let since = Instant::now();
    let generation = scene.cache.refresh(&uid, Causes::pod("test"));
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(!ended(snapshots.borrow().as_ref().unwrap()));
    scene.fake.set_down(false);
    let seen = seconds_until(&mut snapshots, since, |seen| seen.generation >= generation).await;
    assert!((40..=46).contains(&seen), "answered after {seen} s");
    assert!(ended(snapshots.borrow().as_ref().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn relisting_shows_pods_without_subscriber() {
    let mut scene = scene();
    start(&scene.fake).await;
    let found = scene
        .pods
        .wait_for(|pods| {
            pods.as_ref().is_some_and(|listed| listed.pods.contains_key(&PodUid::new("u1")))
        })
        .await;
    assert_eq!(found.unwrap().as_ref().unwrap().pods[&PodUid::new("u1")].0.name, "p");
}

/// A second pod whose container has a status, beside one whose status always fails.
#[tokio::test(start_paused = true)]
async fn failed_inspection_is_retried_with_backoff() {
    let scene = scene();
    let uid = PodUid::new("u1");
    let mut snapshots = scene.cache.subscribe(&uid);
    seconds_until(&mut snapshots, Instant::now(), |_| true).await;
    scene.fake.fail("ContainerStatus", u32::MAX, Code::Internal, "broken");
    start(&scene.fake).await;
    for _ in 0..100 {
        // Another pod, whose inspections succeed.
        let other = PodUid::new("u2");
        let mut snapshots = scene.cache.subscribe(&other);
        seconds_until(&mut snapshots, Instant::now(), |_| true).await;
        scene.cache.unsubscribe(&other);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let failed = scene.fake.count("ContainerStatus");
    assert!((5..=15).contains(&failed), "{failed} attempts in 20 s");
    scene.fake.fail("ContainerStatus", 0, Code::Internal, "broken");
    let seen = seconds_until(&mut snapshots, Instant::now(), runs).await;
    assert!(seen <= 5, "after {seen} s");
}

#[tokio::test(start_paused = true)]
async fn exit_of_known_container_costs_one_call() {
    let scene = scene();
    let mut snapshots = scene.cache.subscribe(&PodUid::new("u1"));
    tokio::time::sleep(Duration::from_millis(2500)).await;
    start(&scene.fake).await;
    seconds_until(&mut snapshots, Instant::now(), runs).await;
    tokio::time::sleep(Duration::from_secs(29)).await;
    let before = scene.fake.total();
    assert_eq!(seconds_until(&mut snapshots, Instant::now(), ended).await, 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(scene.fake.total() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn resized_containers_are_inspected_again_even_after_a_failure() {
    let scene = scene();
    let uid = PodUid::new("u1");
    let mut snapshots = scene.cache.subscribe(&uid);
    start(&scene.fake).await;
    seconds_until(&mut snapshots, Instant::now(), runs).await;
    let before = scene.fake.count("ContainerStatus");
    let mut refresh = async || {
        let generation = scene.cache.refresh(&uid, Causes::pod("test"));
        let is_new = |seen: &Snapshot| seen.generation >= generation;
        seconds_until(&mut snapshots, Instant::now(), is_new).await;
        scene.fake.count("ContainerStatus") - before
    };
    assert_eq!(refresh().await, 0);
    scene.fake.fail("ContainerStatus", 1, Code::Internal, "broken");
    scene.cache.resized(&uid);
    // The call that fails, and the next one.
    assert_eq!(refresh().await, 2);
    assert_eq!(refresh().await, 2);
}
