//! What the header of a FIFO or a device node asks for.

use rustix::fs::{Dev, FileType};

use super::name::lossy;
use crate::error::Problem;
use crate::tar_stream::{Kind, Member};

/// The largest numbers that Linux keeps for a device (`include/linux/kdev_t.h`): of a larger one another device's would be left.
const MAJOR: u32 = (1 << 12) - 1;
const MINOR: u32 = (1 << 20) - 1;

/// The kind of node, and its device number.
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
        return Err(Problem::DeviceNumber {
            path: lossy(&member.path),
        });
    }
    Ok((kind, rustix::fs::makedev(major, minor)))
}
