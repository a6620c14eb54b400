//! Deletes an interface without waiting for the kernel's RCU barrier.
//!
//! A request to delete an interface blocks the caller for 15 to 25 ms, but the interface is deleted in less than one: it is no
//! longer listed, its name is free, and both ends of a pair are unlinked. For the rest the kernel waits until no processor can
//! still use the old structures (`rcu_barrier`). So a thread that may block sends the request, with `ECHO`: the kernel then
//! notifies the requester on the same socket when the interface is deleted. A kernel that does not echo deletions (before Linux
//! 6.2) sends only the acknowledgement, which arrives later and is equally valid.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::links::netlink::{Netlink, NetlinkError, Request};
use crate::links::requests::DELETE_LINK;
use crate::message::{ACK, ECHO, REQUEST, messages};

/// The deletions of one bridge that the kernel has not completed.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    running: Mutex<Vec<JoinHandle<Result<(), NetlinkError>>>>,
}

impl Deletions {
    /// Sends the request on the socket, consuming it, and returns when the interface is deleted.
    pub(crate) fn delete(
        &self,
        mut netlink: Netlink,
        request: Request,
    ) -> Result<(), NetlinkError> {
        let doing = request.doing;
        let failed = |source| NetlinkError::new(&doing, source);
        let mut bytes = Vec::with_capacity(64);
        let flags = REQUEST | ACK | ECHO | request.flags;
        let sequence = netlink.append(&mut bytes, request.kind, &request.payload, flags);

        let netlink = Arc::new(netlink);
        // The thread's closure owns the writing end: end of file means that the request has been handled.
        let (handled, handling) = io::pipe().map_err(failed)?;
        let sender = thread::Builder::new()
            .name("netdel".to_owned())
            .spawn({
                let netlink = Arc::clone(&netlink);
                let doing = doing.clone();
                move || {
                    let _handling = handling;
                    netlink.send(&bytes, &doing)
                }
            })
            .map_err(failed)?;

        loop {
            let mut fds = [
                PollFd::new(netlink.as_fd(), PollFlags::POLLIN),
                PollFd::new(handled.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) => {}
                Err(nix::Error::EINTR) => continue,
                Err(error) => return Err(failed(error.into())),
            }
            let spoken = fds[0].any() == Some(true);
            // The response is queued before the request counts as handled, but perhaps after poll(2) checked the socket.
            let spoken = spoken || {
                let mut again = [PollFd::new(netlink.as_fd(), PollFlags::POLLIN)];
                poll(&mut again, PollTimeout::ZERO).map_err(|error| failed(error.into()))? > 0
            };
            if !spoken {
                // Handled without a response: the request was never sent. The thread returns the reason.
                return sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
            let answer = netlink.receive(&doing)?;
            for message in messages(&answer).filter(|message| message.sequence == sequence) {
                let gone = match message.outcome() {
                    Some(code) if code == 0 || request.fine.contains(&code) => true,
                    Some(code) => return Err(NetlinkError::refused(&doing, code)),
                    None => message.kind == DELETE_LINK,
                };
                if gone {
                    let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                    running.retain(|deletion| !deletion.is_finished());
                    running.push(sender);
                    return Ok(());
                }
            }
        }
    }

    /// Waits until the kernel has completed every deletion.
    pub(crate) fn finish(&self) {
        let running =
            std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        for deletion in running {
            // The outcome was returned with the response.
            let _ = deletion.join();
        }
    }
}
