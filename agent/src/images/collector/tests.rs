//! Collections on a paused clock, with the scripted runtime.
#![allow(clippy::unwrap_used)]

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use rstest::rstest;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::clock::TokioClock;
use crate::cluster::Standalone;
use crate::cri::Code;
use crate::cri::fake::{Behaviour, FakeCri};
use crate::images::ImageConfig;
use crate::machine::fake::{FakeMachine, disk};
use crate::machine::{FileSystem, KernelMemory, MemoryThreshold, MemoryUse, ProcessIds};
use crate::pod_spec::spec::{ContainerSpec, SandboxSpec};
use crate::reporting::events::{Event, EventObjectKind, EventType};

/// A file system of 1,000 bytes that holds the runtime's images and `others`.
struct ScriptedDisk {
    cri: FakeCri,
    others: Mutex<u64>,
    capacity: Mutex<u64>,
}

impl Machine for ScriptedDisk {
    fn kernel(&self) -> KernelMemory {
        FakeMachine::default().kernel()
    }

    fn memory(&self) -> io::Result<MemoryUse> {
        FakeMachine::default().memory()
    }

    fn cgroup_memory(&self, path: &str) -> io::Result<Option<MemoryUse>> {
        FakeMachine::default().cgroup_memory(path)
    }

    fn memory_threshold(
        &self,
        path: &str,
        bytes: u64,
    ) -> io::Result<Option<Box<dyn MemoryThreshold>>> {
        FakeMachine::default().memory_threshold(path, bytes)
    }

    fn processes(&self) -> io::Result<ProcessIds> {
        FakeMachine::default().processes()
    }

    fn file_system(&self, path: &Path) -> io::Result<FileSystem> {
        assert_eq!(path, Path::new("/images"));
        let used = self.cri.image_bytes() + *self.others.lock().unwrap();
        let capacity = *self.capacity.lock().unwrap();
        let available = capacity.saturating_sub(used);
        Ok(FileSystem { capacity, available, ..disk(1, 100) })
    }

    fn mounts_below(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        FakeMachine::default().mounts_below(directory)
    }
}

struct Node {
    cri: FakeCri,
    disk: Arc<ScriptedDisk>,
    collect_requests: Option<mpsc::Sender<CollectUnused>>,
    events: Mutex<mpsc::UnboundedReceiver<Event>>,
    _root: TempDir,
    collector: JoinHandle<()>,
}

impl Node {
    fn start(policy: ImageGcPolicy, images: &[(&str, u64)]) -> Self {
        Self::start_with_requests(policy, images, false)
    }

    /// Starts a collector. `with_requests` is whether it accepts requests to remove all unused images.
    fn start_with_requests(
        policy: ImageGcPolicy,
        images: &[(&str, u64)],
        with_requests: bool,
    ) -> Self {
        let clock = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
        let cri = FakeCri::new(Arc::clone(&clock) as Arc<dyn Clock>);
        for (name, size) in images {
            let behaviour = Behaviour {
                size: *size,
                pinned: name.starts_with("pinned"),
                ..Behaviour::forever()
            };
            cri.image(name, behaviour);
        }
        let root = tempfile::tempdir().unwrap();
        let disk =
            ScriptedDisk { cri: cri.clone(), others: Mutex::new(0), capacity: Mutex::new(1000) };
        let disk = Arc::new(disk);
        let recorder = EventRecorder::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let events = Mutex::new(recorder.subscribe());
        let images = Images::new(
            Arc::new(cri.clone()),
            Arc::clone(&clock) as Arc<dyn Clock>,
            Arc::default(),
            root.path().to_owned(),
            &ImageConfig::new(root.path()),
            Measures::default(),
            Arc::new(Standalone::default()),
        );
        let collector = ImageCollector {
            cri: Arc::new(cri.clone()),
            clock,
            images: Arc::new(images),
            policy,
            machine: Arc::clone(&disk) as Arc<dyn Machine>,
            measures: Measures::default(),
            events: recorder,
            node_name: "n1".to_owned(),
        };
        let (collect_requests, requests) = mpsc::channel(1);
        let collect_requests = with_requests.then_some(collect_requests);
        let collector = tokio::spawn(collector.run(requests));
        Self { cri, disk, collect_requests, events, _root: root, collector }
    }

    /// Creates a container of the image, which needs a sandbox.
    async fn uses(&self, image: &str) {
        let sandbox = SandboxSpec::default();
        let id = self.cri.run_sandbox(&sandbox).await.unwrap();
        let mut container = ContainerSpec::default();
        container.image.image = image.to_owned();
        self.cri.create_container(&id, &container, &sandbox).await.unwrap();
    }

    /// Requests the removal of all unused images, and waits for it.
    async fn collect_unused(&self) {
        let (done, collected) = oneshot::channel();
        let requests = self.collect_requests.as_ref().unwrap();
        requests.send(CollectUnused(done)).await.unwrap_or_default();
        collected.await.unwrap();
    }

    async fn wait(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// The reason, the message and the count of each event since the last call; all are warnings about the node.
    fn recorded_events(&self) -> Vec<(String, String, u32)> {
        let mut events = self.events.lock().unwrap();
        let events = std::iter::from_fn(|| events.try_recv().ok());
        let recorded = events.map(|event| {
            let object = (event.object.kind, event.object.name.as_str());
            assert_eq!(object, (EventObjectKind::Node, "n1"));
            assert_eq!(event.kind, EventType::Warning);
            (event.reason, event.message, event.count)
        });
        recorded.collect()
    }

    fn removed(&self) -> Vec<String> {
        let calls = self.cri.calls().into_iter();
        calls.filter_map(|call| call.text.strip_prefix("RemoveImage ").map(str::to_owned)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn space_is_freed_from_least_recently_used_image_on() {
    let node = Node::start(
        ImageGcPolicy::default(),
        &[("a", 100), ("b", 100), ("in-use", 300), ("pinned", 300)],
    );
    node.uses("in-use").await;
    node.uses("a").await;
    node.wait(1).await;
    assert_eq!(node.removed(), [""; 0], "80 % are in use");
    node.cri.remove_containers_of("a");
    *node.disk.others.lock().unwrap() = 50;
    node.wait(300).await;
    assert_eq!(node.removed(), ["b"], "85 % were in use, and a was used later");
    *node.disk.others.lock().unwrap() = 400;
    node.wait(300).await;
    assert_eq!(node.removed(), ["b", "a"], "the rest is in use or pinned");
}

#[tokio::test(start_paused = true)]
async fn new_images_are_kept_for_the_minimum_age() {
    let node = Node::start(ImageGcPolicy::default(), &[("a", 900)]);
    node.wait(299).await;
    assert_eq!(node.removed(), [""; 0]);
    node.wait(2).await;
    assert_eq!(node.removed(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn unused_images_are_removed_after_the_maximum_age() {
    let policy = ImageGcPolicy::new(85, 80, Duration::ZERO, Duration::from_secs(1000)).unwrap();
    let node = Node::start(policy, &[("a", 1), ("in-use", 1), ("pinned", 1)]);
    node.uses("in-use").await;
    node.wait(901).await;
    assert_eq!(node.removed(), [""; 0]);
    node.wait(300).await;
    assert_eq!(node.removed(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_after_the_period() {
    let node = Node::start(ImageGcPolicy::default(), &[("a", 900)]);
    node.cri.fail("RemoveImage", 1, Code::Internal, "busy");
    node.wait(302).await;
    assert_eq!(node.removed(), ["a"], "the call failed");
    node.wait(300).await;
    assert_eq!(node.removed(), ["a", "a"]);
    assert_eq!(node.cri.image_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn collection_at_100_percent_does_nothing() {
    let policy = ImageGcPolicy::new(100, 80, Duration::ZERO, Duration::ZERO).unwrap();
    let node = Node::start(policy, &[("a", 1000)]);
    node.wait(1000).await;
    assert!(node.collector.is_finished() && node.removed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unused_images_are_removed_on_request_with_collection_off() {
    let policy = ImageGcPolicy::new(100, 80, Duration::from_secs(60), Duration::ZERO).unwrap();
    let images = [("a", 1), ("in-use", 1), ("pinned", 1)];
    let node = Node::start_with_requests(policy, &images, true);
    node.uses("in-use").await;
    node.collect_unused().await;
    assert_eq!(node.removed(), [""; 0], "they were just pulled");
    node.wait(60).await;
    node.collect_unused().await;
    assert_eq!(node.removed(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn images_age_with_collection_off() {
    let policy = ImageGcPolicy::new(100, 80, Duration::from_secs(60), Duration::ZERO).unwrap();
    let node = Node::start_with_requests(policy, &[("a", 1)], true);
    node.wait(61).await;
    node.collect_unused().await;
    assert_eq!(node.removed(), ["a"], "the first request finds an image that has been there");
}

/// An event as [`Node::recorded_events`] returns it.
fn event(reason: &str, message: &str, count: u32) -> (String, String, u32) {
    (reason.to_owned(), message.to_owned(), count)
}

#[tokio::test(start_paused = true)]
async fn failure_is_an_event_from_the_second_one_in_a_row_on() {
    let node = Node::start(ImageGcPolicy::default(), &[]);
    node.cri.fail("ListImages", 3, Code::Unavailable, "no runtime");
    node.wait(1).await;
    assert_eq!(node.recorded_events(), [], "the runtime may have just started");
    let message = "rpc error: code = Unavailable desc = no runtime";
    for count in 1..=2 {
        node.wait(300).await;
        assert_eq!(node.recorded_events(), [event("ImageGCFailed", message, count)]);
    }
    node.wait(300).await;
    node.cri.fail("ListImages", 1, Code::Unavailable, "no runtime");
    node.wait(600).await;
    assert_eq!(node.recorded_events(), [], "it succeeded before and after");
}

#[tokio::test(start_paused = true)]
async fn file_system_without_capacity_is_an_event_each_time() {
    let node = Node::start(ImageGcPolicy::default(), &[]);
    *node.disk.capacity.lock().unwrap() = 0;
    node.wait(1).await;
    let message = "invalid capacity 0 on image filesystem";
    assert_eq!(node.recorded_events(), [event("InvalidDiskCapacity", message, 1)]);
    node.wait(300).await;
    let expected = [event("InvalidDiskCapacity", message, 2), event("ImageGCFailed", message, 1)];
    assert_eq!(node.recorded_events(), expected);
    *node.disk.capacity.lock().unwrap() = 1000;
    node.wait(300).await;
    assert_eq!(node.recorded_events(), []);
}

#[tokio::test(start_paused = true)]
async fn failed_image_gc_is_an_event_each_time() {
    let node = Node::start(ImageGcPolicy::default(), &[("in-use", 300), ("unused", 10)]);
    node.uses("in-use").await;
    *node.disk.others.lock().unwrap() = 600;
    node.wait(1).await;
    let message = |used: u64, freed: u64| {
        format!(
            "Insufficient free disk space on the node's image filesystem ({used}% of 1000 B used). Failed to free sufficient space by \
             deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, \
             volumes, or other data."
        )
    };
    // 910 of 1000 bytes are in use, and the unused image is too new.
    assert_eq!(node.recorded_events(), [event("FreeDiskSpaceFailed", &message(91, 0), 1)]);
    node.wait(300).await;
    assert_eq!(node.removed(), ["unused"]);
    let message = message(91, 10);
    let expected = [event("FreeDiskSpaceFailed", &message, 1), event("ImageGCFailed", &message, 1)];
    assert_eq!(node.recorded_events(), expected);
}

fn no(call: &'static str, message: &str) -> CriError {
    CriError { call, code: Code::Internal, message: message.to_owned() }
}

/// Images that were not removed, one for each of these messages.
fn kept(messages: &[&str]) -> Vec<(String, CriError)> {
    let one = |message: &&str| ("image".to_owned(), no("RemoveImage", message));
    messages.iter().map(one).collect()
}

#[rstest]
#[case::images(CollectError::Observe(no("ListImages", "x")), "rpc error: code = Internal desc = x")]
#[case::container(
    CollectError::Observe(no("ContainerStatus", "x")),
    "get container status: runtime container status: rpc error: code = Internal desc = x"
)]
#[case::file_system(CollectError::NoImageFs, "imageFs information is unavailable")]
#[case::age(
    CollectError::Age { age: Duration::from_secs(5400), failed: kept(&["x", "x"]) },
    "wanted to free images older than 1h30m0s, encountered errors in image deletion: rpc error: code = Internal desc = x"
)]
#[case::space(
    CollectError::Space { bytes: 20, freed: 10, failed: kept(&["x", "y", "x"]) },
    "wanted to free 20 bytes, but freed 10 bytes space with errors in image deletion: \
     [rpc error: code = Internal desc = x, rpc error: code = Internal desc = y]"
)]
fn errors_are_written_as_by_a_kubelet(#[case] error: CollectError, #[case] expected: &str) {
    assert_eq!(error.go_text(), expected);
}
