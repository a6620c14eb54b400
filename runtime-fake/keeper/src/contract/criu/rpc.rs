//! Requests a dump over criu's own protocol (`criu swrk`, images/rpc.proto): protobuf messages, one a packet.
//!
//! Unlike with its command line, criu then pauses when everything is dumped and frozen, and waits for a message to continue. At
//! that point files that belong to the dump can be copied.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use prost::Message;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// The longest message of criu.
const LONGEST: usize = 64 << 10;
/// The longest time without a message from criu: dumping gigabytes of memory to a slow disk takes long.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// The largest deleted but open file that is included in a dump.
const GHOST_LIMIT: u32 = 256 << 20;
/// Everything except messages from loops, as in runc: debugging a failed dump needs it.
const LOG_LEVEL: i32 = 4;

/// The types of requests and responses.
mod kind {
    pub(super) const DUMP: i32 = 1;
    pub(super) const NOTIFY: i32 = 6;
}

/// `criu_cg_mode`: the keeper puts restored processes into a cgroup.
const CGROUPS_IGNORED: i32 = 0;
/// `criu_network_lock_method`: connections are not dumped, so the network need not be locked.
const NETWORK_UNLOCKED: i32 = 3;
/// The notification that everything is dumped and still frozen.
const POST_DUMP: &str = "post-dump";

#[derive(Clone, PartialEq, Message)]
struct Options {
    #[prost(int32, required, tag = "1")]
    images_dir_fd: i32,
    #[prost(int32, optional, tag = "2")]
    pid: Option<i32>,
    #[prost(bool, optional, tag = "3")]
    leave_running: Option<bool>,
    #[prost(bool, optional, tag = "8")]
    file_locks: Option<bool>,
    #[prost(int32, optional, tag = "9")]
    log_level: Option<i32>,
    #[prost(string, optional, tag = "10")]
    log_file: Option<String>,
    #[prost(bool, optional, tag = "12")]
    notify_scripts: Option<bool>,
    #[prost(int32, optional, tag = "17")]
    work_dir_fd: Option<i32>,
    #[prost(int32, optional, tag = "34")]
    manage_cgroups_mode: Option<i32>,
    #[prost(uint32, optional, tag = "35")]
    ghost_limit: Option<u32>,
    #[prost(string, repeated, tag = "37")]
    external: Vec<String>,
    #[prost(bool, optional, tag = "46")]
    tcp_skip_in_flight: Option<bool>,
    #[prost(bool, optional, tag = "52")]
    tcp_close: Option<bool>,
    #[prost(int32, optional, tag = "64")]
    network_lock: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(int32, required, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    options: Option<Options>,
    #[prost(bool, optional, tag = "3")]
    notify_success: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Notification {
    #[prost(string, optional, tag = "1")]
    script: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(int32, required, tag = "1")]
    kind: i32,
    #[prost(bool, required, tag = "2")]
    success: bool,
    #[prost(message, optional, tag = "5")]
    notification: Option<Notification>,
    #[prost(string, optional, tag = "9")]
    message: Option<String>,
}

/// The dump request. Directories are descriptors of this process: criu finds it through its socket.
pub struct Dump<'a> {
    /// The first process of the container.
    pub pid: i32,
    /// The directory for the images.
    pub images: BorrowedFd<'a>,
    /// The directory for `dump.log` and `stats-dump`.
    pub work: BorrowedFd<'a>,
    /// The external mounts, in criu's syntax.
    pub external: Vec<String>,
}

/// Why a dump failed. The processes keep running.
#[derive(Debug)]
pub enum DumpError<E> {
    /// criu refused, with its message, if it sent one.
    Refused(Option<String>),
    /// The connection to criu failed.
    Lost(io::Error),
    /// A step that needs the frozen container failed.
    WhileFrozen(E),
}

/// Makes criu dump, over `socket`. Calls `frozen` when everything is dumped and still frozen.
pub fn dump<E>(
    socket: OwnedFd,
    what: Dump<'_>,
    frozen: impl FnOnce() -> Result<(), E>,
) -> Result<(), DumpError<E>> {
    let request = Request {
        kind: kind::DUMP,
        options: Some(Options {
            images_dir_fd: what.images.as_raw_fd(),
            pid: Some(what.pid),
            leave_running: Some(true),
            file_locks: Some(true),
            log_level: Some(LOG_LEVEL),
            log_file: Some("dump.log".to_owned()),
            notify_scripts: Some(true),
            work_dir_fd: Some(what.work.as_raw_fd()),
            manage_cgroups_mode: Some(CGROUPS_IGNORED),
            ghost_limit: Some(GHOST_LIMIT),
            external: what.external,
            tcp_skip_in_flight: Some(true),
            tcp_close: Some(true),
            network_lock: Some(NETWORK_UNLOCKED),
        }),
        notify_success: None,
    };
    exchange(socket, &request, frozen)
}

fn exchange<E>(
    socket: OwnedFd,
    request: &Request,
    frozen: impl FnOnce() -> Result<(), E>,
) -> Result<(), DumpError<E>> {
    let _ = set_socket_timeout(&socket, Timeout::Recv, Some(SILENCE));
    let mut socket = File::from(socket);
    let lost = |error: io::Error| {
        // criu exits without a message when it cannot even write its log.
        let ended = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        if ended.contains(&error.kind()) {
            return DumpError::Refused(None);
        }
        DumpError::Lost(error)
    };
    socket.write_all(&request.encode_to_vec()).map_err(lost)?;
    let mut frozen = Some(frozen);
    let mut failed = None;
    let mut packet = vec![0; LONGEST];
    loop {
        let length = socket.read(&mut packet).map_err(lost)?;
        if length == 0 {
            return Err(failed.map_or(DumpError::Refused(None), DumpError::WhileFrozen));
        }
        let response = Response::decode(&packet[..length])
            .map_err(|error| lost(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        if response.kind == kind::NOTIFY {
            let script = response.notification.and_then(|n| n.script);
            if script.as_deref() == Some(POST_DUMP)
                && let Some(frozen) = frozen.take()
            {
                failed = frozen().err();
            }
            let answer = Request {
                kind: kind::NOTIFY,
                options: None,
                notify_success: Some(failed.is_none()),
            };
            socket.write_all(&answer.encode_to_vec()).map_err(lost)?;
            continue;
        }
        return match failed {
            Some(error) => Err(DumpError::WhileFrozen(error)),
            // No files were copied while the container was frozen, so the dump is incomplete.
            None if response.success && frozen.is_some() => Err(DumpError::Refused(None)),
            None if response.success => Ok(()),
            None => Err(DumpError::Refused(response.message)),
        };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn response(kind: i32, success: bool, script: Option<&str>) -> Response {
        Response {
            kind,
            success,
            notification: script.map(|script| Notification { script: Some(script.to_owned()) }),
            message: (!success).then(|| "no".to_owned()),
        }
    }

    /// A criu that sends `responses`; also returns the received messages.
    fn with(
        responses: &[Response],
        fails: bool,
    ) -> (Result<(), DumpError<&'static str>>, Vec<Option<bool>>) {
        let (ours, crius) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let mut criu = File::from(crius);
        for response in responses {
            criu.write_all(&response.encode_to_vec()).unwrap();
        }
        let request = Request { kind: kind::DUMP, options: None, notify_success: None };
        rustix::net::shutdown(&criu, rustix::net::Shutdown::Write).unwrap();
        let result = exchange(ours, &request, || {
            if fails {
                return Err("no room");
            }
            Ok(())
        });
        let mut packet = [0; 1024];
        let mut said = Vec::new();
        while let Ok(length @ 1..) = criu.read(&mut packet) {
            said.push(Request::decode(&packet[..length]).unwrap().notify_success);
        }
        (result, said)
    }

    #[rstest]
    #[case::all_is_well(&[response(6, true, Some("network-lock")), response(6, true, Some("post-dump")), response(1, true, None)], false, "Ok", &[None, Some(true), Some(true)])]
    #[case::criu_cannot(&[response(1, false, None)], false, "Refused(Some(\"no\"))", &[None])]
    #[case::it_dies(&[], false, "Refused(None)", &[None])]
    #[case::files_cannot_be_copied(&[response(6, true, Some("post-dump")), response(1, false, None)], true, "WhileFrozen", &[None, Some(false)])]
    #[case::it_never_froze(&[response(1, true, None)], false, "Refused(None)", &[None])]
    fn dump_result_follows_responses_of_criu(
        #[case] responses: &[Response],
        #[case] fails: bool,
        #[case] expected: &str,
        #[case] expected_said: &[Option<bool>],
    ) {
        let (result, said) = with(responses, fails);
        let text = format!("{result:?}");
        assert!(text.contains(expected), "{text}");
        assert_eq!(said, expected_said);
    }
}
