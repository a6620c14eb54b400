//! Log files: they stay in the client's log directory, despite any links that a container or another process has made there.

use std::{
    fs::{self, File},
    io,
    num::NonZeroU64,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt as _,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::contract::plan::LogPlan;

/// The kubelet makes the directories first. If it has not, only the owner's group may read logs.
const DIRECTORY_MODE: u32 = 0o750;
/// As in containerd and CRI-O.
const FILE_MODE: u32 = 0o640;

/// Makes the directories of a log file, and checks that an existing file is a regular one.
pub fn prepare(plan: &LogPlan) -> io::Result<()> {
    let mut directory = fs::DirBuilder::new();
    directory.recursive(true).mode(DIRECTORY_MODE);
    directory.create(&plan.directory)?;
    let base = base(plan)?;
    let mut done = PathBuf::new();
    let mut at = base.try_clone()?;
    let parents = plan.path.parent().unwrap_or(Path::new(""));
    for part in parents.components() {
        let Component::Normal(name) = part else {
            continue;
        };
        done.push(name);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        at = match beneath(&base, &done, flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                beneath(&base, &done, flags)?
            }
            opened => opened?,
        };
    }
    match beneath(&base, &plan.path, OFlags::PATH) {
        Ok(file) => regular(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// An open log file.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    size: u64,
    max: u64,
}

impl io::Write for LogFile {
    /// Appends; if the file would exceed its maximum size, it is truncated first (CRI-O, `log_size_max`).
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.size.saturating_add(bytes.len() as u64) > self.max {
            self.file.set_len(0)?;
            self.size = 0;
        }
        let written = self.file.write(bytes)?;
        self.size = self.size.saturating_add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Opens a log file to append to it.
pub fn open(plan: &LogPlan) -> io::Result<LogFile> {
    // If it is a pipe or a terminal, opening it must not block.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = beneath(&base(plan)?, &plan.path, flags)?;
    regular(&file)?;
    let file = File::from(file);
    Ok(LogFile {
        size: file.metadata()?.len(),
        file,
        max: plan.max.map_or(u64::MAX, NonZeroU64::get),
    })
}

fn base(plan: &LogPlan) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, &plan.directory, flags, Mode::empty())?)
}

fn beneath(base: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let mode =
        if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(FILE_MODE) } else { Mode::empty() };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    file_tree::open_scoped(base, path, flags | OFlags::CLOEXEC, mode, resolve).map_err(|error| {
        match error {
            Errno::XDEV => refused("a link on its way leads out of the log directory"),
            Errno::NXIO => refused("it is not a regular file"),
            error => error.into(),
        }
    })
}

fn regular(file: impl AsFd) -> io::Result<()> {
    match FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory
        | FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Err(refused("it is not a regular file")),
    }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{io::Write as _, os::unix::fs::symlink};

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("c.log")]
    #[case::new_directories("a/b/c.log")]
    #[case::a_link_inside("link/c.log")]
    #[case::a_linked_file("file-link")]
    fn log_file_opens_inside_its_directory(#[case] path: &str) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("real")).unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        symlink("real/file", dir.path().join("file-link")).unwrap();
        let plan = LogPlan { directory: dir.path().into(), path: path.into(), max: None };
        prepare(&plan).unwrap();
        open(&plan).unwrap().write_all(b"one ").unwrap();
        prepare(&plan).unwrap();
        open(&plan).unwrap().write_all(b"two").unwrap();
        assert_eq!(fs::read(dir.path().join(path)).unwrap(), b"one two");
    }

    #[test]
    fn log_is_truncated_at_maximum_size() {
        let dir = tempfile::tempdir().unwrap();
        let plan = LogPlan {
            directory: dir.path().into(),
            path: "c.log".into(),
            max: NonZeroU64::new(10),
        };
        let path = plan.whole();
        let mut log = open(&plan).unwrap();
        for (line, whole) in [("12345\n", "12345\n"), ("789\n", "12345\n789\n"), ("b\n", "b\n")] {
            log.write_all(line.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        }
        // The existing size counts when the file is opened again.
        let mut again = open(&plan).unwrap();
        again.write_all(b"123456789\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "123456789\n");
    }

    #[rstest]
    #[case::a_file_elsewhere("file-out")]
    #[case::a_directory_elsewhere("out/c.log")]
    #[case::a_new_directory_elsewhere("out/new/c.log")]
    #[case::from_the_root("absolute/c.log")]
    #[case::a_process("magic")]
    #[case::a_pipe("fifo")]
    #[case::a_directory("dir")]
    fn log_file_outside_its_directory_is_refused(#[case] path: &str) {
        let dir = tempfile::tempdir().unwrap();
        let (logs, other) = (dir.path().join("logs"), dir.path().join("other"));
        fs::create_dir_all(logs.join("dir")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "").unwrap();
        symlink("../other/file", logs.join("file-out")).unwrap();
        symlink("../other", logs.join("out")).unwrap();
        symlink(&other, logs.join("absolute")).unwrap();
        symlink("/proc/self/fd/2", logs.join("magic")).unwrap();
        rustix::fs::mknodat(CWD, logs.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
        let plan = LogPlan { directory: logs, path: path.into(), max: None };
        assert_eq!(prepare(&plan).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        open(&plan).unwrap_err();
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
    }
}
