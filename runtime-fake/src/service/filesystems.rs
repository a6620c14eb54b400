//! What ImageFsInfo tells: how much of the disk images take, and containers where they have a file system of their own.

use std::{path::PathBuf, sync::Arc};

use cri::v1;
use image::FsInfo;

use crate::runtime::measure::ContainerFilesystem;

/// Measures the file system of containers, if they have one of their own. It takes as long as it takes to see all layers.
pub(crate) type Measure = Arc<dyn Fn() -> Option<ContainerFilesystem> + Send + Sync>;

/// A kubelet takes a container file system that is named for another one than the images', and evicts by it.
pub(super) fn filesystems(
    images: &FsInfo,
    containers: Option<&ContainerFilesystem>,
    now: jiff::Timestamp,
) -> v1::ImageFsInfoResponse {
    let usage = |mountpoint: &PathBuf, bytes, inodes| v1::FilesystemUsage {
        timestamp: i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX),
        fs_id: Some(v1::FilesystemIdentifier {
            mountpoint: mountpoint.display().to_string(),
        }),
        used_bytes: Some(v1::UInt64Value { value: bytes }),
        inodes_used: Some(v1::UInt64Value { value: inodes }),
    };
    let of_containers =
        |own: &ContainerFilesystem| usage(&own.mountpoint, own.written.used, own.written.inodes);
    v1::ImageFsInfoResponse {
        image_filesystems: vec![usage(
            &images.mountpoint,
            images.used_bytes,
            images.inodes_used,
        )],
        container_filesystems: containers.map(of_containers).into_iter().collect(),
    }
}
