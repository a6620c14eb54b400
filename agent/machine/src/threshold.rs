//! Memory usage thresholds on cgroup v1: the kernel signals an eventfd when a cgroup crosses one.
//!
//! Source: kernel documentation, admin-guide/cgroup-v1/memory.rst, section 9; Kubernetes 1.36,
//! pkg/kubelet/eviction/threshold_notifier_linux.go.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use agent::machine::MemoryThreshold;
use async_trait::async_trait;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The files of a cgroup with its usage, and to register an eventfd.
const USAGE: &str = "memory.usage_in_bytes";
const CONTROL: &str = "cgroup.event_control";

/// A threshold from [`watch`].
pub(crate) struct Threshold(AsyncFd<EventFd>);

/// Makes the kernel watch the memory usage of the cgroup in this directory until the threshold is dropped. Must be called within
/// a tokio runtime.
///
/// # Errors
/// The kernel's error, with the file.
pub(crate) fn watch(directory: &Path, bytes: u64) -> io::Result<Threshold> {
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let [usage, control] = [USAGE, CONTROL].map(|file| directory.join(file));
    let of = |file: &Path, error: io::Error| {
        io::Error::new(error.kind(), format!("failed to watch memory: {}: {error}", file.display()))
    };
    let watched = File::open(&usage).map_err(|error| of(&usage, error))?;
    let request = format!("{} {} {bytes}", event.as_raw_fd(), watched.as_raw_fd());
    let written = File::options().write(true).open(&control);
    let written = written.and_then(|mut control| control.write_all(request.as_bytes()));
    written.map_err(|error| of(&control, error))?;
    Ok(Threshold(registered(event)?))
}

/// Registers a descriptor with the reactor.
#[expect(
    deprecated,
    reason = "what it may be misused for, a descriptor that is closed meanwhile, an EventFd is not"
)]
fn registered(event: EventFd) -> io::Result<AsyncFd<EventFd>> {
    AsyncFd::with_interest(event, Interest::READABLE)
}

#[async_trait]
impl MemoryThreshold for Threshold {
    async fn crossed(&mut self) {
        // Reading the eventfd resets its counter to 0.
        let read = self.0.async_io(Interest::READABLE, |event| match event.read() {
            Ok(count) => Ok(count),
            Err(Errno::EAGAIN) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        });
        if let Err(error) = read.await {
            tracing::warn!(%error, "failed to read a memory threshold event; falling back to polling every 10 s");
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// The cgroup is a plain directory: the test writes the eventfd in place of the kernel.
    #[tokio::test]
    async fn crossed_threshold_notifies_once() {
        let cgroup = tempfile::tempdir().unwrap();
        let file = |name: &str| cgroup.path().join(name);
        let error = watch(cgroup.path(), 5).err().unwrap().to_string();
        assert!(error.contains(USAGE), "{error}");
        std::fs::write(file(USAGE), "1\n").unwrap();
        assert!(watch(cgroup.path(), 5).is_err(), "nowhere to ask");
        std::fs::write(file(CONTROL), "").unwrap();
        let mut threshold = watch(cgroup.path(), 500).unwrap();
        let request = std::fs::read_to_string(file(CONTROL)).unwrap();
        let fields: Vec<&str> = request.split(' ').collect();
        assert_eq!((fields.len(), fields[2]), (3, "500"));
        assert_eq!(fields[0], threshold.0.as_raw_fd().to_string());
        for _ in 0..2 {
            // Several crossings before a read count as one.
            threshold.0.get_ref().write(1).unwrap();
            threshold.0.get_ref().write(1).unwrap();
            timeout(Duration::from_secs(20), threshold.crossed()).await.unwrap();
            assert_eq!(threshold.0.get_ref().read(), Err(Errno::EAGAIN));
        }
    }

    /// A real cgroup in the memory hierarchy, which the test removes at its end.
    struct RealCgroup(std::path::PathBuf);

    impl RealCgroup {
        /// `None` without such a hierarchy, or without the permission.
        fn new() -> Option<Self> {
            let name = format!("crib-test-threshold-{}", std::process::id());
            let path = Path::new("/sys/fs/cgroup/memory").join(name);
            std::fs::create_dir(&path).ok().map(|()| Self(path))
        }
    }

    impl Drop for RealCgroup {
        fn drop(&mut self) {
            // The test has waited for its process.
            let _ = std::fs::remove_dir(&self.0);
        }
    }

    #[tokio::test]
    async fn kernel_notifies_when_a_cgroup_uses_more_memory() {
        const MI: u64 = 1 << 20;
        let Some(cgroup) = RealCgroup::new() else {
            eprintln!(
                "skipped: there is no memory cgroup of version 1, or this user cannot make one"
            );
            return;
        };
        let mut threshold = watch(&cgroup.0, 16 * MI).unwrap();
        let far = watch(&cgroup.0, 1 << 40).unwrap();
        let procs = cgroup.0.join("cgroup.procs");
        // The process keeps the last 48 MiB in memory, and ends when its input ends.
        let script =
            format!("echo $$ >{}; head -c 64M /dev/zero | tail -c 48M >/dev/null", procs.display());
        let mut process = tokio::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        timeout(Duration::from_secs(20), threshold.crossed()).await.unwrap();
        assert!(process.wait().await.unwrap().success());
        assert_eq!(far.0.get_ref().read(), Err(Errno::EAGAIN));
        drop(far);
    }
}
