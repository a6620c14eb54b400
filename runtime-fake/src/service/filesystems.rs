//! ImageFsInfo: the disk usage of images, and of containers if they have their own file system.

use std::{path::PathBuf, sync::Arc};

use cri::v1;
use image::FsInfo;

use crate::runtime::measure::ContainerFilesystem;

/// Measures the file system of containers, if they have their own. It walks over all layers, so it may take long.
pub(crate) type Measure = Arc<dyn Fn() -> Option<ContainerFilesystem> + Send + Sync>;

/// Reports the containers' file system only if it differs from the images': a kubelet treats a reported one as
/// separate, and evicts pods by it.
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
