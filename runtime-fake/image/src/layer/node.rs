//! Parses the header of a FIFO or a device node.

use rustix::fs::{Dev, FileType};

use super::name::lossy;
use crate::error::Problem;
use crate::formats::tar_stream::{Kind, Member};

/// The largest device numbers that Linux supports (`include/linux/kdev_t.h`); a larger one would be truncated to
/// another device's.
const MAJOR: u32 = (1 << 12) - 1;
const MINOR: u32 = (1 << 20) - 1;

/// The type of the node, and its device number.
pub(super) fn of(member: &Member) -> Result<(FileType, Dev), Problem> {
    let kind = match member.kind {
        Kind::Char => FileType::CharacterDevice,
        Kind::Block => FileType::BlockDevice,
        Kind::Fifo
        | Kind::File
        | Kind::Sparse
        | Kind::HardLink
        | Kind::Symlink
        | Kind::Directory => return Ok((FileType::Fifo, 0)),
    };
    let (major, minor) = member.device;
    if major > MAJOR || minor > MINOR {
        return Err(Problem::DeviceNumber { path: lossy(&member.path) });
    }
    Ok((kind, rustix::fs::makedev(major, minor)))
}
