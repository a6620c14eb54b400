//! Volumes that drivers mount: when drivers are called, and that no mounted volume is removed.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use rstest::rstest;

use super::*;
use crate::objects::{BoundClaim, ObjectMap};
use crate::reporting::measures::OrphanedDirs;
use crate::storage::drivers::{
    DriverError, DriverSource, DriverStep, DriverUsage, DriverVolume, Expansion, MountedVolume,
    VolumeDrivers,
};
use crate::{Event, EventObjectKind};

/// Drivers that mount on the scene's machine, and keep records in the directories of pods.
#[derive(Clone)]
struct FakeDrivers {
    machine: FakeMachine,
    clock: Arc<dyn Clock>,
    epoch: Timestamp,
    script: Arc<Mutex<Script>>,
}

#[derive(Default)]
struct Script {
    calls: Vec<(u64, String)>,
    /// The error of mounts.
    refuses: Option<DriverError>,
    /// Whether unmounts have no effect.
    holds: bool,
    /// Mounting takes this many seconds.
    delay: u64,
    /// Whether the volumes are block devices.
    are_devices: bool,
}

impl FakeDrivers {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    fn note(&self, call: String) {
        let now = until(self.epoch, self.clock.now()).as_secs();
        self.script().calls.push((now, call));
    }

    /// The seconds of the calls with this prefix.
    fn seconds(&self, call: &str) -> Vec<u64> {
        let script = self.script();
        let chosen = script.calls.iter().filter(|(_, text)| text.starts_with(call));
        chosen.map(|(at, _)| *at).collect()
    }

    fn calls(&self) -> Vec<String> {
        self.script().calls.iter().map(|(_, text)| text.clone()).collect()
    }
}

#[async_trait]
impl VolumeDrivers for FakeDrivers {
    async fn mount(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<MountedVolume, DriverError> {
        let kind = match &volume.source {
            DriverSource::Inline(_) => "inline",
            DriverSource::Persistent(_) => "persistent",
        };
        self.note(format!("mount {kind} {} {}", volume.spec_name, pod.name()));
        let path = pod_dir.join("volumes/kubernetes.io~csi").join(&volume.spec_name).join("mount");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("data"), "kept").unwrap();
        let delay = self.script().delay;
        self.machine.set(|machine| {
            machine.mounts.insert(path.clone());
        });
        tokio::time::sleep(seconds(delay)).await;
        let is_device = self.script().are_devices;
        match self.script().refuses.clone() {
            Some(error) => Err(error),
            None => {
                let expansion = Expansion::Unchanged;
                let (is_new, takes_group) = (true, false);
                Ok(MountedVolume { path, is_device, is_new, takes_group, expansion })
            }
        }
    }

    async fn renew(&self, _: &Pod, _: &Path, volume: &DriverVolume) -> Result<(), DriverError> {
        self.note(format!("renew {}", volume.spec_name));
        Ok(())
    }

    async fn expand(
        &self,
        _: &Pod,
        _: &Path,
        volume: &DriverVolume,
    ) -> Result<Expansion, DriverError> {
        self.note(format!("expand {}", volume.spec_name));
        match self.script().refuses.clone() {
            Some(error) => Err(DriverError { step: DriverStep::Expand, ..error }),
            None => Ok(Expansion::Expanded),
        }
    }

    fn renewal_period(&self) -> Duration {
        seconds(60)
    }

    async fn unmount(&self, pod_dir: &Path) -> Result<(), DriverError> {
        let name = pod_dir.file_name().unwrap().to_str().unwrap();
        self.note(format!("unmount {name}"));
        if self.script().holds {
            return Err(DriverError { step: DriverStep::TearDown, ..error("busy") });
        }
        let own = pod_dir.join("volumes/kubernetes.io~csi");
        self.machine.set(|machine| machine.mounts.retain(|at| !at.starts_with(&own)));
        file_tree::remove(&own).unwrap();
        Ok(())
    }

    async fn usage(&self, _: &Path, _: &str) -> Result<Option<DriverUsage>, String> {
        Ok(None)
    }
}

fn error(message: &str) -> DriverError {
    DriverError {
        step: DriverStep::MountDevice,
        volume: "pv".to_owned(),
        message: message.to_owned(),
        waits: false,
        is_exhausted: false,
    }
}

fn scene_with_drivers() -> (Scene, FakeDrivers) {
    let mut scene = Scene::without_agent(seconds(10));
    let drivers = FakeDrivers {
        machine: scene.machine.clone(),
        clock: Arc::clone(&scene.clock),
        epoch: scene.epoch,
        script: Arc::default(),
    };
    scene.drivers = Some(Arc::new(drivers.clone()));
    scene.start_agent();
    (scene, drivers)
}

fn mounting(volume: Value) -> Pod {
    let volume = fixtures::with(json!({"name": "v"}), &volume);
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let app = container_with("app", "app", "volumeMounts", mounts);
    pod_with("u1", json!({"containers": [app], "volumes": [volume]}))
}

fn inline() -> Pod {
    mounting(json!({"csi": {"driver": "d.example"}}))
}

/// A claim `data` that a cluster has bound to a driver's volume.
fn bound() -> ObjectMap {
    bound_to("1Gi")
}

/// The claim with a volume of this capacity.
fn bound_to(capacity: &str) -> ObjectMap {
    let csi = json!({"driver": "d.example", "volumeHandle": "h"});
    let claim = json!({"namespace": "default", "name": "data", "uid": "c1"});
    let volume = json!({
        "metadata": {"name": "pv"},
        "spec": {"csi": csi, "capacity": {"storage": capacity}, "claimRef": claim},
    });
    let volume = Arc::new(serde_json::from_value(volume).unwrap());
    let claim = Arc::new(fixtures::claim("data", &json!({})));
    let mut objects = ObjectMap::default();
    objects.set_bound_claim("default", "data", Ok(BoundClaim { claim, volume }));
    objects
}

fn of_claim() -> Pod {
    mounting(json!({"persistentVolumeClaim": {"claimName": "data"}}))
}

fn failed_mounts(events: &mut UnboundedReceiver<Event>) -> Vec<String> {
    let failed = drain(events).filter(|event| event.reason == "FailedMount");
    failed.map(|event| event.message).collect()
}

/// The file that the volume of this name shows in the directory of `u1`.
fn data(scene: &Scene, name: &str) -> PathBuf {
    scene.pod_dir("u1").join("volumes/kubernetes.io~csi").join(name).join("mount/data")
}

#[tokio::test(start_paused = true)]
async fn drivers_mount_before_the_sandbox_and_unmount_after_the_containers() {
    let (scene, drivers) = scene_with_drivers();
    scene.objects.set(bound());
    scene.run(&of_claim()).await;
    assert_eq!(drivers.calls()[0], "mount persistent pv pod-u1");
    assert!(drivers.seconds("mount")[0] <= scene.times("RunPodSandbox")[0]);
    let stopped = scene.remove_all().await;
    assert_eq!(drivers.seconds("unmount u1").len(), 1, "{:?}", drivers.calls());
    assert!(scene.times("StopContainer")[0] <= drivers.seconds("unmount u1")[0]);
    assert!(drivers.seconds("unmount u1")[0] <= stopped);
    scene.assert_clean();
}

#[rstest]
#[case::device(true)]
#[case::file_system(false)]
#[tokio::test(start_paused = true)]
async fn mapped_device_is_an_event(#[case] is_device: bool) {
    let (scene, drivers) = scene_with_drivers();
    let mut events = scene.agent().events();
    drivers.script().are_devices = is_device;
    scene.objects.set(bound());
    scene.want(&[of_claim()]);
    scene.sleep(1).await;
    let first = drain(&mut events).find(|event| event.reason == "SuccessfulMountVolume");
    let directory = scene.pod_dir("u1").join("volumes/kubernetes.io~csi/pv");
    let text = format!(
        "MapVolume.MapPodDevice succeeded for volume \"pv\" volumeMapPath \"{}\"",
        directory.display()
    );
    assert_eq!(first.map(|event| event.message), is_device.then_some(text));
}

#[tokio::test(start_paused = true)]
async fn pod_ends_when_its_driver_unmounts_and_not_before() {
    let (scene, drivers) = scene_with_drivers();
    scene.run(&inline()).await;
    drivers.script().holds = true;
    let file = data(&scene, "v");
    scene.want(&[]);
    scene.sleep(300).await;
    assert!(drivers.seconds("unmount u1").len() > 5, "{:?}", drivers.calls());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    assert!(!scene.report("u1").removed);
    assert_eq!(scene.fake.running(), [""; 0]);
    drivers.script().holds = false;
    scene.until_removed("u1").await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn directory_with_a_foreign_mount_stays() {
    let (scene, _) = scene_with_drivers();
    scene.run(&pod("u1", "app", "Always")).await;
    let at = scene.pod_dir("u1").join("volumes/other/v/mount");
    std::fs::create_dir_all(&at).unwrap();
    std::fs::write(at.join("data"), "kept").unwrap();
    scene.machine.set(|machine| {
        machine.mounts.insert(at.clone());
    });
    scene.want(&[]);
    scene.sleep(300).await;
    assert_eq!(std::fs::read_to_string(at.join("data")).unwrap(), "kept");
    scene.machine.set(|machine| machine.mounts.clear());
    scene.until_removed("u1").await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn orphaned_directory_stays_until_its_driver_unmounts() {
    let (mut scene, drivers) = scene_with_drivers();
    scene.run(&inline()).await;
    let file = data(&scene, "v");
    // The agent is stopped while the pod is removed from its source and from the runtime.
    scene.stop_agent().await;
    scene.fake.forget_all();
    drivers.script().holds = true;
    scene.start_agent();
    scene.want(&[]);
    scene.sleep(300).await;
    assert!(drivers.seconds("unmount u1").len() > 5, "{:?}", drivers.calls());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    let found = || scene.agent().view().measured().orphaned_dirs;
    assert_eq!(found(), OrphanedDirs { found: 1, left: 1 });
    drivers.script().holds = false;
    scene.sleep(10).await;
    assert!(!scene.pod_dir("u1").exists());
    assert_eq!(found(), OrphanedDirs::default());
}

#[tokio::test(start_paused = true)]
async fn orphaned_directory_stays_mounted_without_drivers() {
    let (mut scene, _) = scene_with_drivers();
    scene.run(&inline()).await;
    let file = data(&scene, "v");
    scene.stop_agent().await;
    scene.fake.forget_all();
    scene.drivers = None;
    scene.start_agent();
    scene.want(&[]);
    scene.sleep(200).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    let found = scene.agent().view().measured().orphaned_dirs;
    assert_eq!(found, OrphanedDirs { found: 1, left: 1 });
    scene.machine.set(|machine| machine.mounts.clear());
    scene.sleep(200).await;
    assert!(!scene.pod_dir("u1").exists());
}

#[tokio::test(start_paused = true)]
async fn failed_mount_is_an_event_and_is_tried_again() {
    let (scene, drivers) = scene_with_drivers();
    scene.objects.set(bound());
    let mut events = scene.agent().events();
    drivers.script().refuses = Some(error("rpc error: code = Internal desc = no disk"));
    scene.want(&[of_claim()]);
    scene.sleep(2).await;
    let text = "MountVolume.MountDevice failed for volume \"pv\" : rpc error: code = Internal desc = no disk";
    assert_eq!(failed_mounts(&mut events), [text; 3]);
    assert_eq!(reason(&scene.report("u1"), "app"), "FailedMount");
    drivers.script().refuses = None;
    scene.until_running("u1").await;
}

#[tokio::test(start_paused = true)]
async fn unattached_volume_is_awaited_without_events() {
    let (scene, drivers) = scene_with_drivers();
    scene.objects.set(bound());
    let mut events = scene.agent().events();
    drivers.script().refuses = Some(DriverError { waits: true, ..error("not attached") });
    scene.want(&[of_claim()]);
    scene.sleep(100).await;
    assert_eq!(failed_mounts(&mut events), [""; 0]);
    assert!(drivers.seconds("mount").len() > 3);
    drivers.script().refuses = None;
    scene.until_running("u1").await;
}

#[tokio::test(start_paused = true)]
async fn pod_is_rejected_after_a_while_if_the_node_cannot_attach_its_volume() {
    let (scene, drivers) = scene_with_drivers();
    scene.objects.set(bound());
    let mut events = scene.agent().events();
    let not_attached =
        DriverError { waits: true, is_exhausted: true, ..error("attachment limit exceeded") };
    drivers.script().refuses = Some(not_attached);
    scene.want(&[of_claim()]);
    scene.sleep(100).await;
    assert_eq!(phase(&scene.report("u1")), "Pending");
    scene.until_finished("u1").await;
    let reason = "VolumeAttachmentLimitExceeded";
    assert_eq!(scene.status("u1"), ("Failed".to_owned(), reason.to_owned()));
    let text = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: context deadline exceeded";
    let message = scene.report("u1").status.message.clone();
    assert_eq!(message, Some(format!("Pod was rejected: {text}")));
    let rejected = drain(&mut events).filter(|event| event.reason == reason);
    let messages: Vec<String> = rejected.map(|event| event.message).collect();
    assert_eq!(messages, [text]);
    scene.remove_all().await;
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_removed_while_its_driver_mounts_is_unmounted() {
    let (scene, drivers) = scene_with_drivers();
    drivers.script().delay = 7000;
    scene.want(&[inline()]);
    scene.sleep(5).await;
    let ended = scene.remove_all().await;
    assert!(ended < 60, "{ended}");
    assert_eq!(drivers.seconds("unmount u1").len(), 1);
    assert_eq!(scene.times("RunPodSandbox"), [0; 0]);
    scene.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn volumes_are_renewed_each_minute_also_after_a_restart() {
    let (mut scene, drivers) = scene_with_drivers();
    scene.objects.set(bound());
    scene.run(&of_claim()).await;
    scene.sleep(190).await;
    let before = drivers.seconds("renew pv");
    assert!((3..=5).contains(&before.len()), "{before:?}");
    scene.restart_agent().await;
    scene.want(&[of_claim()]);
    scene.sleep(130).await;
    assert!(drivers.seconds("renew pv").len() >= before.len() + 2);
    assert_eq!(drivers.seconds("mount").len(), 1, "containers run on");
}

#[tokio::test(start_paused = true)]
async fn pod_with_volume_of_driver_is_refused_without_drivers() {
    let scene = Scene::new();
    scene.want(&[inline()]);
    let text = "MountVolume.SetUp failed for volume \"v\" : CSI volumes need a node of a cluster";
    scene.until("u1", "refused", |report| message(report, "app").starts_with(text)).await;
}

#[tokio::test(start_paused = true)]
async fn volume_that_becomes_larger_is_expanded_while_its_pod_runs() {
    let (scene, drivers) = scene_with_drivers();
    scene.objects.set(bound());
    scene.run(&of_claim()).await;
    scene.sleep(150).await;
    let before = drivers.seconds("expand pv").len();
    let mut events = scene.agent().events();
    scene.objects.set(bound_to("2Gi"));
    scene.sleep(1).await;
    assert_eq!(drivers.seconds("expand pv").len(), before + 1);
    let recorded: Vec<(EventObjectKind, String)> = drain(&mut events)
        .filter(|event| event.reason == "FileSystemResizeSuccessful")
        .map(|event| (event.object.kind, event.message))
        .collect();
    let text = "MountVolume.NodeExpandVolume succeeded for volume \"pv\" ";
    let kinds = [EventObjectKind::Pod, EventObjectKind::Claim];
    assert_eq!(recorded.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), kinds);
    assert!(recorded.iter().all(|(_, message)| message.starts_with(text)), "{recorded:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_expansion_is_an_event_and_is_tried_again_while_the_pod_runs() {
    let (scene, drivers) = scene_with_drivers();
    scene.objects.set(bound());
    scene.run(&of_claim()).await;
    scene.sleep(1).await;
    let mut events = scene.agent().events();
    let before = drivers.seconds("expand pv").len();
    drivers.script().refuses = Some(error("no disk"));
    scene.objects.set(bound_to("2Gi"));
    scene.sleep(2).await;
    let failed = drain(&mut events).filter(|event| event.reason == "VolumeResizeFailed");
    let text = "NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : no disk";
    assert_eq!(failed.map(|event| event.message).collect::<Vec<_>>(), [text; 3]);
    drivers.script().refuses = None;
    scene.sleep(100).await;
    assert_eq!(drivers.seconds("expand pv").len(), before + 4);
    assert_eq!(scene.fake.running().len(), 1);
}
