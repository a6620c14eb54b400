//! What ImageFsInfo tells: how much of the disk images take, and how much containers.

use std::sync::Arc;

use cri::v1;

use crate::{image::FsInfo, stats::Disk};

/// Measures what all containers have written into their layers. It takes as long as it takes to see all of it.
pub(crate) type Written = Arc<dyn Fn() -> Disk + Send + Sync>;

/// Both are in the state directory, so on one file system.
pub(super) fn filesystems(
    images: &FsInfo,
    containers: &Disk,
    now: jiff::Timestamp,
) -> v1::ImageFsInfoResponse {
    let usage = |bytes, inodes| v1::FilesystemUsage {
        timestamp: i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX),
        fs_id: Some(v1::FilesystemIdentifier {
            mountpoint: images.mountpoint.display().to_string(),
        }),
        used_bytes: Some(v1::UInt64Value { value: bytes }),
        inodes_used: Some(v1::UInt64Value { value: inodes }),
    };
    v1::ImageFsInfoResponse {
        image_filesystems: vec![usage(images.used_bytes, images.inodes_used)],
        container_filesystems: vec![usage(containers.used, containers.inodes)],
    }
}
