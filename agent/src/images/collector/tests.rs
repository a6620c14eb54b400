//! Collections on a paused clock, with the scripted runtime.
#![allow(clippy::unwrap_used)]

use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::clock::TokioClock;
use crate::cri::fake::{Behaviour, FakeCri};
use crate::images::ImageConfig;
use crate::machine::fake::{FakeMachine, disk};
use crate::machine::{FileSystem, KernelMemory, MemoryThreshold, MemoryUse, ProcessIds};
use crate::pod_spec::spec::{ContainerSpec, SandboxSpec};

/// A file system of 1,000 bytes in which the runtime's images and `others` are.
struct ScriptedDisk {
    cri: FakeCri,
    others: Mutex<u64>,
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
        let available = 1000_u64.saturating_sub(used);
        Ok(FileSystem { capacity: 1000, available, ..disk(1, 100) })
    }

    fn mounts_below(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        FakeMachine::default().mounts_below(directory)
    }
}

struct Node {
    cri: FakeCri,
    disk: Arc<ScriptedDisk>,
    asks: Option<mpsc::Sender<CollectUnused>>,
    _root: TempDir,
    collector: JoinHandle<()>,
}

impl Node {
    fn start(policy: ImageGcPolicy, images: &[(&str, u64)]) -> Self {
        Self::start_asked(policy, images, false)
    }

    /// Starts a collector that may be asked to remove all unused images.
    fn start_asked(policy: ImageGcPolicy, images: &[(&str, u64)], asked: bool) -> Self {
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
        let disk = Arc::new(ScriptedDisk { cri: cri.clone(), others: Mutex::new(0) });
        let images = Images::new(
            Arc::new(cri.clone()),
            Arc::clone(&clock) as Arc<dyn Clock>,
            Arc::default(),
            root.path().to_owned(),
            &ImageConfig::new(root.path()),
            Measures::default(),
        );
        let collector = ImageCollector {
            cri: Arc::new(cri.clone()),
            clock,
            images: Arc::new(images),
            policy,
            machine: Arc::clone(&disk) as Arc<dyn Machine>,
            measures: Measures::default(),
        };
        let (asks, requests) = mpsc::channel(1);
        let asks = asked.then_some(asks);
        Self { cri, disk, asks, _root: root, collector: tokio::spawn(collector.run(requests)) }
    }

    /// Creates a container of the image, which needs a sandbox.
    async fn uses(&self, image: &str) {
        let sandbox = SandboxSpec::default();
        let id = self.cri.run_sandbox(&sandbox).await.unwrap();
        let mut container = ContainerSpec::default();
        container.image.image = image.to_owned();
        self.cri.create_container(&id, &container, &sandbox).await.unwrap();
    }

    async fn wait(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
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
    node.cri.fail("RemoveImage", 1, crate::cri::Code::Internal, "busy");
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
async fn unused_images_are_removed_when_asked_for_though_collection_is_off() {
    let policy = ImageGcPolicy::new(100, 80, Duration::from_secs(60), Duration::ZERO).unwrap();
    let images = [("a", 1), ("in-use", 1), ("pinned", 1)];
    let node = Node::start_asked(policy, &images, true);
    node.uses("in-use").await;
    let ask = async || {
        let (done, collected) = oneshot::channel();
        node.asks.as_ref().unwrap().send(CollectUnused(done)).await.unwrap_or_default();
        collected.await.unwrap();
    };
    ask().await;
    assert_eq!(node.removed(), [""; 0], "they were just pulled");
    node.wait(60).await;
    ask().await;
    assert_eq!(node.removed(), ["a"]);
}
