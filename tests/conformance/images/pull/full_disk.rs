//! A full disk: the error names it, the pull leaves nothing, and the same pull succeeds once there is space.

use std::fs;
use std::path::Path;

use registry::Registry;

use super::{image, pull, random_bytes, store_counts};
use crate::support::*;

const DISK: u64 = 8 << 20;
/// The increase of free space between pulls.
const STEP: u64 = 48 << 10;

fn assert_says_full(error: &Status, runtime: &Runtime) {
    let store = runtime.state_dir().join("images");
    let says = error.message();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error:?}");
    let beginning = format!("the disk of {} is full (failed to ", store.display());
    assert!(says.starts_with(&beginning), "{error:?}");
    assert!(says.contains("No space left on device (os error 28)"), "{error:?}");
}

/// Waits until the remains of an earlier pull are deleted: a later pull would use their space.
async fn until_trash_is_deleted(store: &Path) {
    eventually(WAIT_LIMIT, "the trash to be deleted", || async {
        let left = fs::read_dir(store.join("trash")).map_or(0, Iterator::count);
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
}

/// Pulls with increasing free space until a pull succeeds, and returns the number of failed pulls.
async fn until_there_is_room(runtime: &Runtime, name: &str) -> usize {
    let store = runtime.disk().unwrap().join("images");
    let before = store_counts(&store);
    let mut refused = 0;
    for free in (0..DISK).step_by(usize::try_from(STEP).unwrap()) {
        until_trash_is_deleted(&store).await;
        runtime.leave_free(free).unwrap();
        match pull(runtime, name, None).await {
            Ok(id) => {
                let listed = runtime.client.list_images().await.unwrap();
                assert!(listed.iter().any(|image| image.id == id));
                break;
            }
            Err(error) => assert_says_full(&error, runtime),
        }
        refused += 1;
        assert_eq!(store_counts(&store), before, "with {free} bytes free");
        assert_eq!(runtime.client.image(name).await.unwrap(), None);
    }
    refused
}

#[tokio::test]
async fn registry_pull_reports_full_disk_and_leaves_nothing() {
    harness::needs!(SmallDisk);
    let runtime = Runtime::with().small_disk(DISK).start().await.unwrap();
    let registry = Registry::start().await.unwrap();
    registry.add(&image("app:1", 1)).unwrap();
    let name = format!("{}/app:1", registry.host());
    let refused = until_there_is_room(&runtime, &name).await;
    // Half a megabyte to download, and as much to unpack while the download is kept.
    assert!((10..24).contains(&refused), "{refused}");
    // An image can be removed from a full disk.
    runtime.leave_free(0).unwrap();
    runtime.client.remove_image(&name).await.unwrap();
}

#[tokio::test]
async fn archive_pull_reports_full_disk_and_leaves_nothing() {
    harness::needs!(SmallDisk);
    let place = tempfile::tempdir().unwrap();
    let archive = place.path().join("it.tar.gz");
    let layer = Layer::new().file("etc/own", 0o644, random_bytes(3, 400_000));
    let image = ImageBuilder::new("example.com/it:1").layer(layer);
    image.write_oci(&place.path().join("it")).unwrap();
    // A compressed archive is spooled before it is read.
    let plain = fs::read(place.path().join("it")).unwrap();
    let packed = fs::File::create(&archive).unwrap();
    let mut packer = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
    std::io::Write::write_all(&mut packer, &plain).unwrap();
    packer.finish().unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let runtime = Runtime::with().small_disk(DISK).archive(&archive);
    let runtime = runtime.start().await.unwrap();
    let refused = until_there_is_room(&runtime, "example.com/it:1").await;
    assert!((10..24).contains(&refused), "{refused}");
}
