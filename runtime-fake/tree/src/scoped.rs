//! Opens paths that must not leave a directory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

/// Limit on the lookups of a path. Each takes microseconds.
const TRIES: usize = 1000;

/// Opens a path with openat2(2), and retries while the kernel cannot decide whether the path stays in the directory: if the path
/// or a link in it contains `..`, any concurrent rename or mount on the machine makes the call fail with EAGAIN.
///
/// # Errors
/// The kernel's error.
pub fn open_scoped(
    directory: impl AsFd,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    for _ in 0..TRIES {
        match rustix::fs::openat2(&directory, path, flags, mode, resolve) {
            Err(Errno::AGAIN) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

/// Tries [`open_scoped`] with the flags for containers' paths: a seccomp filter may forbid openat2(2), and a kernel before Linux
/// 5.6 lacks it.
///
/// # Errors
/// The kernel's error.
pub fn try_open_scoped() -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    open_scoped(root, Path::new("."), flags, Mode::empty(), resolve).map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn renames_elsewhere_do_not_fail_lookups() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, elsewhere) = (directory.path().join("tree"), directory.path().join("else"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir_all(elsewhere.join("one/moved")).unwrap();
        fs::create_dir_all(elsewhere.join("two")).unwrap();
        fs::write(tree.join("file"), "").unwrap();
        let top = fs::File::open(&tree).unwrap();
        let path = Path::new("a/b/../../a/b/../../a/b/../../a/b/../../file");
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let done = AtomicBool::new(false);
        let once = || rustix::fs::openat2(&top, path, OFlags::PATH, Mode::empty(), resolve);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let places = [elsewhere.join("one/moved"), elsewhere.join("two/moved")];
                while !done.load(Ordering::Relaxed) {
                    fs::rename(&places[0], &places[1]).unwrap();
                    fs::rename(&places[1], &places[0]).unwrap();
                }
            });
            // Repeat until the kernel has returned EAGAIN once, so that the test is meaningful.
            let asked = (0..10_000_000).any(|_| once().err() == Some(Errno::AGAIN));
            let opened: Vec<_> = (0..10_000)
                .filter_map(|_| open_scoped(&top, path, OFlags::PATH, Mode::empty(), resolve).err())
                .collect();
            done.store(true, Ordering::Relaxed);
            assert!(asked, "the kernel never asked for another try");
            assert_eq!(opened, []);
        });
    }
}
