//! criu, started for a dump: in the pod's namespaces, so that network, IPC and UTS are not its business, and outside the
//! container's, whose processes it has to see as the host does.

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

use crate::{
    failure::{Context as _, Failure, FailureKind, Step},
    restore::ENVIRONMENT,
    sys::{self, Fork},
};

/// Starts it. What it has to do, and how it went, goes over the socket among `descriptors`, which the daemon has the other
/// end of; the keeper does not wait for it. It goes on, and lets the container run again, when the daemon is gone.
pub(crate) fn start(program: &Path, descriptors: Vec<OwnedFd>) -> Step {
    let what = "start criu";
    let [socket] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|got| {
        let message = format!("a dump comes with one descriptor, not {}", got.len());
        Failure::new(FailureKind::Invalid, message)
    })?;
    match sys::fork(0).context(what)? {
        Fork::Parent(_) => Ok(()),
        Fork::Child => {
            // Inherited by what is executed, unlike the one that came.
            let inherited = rustix::io::dup(&socket);
            let Ok(socket) = inherited else {
                std::process::exit(1);
            };
            if let Ok(null) = rustix::fs::open(
                "/dev/null",
                rustix::fs::OFlags::RDWR,
                rustix::fs::Mode::empty(),
            ) {
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
