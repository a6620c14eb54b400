//! Gives a runtime its own disk: a small one to fill, or one in a file to inspect.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Options, Runtime};

/// The file that fills the disk.
const FILLER: &str = "filler";

impl Options {
    /// Puts the state directory on its own file system of this many bytes, which only the runtime sees: see [`Runtime::disk`]. An
    /// ordinary user needs user namespaces for that, and then has a single id. It cannot be combined with [`Options::netns`].
    #[must_use]
    pub fn small_disk(mut self, bytes: u64) -> Self {
        self.disk = Some(Disk::Memory(bytes));
        self
    }

    /// Puts the state directory on the file system in a file; only the runtime sees the mount. The file lacks data that the kernel
    /// has not written back yet, which happens after ten minutes or on a sync. Only root can mount a file.
    #[must_use]
    pub fn disk_image(mut self, path: &Path) -> Self {
        self.disk = Some(Disk::Image(path.to_owned()));
        self
    }
}

impl Runtime {
    /// The state directory as the runtime sees it, while it runs: with [`Options::small_disk`] it differs from
    /// [`Runtime::state_dir`].
    #[must_use]
    pub fn disk(&self) -> Option<PathBuf> {
        let inside = Path::new("/proc").join(self.pid()?.to_string()).join("root");
        Some(inside.join(self.state_dir().strip_prefix("/").ok()?))
    }

    /// The reason if [`Options::small_disk`] is not available.
    #[must_use]
    pub fn no_small_disk() -> Option<&'static str> {
        let mut command = Command::new("unshare");
        let status = command.args(flags()).arg("true").status();
        (!status.is_ok_and(|status| status.success()))
            .then_some("mounting needs namespaces, which this user does not have")
    }

    /// The reason if [`Options::disk_image`] with ext4 is not available.
    #[must_use]
    pub fn no_disk_image() -> Option<&'static str> {
        if !nix::unistd::geteuid().is_root() {
            return Some("only root can mount a disk");
        }
        if !Path::new("/dev/loop-control").exists() {
            return Some("this box has no loop devices");
        }
        let made = Command::new("mkfs.ext4").arg("-V").output();
        (!made.is_ok_and(|output| output.status.success())).then_some("mkfs.ext4 is missing")
    }

    /// Leaves this many bytes free on the small disk.
    ///
    /// # Errors
    /// The runtime does not run, or its disk cannot be written to.
    pub fn leave_free(&self, bytes: u64) -> io::Result<()> {
        let disk = self.disk().ok_or(io::ErrorKind::NotFound)?;
        match fs::remove_file(disk.join(FILLER)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let free = nix::sys::statvfs::statvfs(&disk)?;
        let free = free.blocks_free() * free.fragment_size();
        let filler = free.saturating_sub(bytes);
        let mut file = File::create(disk.join(FILLER))?;
        file.write_all(&vec![0; usize::try_from(filler).unwrap_or(0)])
    }
}

/// The disk of a runtime's state directory.
#[derive(Debug, Clone)]
pub(super) enum Disk {
    /// An empty file system in memory, of this many bytes.
    Memory(u64),
    /// The file system in a file.
    Image(PathBuf),
}

impl Disk {
    /// The beginning of a command line, to which a program and its arguments are appended. Only that program sees the file system
    /// at `directory`.
    pub(super) fn around(&self, directory: &Path) -> Command {
        let mut command = Command::new("unshare");
        let (mount, what) = match self {
            Self::Memory(bytes) => {
                ("mount -t tmpfs -o size=\"$0\",mode=0755 none \"$1\"", bytes.to_string().into())
            }
            Self::Image(path) => {
                ("mount -o loop,commit=600,noatime \"$0\" \"$1\"", path.clone().into_os_string())
            }
        };
        let script = format!("{mount} && shift && exec \"$@\"");
        command.args(flags()).args(["sh", "-c", &script]);
        command.arg(what).arg(directory);
        command
    }
}

/// The unshare(1) options that mounting needs.
fn flags() -> &'static [&'static str] {
    match nix::unistd::geteuid().is_root() {
        true => &["--mount"],
        false => &["--user", "--map-root-user", "--mount"],
    }
}
