//! Reads an image's `/etc/passwd` and `/etc/group`.
//!
//! They are the image's own files, read before anything is mounted over them (as in containerd and CRI-O): files that a client
//! mounts there are for the container's programs. Both files are untrusted.

use std::{fs::File, io::Read as _, os::fd::OwnedFd, path::Path};

use rustix::{fs::FileType, io::Errno};

use crate::kernel::failure::{Failure, FailureKind, Step, plain};
use crate::kernel::secure_join::{RegularFileError, Root};

/// The maximum that is read of each file. A thousand users take 60 KB. Other runtimes have no limit, and the process may be
/// OOM-killed.
const LONGEST: u64 = 10 << 20;

/// The texts of the two files; empty if a file is missing.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    pub(crate) passwd: String,
    pub(crate) group: String,
}

/// Reads both in `root`. `mounts`: whether they may be on mounts below it.
pub(crate) fn read(root: &Root, mounts: bool) -> Step<Accounts> {
    let text = |path: &str| read_file(root, Path::new(path), mounts);
    Ok(Accounts { passwd: text("/etc/passwd")?, group: text("/etc/group")? })
}

fn read_file(root: &Root, path: &Path, mounts: bool) -> Step<String> {
    let refuse = |why: &str| {
        let message = format!(
            "the image's {} {why}: users are looked up in a regular file of at most {} MiB",
            path.display(),
            LONGEST >> 20
        );
        Err(Failure::new(FailureKind::Invalid, message))
    };
    let opened: Result<OwnedFd, RegularFileError> = root.regular(path, mounts);
    let file = match opened {
        Ok(file) => File::from(file),
        // The container's root has no such file, or denies access.
        Err(RegularFileError::Errno(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS)) => {
            return Ok(String::new());
        }
        Err(RegularFileError::Errno(Errno::LOOP)) => {
            return refuse("leads through too many links, or one of /proc");
        }
        Err(RegularFileError::Errno(Errno::XDEV)) => {
            return refuse("is not of the image's own files");
        }
        Err(RegularFileError::Errno(error)) => {
            return refuse(&format!("cannot be opened ({})", plain(&error.into())));
        }
        Err(RegularFileError::Kind(kind)) => return refuse(&format!("is {}", named(kind))),
    };
    if file.metadata().is_ok_and(|meta| meta.len() > LONGEST) {
        return refuse("is longer");
    }
    let mut bytes = Vec::new();
    if let Err(error) = file.take(LONGEST + 1).read_to_end(&mut bytes) {
        return refuse(&format!("cannot be read ({})", plain(&error)));
    }
    if bytes.len() as u64 > LONGEST {
        return refuse("is longer");
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn named(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "of an unknown kind",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{
        fs,
        os::unix::{fs::symlink, net::UnixListener},
    };

    use rstest::rstest;
    use rustix::fs::{CWD, Mode, OFlags};

    use super::*;

    fn root(path: &Path) -> Root {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Root::new(rustix::fs::open(path, flags, Mode::empty()).unwrap())
    }

    const LINE: &str = "alice:x:1001:1002::/home/alice:/bin/sh\n";

    #[rstest]
    #[case::none(|_: &Path| {}, Ok(""))]
    #[case::plain(|p: &Path| fs::write(p, LINE).unwrap(), Ok(LINE))]
    #[case::link(|p: &Path| { fs::write(p.with_file_name("own"), LINE).unwrap(); symlink("/etc/own", p).unwrap() }, Ok(LINE))]
    #[case::link_that_climbs(|p: &Path| { fs::write(p.with_file_name("own"), LINE).unwrap(); symlink("../../../../etc/own", p).unwrap() }, Ok(LINE))]
    #[case::link_to_nothing(|p: &Path| symlink("/dev/zero", p).unwrap(), Ok(""))]
    #[case::not_utf_8(|p: &Path| fs::write(p, b"a\xff\0b").unwrap(), Ok("a\u{fffd}\0b"))]
    #[case::loop_of_links(|p: &Path| symlink("passwd", p).unwrap(), Err("links"))]
    #[case::directory(|p: &Path| fs::create_dir(p).unwrap(), Err("is a directory"))]
    #[case::fifo(|p: &Path| rustix::fs::mknodat(CWD, p, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap(), Err("is a FIFO"))]
    #[case::socket(|p: &Path| drop(UnixListener::bind(p).unwrap()), Err("is a socket"))]
    #[case::longest(|p: &Path| fs::File::create(p).unwrap().set_len(LONGEST).unwrap(), Ok("\0"))]
    #[case::longer(|p: &Path| fs::File::create(p).unwrap().set_len(LONGEST + 1).unwrap(), Err("is longer"))]
    #[case::far_longer(|p: &Path| fs::File::create(p).unwrap().set_len(1 << 40).unwrap(), Err("is longer"))]
    fn passwd_is_read_from_regular_files_only(
        #[case] make: fn(&Path),
        #[case] expected: Result<&str, &str>,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let etc = directory.path().join("etc");
        fs::create_dir(&etc).unwrap();
        make(&etc.join("passwd"));
        let got = read(&root(directory.path()), false);
        match (got, expected) {
            (Ok(got), Ok("\0")) => assert_eq!(got.passwd.len() as u64, LONGEST),
            (Ok(got), Ok(text)) => {
                assert_eq!((got.passwd.as_str(), got.group.as_str()), (text, ""))
            }
            (Err(failure), Err(word)) => {
                assert_eq!(failure.kind, FailureKind::Invalid);
                assert!(failure.message.contains(word), "{failure:?}");
            }
            (got, expected) => panic!("{got:?}, not {expected:?}"),
        }
    }

    /// The host's own root, with `/proc` and `/dev`: files behind them are not read.
    #[rstest]
    #[case::device("/dev/zero", "is a device")]
    #[case::process("/proc/self/root/etc/passwd", "links")]
    #[case::descriptor("/proc/self/fd/0", "links")]
    #[case::another_mount("/proc/version", "own files")]
    fn passwd_outside_image_is_refused(#[case] path: &str, #[case] word: &str) {
        let across = path.starts_with("/dev") || path.contains("self");
        let failure = read_file(&root(Path::new("/")), Path::new(path), across).unwrap_err();
        assert!(failure.message.contains(word), "{failure:?}");
    }
}
