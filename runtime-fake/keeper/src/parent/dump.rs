//! Starts criu for a dump: in the pod's network, IPC and UTS namespaces, so that it ignores them, and outside the
//! container's namespaces, so that it sees the container's processes as the host does.

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::sys::{self, Fork};
use crate::setup::restore::ENVIRONMENT;

/// Starts criu. Its requests and responses go over the socket in `descriptors`, whose other end the daemon has; the
/// keeper does not wait for criu. If the daemon is gone, criu resumes the container.
pub(crate) fn start(program: &Path, descriptors: Vec<OwnedFd>) -> Step {
    let what = "start criu";
    let [socket] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|got| {
        let message = format!("a dump comes with one descriptor, not {}", got.len());
        Failure::new(FailureKind::Invalid, message)
    })?;
    match sys::fork(0).context(what)? {
        Fork::Parent(_) => Ok(()),
        Fork::Child => {
            // A duplicate is inherited across `execve`, unlike the received descriptor.
            let inherited = rustix::io::dup(&socket);
            let Ok(socket) = inherited else {
                std::process::exit(1);
            };
            if let Ok(null) =
                rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())
            {
                let _ = rustix::stdio::dup2_stdin(&null);
                let _ = rustix::stdio::dup2_stdout(&null);
            }
            sys::close_others(&mut [socket.as_raw_fd()]);
            sys::reset_signals();
            let number = socket.as_raw_fd().to_string();
            let error = sys::run(program, &["swrk", &number], &ENVIRONMENT);
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("keeper: failed to run {}: {error}\n", program.display()).as_bytes(),
            );
            std::process::exit(1)
        }
    }
}
