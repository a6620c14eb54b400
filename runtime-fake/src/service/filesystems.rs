//! ImageFsInfo: the disk usage of images, and of containers.

use std::{path::PathBuf, sync::Arc};

use cri::v1;
use image::FsInfo;

use crate::runtime::measure::ContainerFilesystem;

/// Measures the file system of containers, if they have their own. It walks over all layers, so it may take long.
pub(crate) type Measure = Arc<dyn Fn() -> Option<ContainerFilesystem> + Send + Sync>;

/// Reports the images' file system as that of containers too, unless they have their own: a kubelet that reads cgroups itself
/// has no statistics of disks without one, and takes two mount points for two disks.
pub(super) fn filesystems(
    images: &FsInfo,
    containers: Option<&ContainerFilesystem>,
    now: jiff::Timestamp,
) -> v1::ImageFsInfoResponse {
    let usage = |mountpoint: &PathBuf, bytes, inodes| v1::FilesystemUsage {
        timestamp: i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX),
        fs_id: Some(v1::FilesystemIdentifier { mountpoint: mountpoint.display().to_string() }),
        used_bytes: Some(v1::UInt64Value { value: bytes }),
        inodes_used: Some(v1::UInt64Value { value: inodes }),
    };
    let of_containers =
        |own: &ContainerFilesystem| usage(&own.mountpoint, own.written.used, own.written.inodes);
    let of_images = usage(&images.mountpoint, images.used_bytes, images.inodes_used);
    let of_containers = containers.map_or_else(|| of_images.clone(), of_containers);
    v1::ImageFsInfoResponse {
        image_filesystems: vec![of_images],
        container_filesystems: vec![of_containers],
    }
}
