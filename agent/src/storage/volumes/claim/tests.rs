//! Volumes of claims on disk.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;
use crate::objects::ObjectMap;

fn pod(security: Value, volumes: Value) -> Pod {
    let spec = json!({"containers": [], "securityContext": security, "volumes": volumes});
    fixtures::pod_of("u1", "p", spec)
}

struct Fixture {
    root: tempfile::TempDir,
    claims: Claims,
    objects: ObjectMap,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        Self {
            claims: Claims::new(root.path().join("volumes"), None),
            objects: ObjectMap::default(),
            root,
        }
    }

    /// Prepares the first volume of a pod.
    fn prepare(&self, pod: &Pod) -> Result<HostVolume, String> {
        let volume = &pod.spec().volumes.as_ref().unwrap()[0];
        let dir = self.root.path().join("pod");
        let found = self.claims.prepare(pod, &dir, volume, &self.objects);
        match found.unwrap().map_err(|error| error.to_string())? {
            Found::Host(volume) | Found::Local(volume) => Ok(volume),
            Found::OfDriver(volume) => panic!("a driver mounts {volume:?}"),
        }
    }

    fn add_claim(&mut self, name: &str, fields: Value) {
        self.objects.insert_persistent_volume_claim(fixtures::claim(name, &fields));
    }
}

fn volumes() -> Value {
    json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
}

#[test]
fn claim_without_a_volume_has_a_directory_that_is_kept() {
    let mut fixture = Fixture::new();
    let error = fixture.prepare(&pod(json!({}), volumes())).unwrap_err();
    assert_eq!(
        error,
        "error processing PVC default/data: failed to fetch PVC from API server: persistentvolumeclaims \"data\" not found"
    );
    fixture.add_claim("data", json!({}));
    let found = fixture.prepare(&pod(json!({}), volumes())).unwrap();
    let path = fixture.root.path().join("volumes/default/data/volume");
    assert_eq!((&found.host_path, found.readonly), (&path, false));
    fs::write(path.join("f"), "kept").unwrap();
    let readonly =
        json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}}]);
    assert!(fixture.prepare(&pod(json!({}), readonly)).unwrap().readonly);
    // Another agent, later.
    fixture.claims = Claims::new(fixture.root.path().join("volumes"), None);
    fixture.prepare(&pod(json!({}), volumes())).unwrap();
    assert_eq!(fs::read_to_string(path.join("f")).unwrap(), "kept");
}

#[test]
fn claim_that_fits_no_volume_waits_with_the_reason() {
    let mut fixture = Fixture::new();
    fixture.add_claim("data", json!({"volumeName": "other"}));
    assert_eq!(
        fixture.prepare(&pod(json!({}), volumes())).unwrap_err(),
        "error processing PVC default/data: PVC is not bound: its volumeName \"other\" refers to no existing PersistentVolume: add this PersistentVolume, or leave volumeName out"
    );
}

#[test]
fn local_volume_must_be_a_directory() {
    let mut fixture = Fixture::new();
    fixture.add_claim("data", json!({}));
    let path = fixture.root.path().join("disk");
    let disk = fixtures::volume("disk", &json!({"local": {"path": path}}));
    fixture.objects.insert_persistent_volume(*disk);
    let error = fixture.prepare(&pod(json!({}), volumes())).unwrap_err();
    assert!(error.starts_with("failed to find the local volume "), "{error}");
    fs::write(&path, "").unwrap();
    let error = fixture.prepare(&pod(json!({}), volumes())).unwrap_err();
    assert!(error.ends_with("is not a directory"), "{error}");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let found = fixture.prepare(&pod(json!({}), volumes())).unwrap();
    assert_eq!((found.host_path, found.spec_name), (path, Some("disk".to_owned())));
}

/// An API server has bound the claim to a local volume with this path, which is a block device.
fn block_volume(fixture: &mut Fixture, path: &Path) {
    let spec = json!({"local": {"path": path}, "volumeMode": "Block"});
    let volume = Arc::new(*fixtures::volume("disk", &spec));
    let claim = Arc::new(fixtures::claim("data", &json!({})));
    fixture.objects.set_bound_claim("default", "data", Ok(BoundClaim { claim, volume }));
}

fn pod_with_device() -> Pod {
    let devices = json!([{"name": "v", "devicePath": "/dev/x"}]);
    let spec =
        json!({"containers": [{"name": "c", "volumeDevices": devices}], "volumes": volumes()});
    fixtures::pod_of("u1", "p", spec)
}

#[test]
fn local_block_volume_must_be_a_block_device() {
    let mut fixture = Fixture::new();
    let file = fixture.root.path().join("disk");
    fs::write(&file, "").unwrap();
    for path in [&file, Path::new("/dev/null"), Path::new("/dev")] {
        block_volume(&mut fixture, path);
        let error = fixture.prepare(&pod_with_device()).unwrap_err();
        assert!(error.ends_with("is not a block device"), "{error}");
    }
    // A container of a CI job may have no block device.
    let devices = fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap());
    for device in devices.filter(|it| it.file_type().unwrap().is_block_device()).take(1) {
        block_volume(&mut fixture, &device.path());
        let found = fixture.prepare(&pod_with_device()).unwrap();
        assert_eq!((found.host_path, found.is_device), (device.path(), true));
        assert!(!found.relabel);
    }
}

#[test]
fn local_block_volume_is_not_mounted() {
    let mut fixture = Fixture::new();
    block_volume(&mut fixture, Path::new("/dev/null"));
    let mounts = json!([{"name": "v", "mountPath": "/x"}]);
    let spec = json!({"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes()});
    let error = fixture.prepare(&fixtures::pod_of("u1", "p", spec)).unwrap_err();
    assert!(error.contains("volumeMounts"), "{error}");
}

#[test]
fn ephemeral_volume_is_in_the_directory_of_its_pod() {
    let mut fixture = Fixture::new();
    let spec = fixtures::claim("", &json!({})).spec.unwrap();
    let volume = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]);
    let found = fixture.prepare(&pod(json!({}), volume.clone())).unwrap();
    assert!(found.host_path.starts_with(fixture.root.path().join("pod/volumes")));
    assert!(!fixture.root.path().join("volumes").exists());
    fixture.add_claim("p-v", json!({}));
    assert_eq!(
        fixture.prepare(&pod(json!({}), volume)).unwrap_err(),
        "error processing PVC default/p-v: PVC default/p-v was not created for pod default/p (pod is not owner)"
    );
}

#[test]
fn fs_group_is_set_by_the_change_policy() {
    let mut fixture = Fixture::new();
    fixture.add_claim("data", json!({}));
    let path = fixture.prepare(&pod(json!({}), volumes())).unwrap().host_path;
    let file = path.join("f");
    fs::write(&file, "").unwrap();
    let group = fs::metadata(&path).unwrap().gid();
    let mode = || fs::metadata(&file).unwrap().mode() & 0o777;
    let set_mode = || super::super::set_mode(&file, 0o600).unwrap();
    set_mode();
    fixture.prepare(&pod(json!({"fsGroup": group}), volumes())).unwrap();
    assert_eq!(mode(), 0o660);
    set_mode();
    let policy = json!({"fsGroup": group, "fsGroupChangePolicy": "OnRootMismatch"});
    fixture.prepare(&pod(policy, volumes())).unwrap();
    assert_eq!(mode(), 0o600, "the root has the group already");
}

/// Kubernetes 1.36, pkg/volume/local/local.go SetUpAt.
#[rstest]
#[case::first(true, false, None, Some("give"))]
#[case::read_only(true, true, None, None)]
#[case::without_group(false, false, None, None)]
#[case::mounted_before(true, false, Some("one"), None)]
#[case::beside_another_pod(
    true,
    false,
    Some("other"),
    Some("The requested fsGroup is 4242424, but the volume disk has GID")
)]
#[case::read_only_beside_another_pod(
    true,
    true,
    Some("other"),
    Some("The requested fsGroup is 4242424, but the volume disk has GID")
)]
#[case::without_group_beside_another_pod(false, false, Some("other"), None)]
fn only_first_pod_changes_group_of_local_volume(
    #[case] has_group: bool,
    #[case] readonly: bool,
    #[case] used_by: Option<&str>,
    #[case] expected: Option<&str>,
) {
    let fixture = Fixture::new();
    let security = if has_group { json!({"fsGroup": 4_242_424}) } else { json!({}) };
    let pod = pod(security, volumes());
    let pods = fixture.root.path().join("pods");
    let dirs = ["one", "other"].map(|name| pods.join(name));
    dirs.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    let volume = HostVolume {
        host_path: fixture.root.path().to_owned(),
        readonly,
        spec_name: Some("disk".to_owned()),
        ..HostVolume::default()
    };
    if let Some(name) = used_by {
        fixture.claims.use_local(&pod, &pods.join(name), &volume).unwrap();
    }
    let used = fixture.claims.use_local(&pod, &dirs[0], &volume).unwrap();
    let record = dirs[0].join("volumes/kubernetes.io~local-volume/disk");
    assert!(record.is_dir());
    match (used, expected) {
        (LocalUse::Give(found), Some("give")) => assert_eq!(found, record),
        (LocalUse::Keep, None) => {}
        (LocalUse::Differs(message), Some(expected)) => {
            assert!(message.starts_with(expected), "{message}");
            assert!(message.ends_with(". The volume may not be shareable."), "{message}");
        }
        (used, expected) => panic!("{used:?} instead of {expected:?}"),
    }
}

#[test]
fn pod_with_the_group_of_a_shared_local_volume_causes_no_warning() {
    let fixture = Fixture::new();
    let root = fixture.root.path();
    let pod = pod(json!({"fsGroup": fs::metadata(root).unwrap().gid()}), volumes());
    let volume = HostVolume { host_path: root.to_owned(), ..HostVolume::default() };
    let used = ["one", "other"].map(|name| {
        let dir = root.join("pods").join(name);
        fs::create_dir_all(&dir).unwrap();
        fixture.claims.use_local(&pod, &dir, &volume).unwrap()
    });
    assert!(matches!(used, [LocalUse::Give(_), LocalUse::Keep]), "{used:?}");
}

#[test]
fn claim_for_one_pod_is_free_when_the_pod_has_ended() {
    let mut fixture = Fixture::new();
    fixture.add_claim("data", json!({"accessModes": ["ReadWriteOncePod"]}));
    let pod = pod(json!({}), volumes());
    let volume = &pod.spec().volumes.as_ref().unwrap()[0];
    let [one, other] = ["one", "other"].map(|name| fixture.root.path().join(name));
    for dir in [&one, &other] {
        fs::create_dir(dir).unwrap();
    }
    let prepare = |claims: &Claims, dir: &Path| {
        let found = claims.prepare(&pod, dir, volume, &fixture.objects);
        found.unwrap().map_err(|error| error.to_string())
    };
    let in_use =
        "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    prepare(&fixture.claims, &one).unwrap();
    prepare(&fixture.claims, &one).unwrap();
    assert_eq!(prepare(&fixture.claims, &other).unwrap_err(), in_use);
    // A later agent, or the agent of another run.
    let later = Claims::new(fixture.root.path().join("volumes"), None);
    assert_eq!(prepare(&later, &other).unwrap_err(), in_use);
    later.release(&pod, &one);
    prepare(&later, &other).unwrap();
    assert_eq!(prepare(&fixture.claims, &one).unwrap_err(), in_use);
}
