//! A trash directory: a removal renames the tree into it, and a background thread deletes it.
//!
//! Everything in the directory is garbage, so the next process that opens it finishes an interrupted deletion.

use std::{
    collections::HashSet,
    ffi::{CStr, CString},
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::{
    fd::{AsFd as _, OwnedFd},
    fs::{CWD, Dir, RenameFlags},
    io::Errno,
};

use crate::{
    private::{self, PrivateError},
    remove::{RemoveError, remove, remove_until},
};

/// Nice value of the deleting thread: it yields to everything else, but still frees space on a busy machine.
const NICE: i32 = 10;
/// Limit on remembered trees that cannot be deleted. A remembered tree is tried and reported once.
const REMEMBERED: usize = 1000;

/// The trash directory of one file system. Dropping it stops the deletion; the next one resumes it.
#[derive(Debug)]
pub struct Trash {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    directory: OnceLock<OwnedFd>,
    stop: AtomicBool,
    state: Mutex<State>,
    /// Signalled when the thread has ended.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    thread: Option<JoinHandle<()>>,
    running: bool,
    /// A tree was added since the thread last began to scan.
    more: bool,
    /// Counter for unique names.
    count: u64,
    /// Trees that could not be renamed into the directory and are deleted in place.
    elsewhere: Vec<PathBuf>,
    /// Names of trees that cannot be deleted.
    stuck: HashSet<CString>,
}

impl Trash {
    /// The trash directory at `path`. Does not touch the file system.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            shared: Arc::new(Shared {
                path,
                directory: OnceLock::new(),
                stop: AtomicBool::new(false),
                state: Mutex::default(),
                idle: Condvar::new(),
            }),
        }
    }

    /// Creates the directory and resumes the deletion of the files that an earlier process left in it.
    ///
    /// # Errors
    /// When the directory cannot be opened, or another user owns it.
    pub fn resume(&self) -> Result<(), PrivateError> {
        self.shared.directory()?;
        self.start();
        Ok(())
    }

    /// Moves the file or directory at `path` into the trash; the thread deletes it later. A missing path is not an
    /// error.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn put(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let directory = self.shared.directory().map_err(io::Error::other)?;
        loop {
            let count = {
                let mut state = self.shared.lock();
                state.count += 1;
                state.count
            };
            let to = format!("{count}-{name}");
            match rustix::fs::renameat_with(CWD, path, directory, &to, RenameFlags::NOREPLACE) {
                Ok(()) => break,
                Err(Errno::NOENT) => return Ok(()),
                // An earlier process used the name.
                Err(Errno::EXIST) => {}
                // The tree is on another file system, or in a lower layer of an overlayfs.
                Err(Errno::XDEV) => {
                    self.shared.lock().elsewhere.push(path.to_owned());
                    break;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        self.start();
        Ok(())
    }

    /// Waits until each tree put here is deleted or its deletion has failed.
    pub fn wait(&self) {
        let mut state = self.shared.lock();
        while state.running {
            let woken = self.shared.idle.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Stops the deletion after the current file. The rest stays in the directory.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let thread = self.shared.lock().thread.take();
        if let Some(thread) = thread {
            // The panic was reported when it happened.
            let _ = thread.join();
        }
    }

    /// Stops the thread and deletes the contents on the calling thread, at its priority.
    pub fn empty(&self) {
        self.stop();
        self.shared.stop.store(false, Ordering::Relaxed);
        let more = std::mem::replace(&mut self.shared.lock().more, false);
        if more || self.shared.directory.get().is_some() {
            self.shared.delete_all();
        }
    }

    fn start(&self) {
        let mut state = self.shared.lock();
        state.more = true;
        if state.running {
            return;
        }
        let shared = self.shared.clone();
        let thread = thread::Builder::new().name("trash".to_owned()).spawn(move || shared.run());
        match thread {
            Ok(thread) => {
                state.running = true;
                state.thread = Some(thread);
            }
            // The next removal, or the next start, deletes it.
            Err(error) => tracing::warn!(%error, "failed to start the thread that deletes trash"),
        }
    }
}

impl Drop for Trash {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory(&self) -> Result<&OwnedFd, PrivateError> {
        if let Some(directory) = self.directory.get() {
            return Ok(directory);
        }
        private::make(&self.path)?;
        let directory = crate::open(&self.path).map_err(|errno| PrivateError::Io {
            doing: "open the directory",
            path: self.path.clone(),
            source: errno.into(),
        })?;
        Ok(self.directory.get_or_init(|| directory))
    }

    /// The body of the deleting thread.
    fn run(&self) {
        // Linux applies it to this thread only (setpriority(2)). On failure the thread keeps normal priority.
        let _ = rustix::process::setpriority_process(None, NICE);
        loop {
            {
                let mut state = self.lock();
                if !state.more || self.stop.load(Ordering::Relaxed) {
                    state.running = false;
                    self.idle.notify_all();
                    return;
                }
                state.more = false;
            }
            self.delete_all();
        }
    }

    fn delete_all(&self) {
        let elsewhere = std::mem::take(&mut self.lock().elsewhere);
        for path in elsewhere {
            if let Err(error) = remove(&path) {
                tracing::warn!(path = %path.display(), error = chain(&error), "failed to delete directory");
            }
        }
        let Some(directory) = self.directory.get() else {
            return;
        };
        if let Err(errno) = self.empty(directory) {
            tracing::warn!(path = %self.path.display(), %errno, "failed to list trash");
        }
    }

    /// Deletes everything in the directory.
    fn empty(&self, directory: &OwnedFd) -> Result<(), Errno> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || self.lock().stuck.contains(name) {
                continue;
            }
            if let Err(error) = remove_until(directory.as_fd(), name, &self.stop) {
                self.report(name, &error);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn report(&self, name: &CStr, error: &RemoveError) {
        let path = self.path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        tracing::warn!(path = %path.display(), error = chain(error), "failed to delete trash: the next start tries again");
        let mut state = self.lock();
        if state.stuck.len() < REMEMBERED {
            state.stuck.insert(name.to_owned());
        }
    }
}

/// Formats an error with its source.
fn chain(error: &RemoveError) -> String {
    let reason = std::error::Error::source(error);
    reason.map_or_else(|| error.to_string(), |reason| format!("{error}: {reason}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    fn count(path: &Path) -> usize {
        fs::read_dir(path).unwrap().count()
    }

    #[test]
    fn put_moves_at_once_and_deletes_later() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let trash = Trash::new(at("trash"));
        for _ in 0..3 {
            fs::create_dir_all(at("tree/a/b")).unwrap();
            fs::write(at("tree/a/file"), "").unwrap();
            trash.put(&at("tree")).unwrap();
            assert!(!at("tree").exists());
        }
        fs::write(at("file"), "").unwrap();
        trash.put(&at("file")).unwrap();
        trash.put(&at("nothing")).unwrap();
        trash.wait();
        assert_eq!(count(&at("trash")), 0);
    }

    #[test]
    fn resume_finishes_what_an_earlier_process_began() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("trash");
        fs::create_dir_all(path.join("1-tree/a/b/c")).unwrap();
        fs::write(path.join("2-file"), "").unwrap();
        let trash = Trash::new(path.clone());
        trash.resume().unwrap();
        trash.wait();
        assert_eq!(count(&path), 0);
        drop(trash);
        assert!(path.exists());
    }

    #[test]
    fn empty_deletes_at_once() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let trash = Trash::new(at("trash"));
        trash.empty();
        assert!(!at("trash").exists());
        for tree in ["a", "b"] {
            fs::create_dir_all(at(tree).join("x/y")).unwrap();
            trash.put(&at(tree)).unwrap();
        }
        trash.empty();
        assert_eq!(count(&at("trash")), 0);
    }

    #[test]
    fn drop_leaves_the_rest_to_the_next_process() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let trash = Trash::new(at("trash"));
        for tree in 0..20 {
            fs::create_dir(at("tree")).unwrap();
            for file in 0..100 {
                fs::write(at("tree").join(file.to_string()), "").unwrap();
            }
            trash.put(&at("tree")).unwrap_or_else(|e| panic!("{tree}: {e}"));
        }
        drop(trash);
        let trash = Trash::new(at("trash"));
        trash.resume().unwrap();
        trash.wait();
        assert_eq!(count(&at("trash")), 0);
    }
}
