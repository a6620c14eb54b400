//! A proxy between a CRI client and a runtime, which records every call, and forwards it unchanged or with faults.
//!
//! It forwards HTTP/2 requests, not messages: metadata, deadlines, streams, cancellation, trailers and error details pass
//! unchanged, and so do calls that this version of the CRI does not have. Messages are decoded only when a record is read. Each
//! client connection has its own connection to the runtime; if one of them ends, so does the other.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use proxy::Proxy;
//!
//! # fn example() -> std::io::Result<()> {
//! let proxy = Proxy::start(Path::new("/tmp/proxy.sock"), Path::new("/run/crib/crib.sock"))?;
//! // Here a client calls the runtime through proxy.socket().
//! for call in proxy.recording().calls() {
//!     println!("{}", call.json());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | file | what |
//! |---|---|
//! | `frames` ◆ | splits the bytes of a gRPC body into messages |
//! | `json` | decodes messages by protobuf descriptors |
//! | `record` | the recorded calls |
//! | `body` | a body that is recorded while it passes through |
//! | `fault` | a rule, from its text |
//! | `schedule` ◆ | whether a rule applies to the next call |
//! | `rules` | the rules of a running proxy, their states and counters |
//! | `rule_in_call` | the state of a rule during one call |
//! | `faulty`, `faulty_body`, `throttled` | apply rules to one call, its messages, and their speed |
//! | `responses` | responses that the proxy itself creates |
//! | `control` | changes rules through a socket |
//! | `forward` | forwards the requests of one connection |
//! | `recorded` ◆ | the calls in a recording's file |
//! | `replay` | serves a recording without a runtime |
//! | `lint` ◆ | errors of a recorded client |

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

mod body;
pub mod control;
mod fault;
mod faulty;
mod faulty_body;
mod forward;
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod json;
mod lint;
mod record;
mod recorded;
mod replay;
mod responses;
mod rule_in_call;
mod rules;
mod schedule;
#[cfg(test)]
mod tests;
mod throttled;

pub use fault::{Fault, ParseFaultError, ParseRulesError, RuleSet};
pub use json::dynamic;
pub use lint::{CallFacts, Finding, LINT_RULES, SeenCalls, lint};
pub use record::{Call, Message, Recording};
pub use recorded::{
    ParseRecordingError, RecordedCall, RecordedMessage, RecordingError, finished_lines,
};
pub use replay::{Replay, ReplayError};
pub use rules::{RuleState, Rules, UnknownRule};

/// A proxy that listens on a unix socket. Dropping it closes all connections and removes the socket.
#[derive(Debug)]
pub struct Proxy {
    socket: PathBuf,
    recording: Recording,
    rules: Rules,
    /// Ends the task, and thereby all connections, on drop.
    _shutdown: DropGuard,
}

impl Proxy {
    /// Listens on the socket `listen`, which is accessible only to its owner, and forwards to the runtime's socket, which need not
    /// exist yet. The runtime sees the proxy's user as its peer.
    ///
    /// # Errors
    /// Binding failed.
    pub fn start(listen: &Path, runtime: &Path) -> io::Result<Self> {
        Self::with_faults(listen, runtime, Vec::new())
    }

    /// Like [`Self::start`], with these faults.
    ///
    /// # Errors
    /// Binding failed.
    pub fn with_faults(listen: &Path, runtime: &Path, faults: Vec<Fault>) -> io::Result<Self> {
        Self::with_rules(listen, runtime, faults.into())
    }

    /// Like [`Self::start`], with these rules.
    ///
    /// # Errors
    /// Binding failed.
    pub fn with_rules(listen: &Path, runtime: &Path, rules: RuleSet) -> io::Result<Self> {
        let rules = Rules::new(rules);
        let listener = bind(listen)?;
        let recording = Recording::new();
        let shutdown = CancellationToken::new();
        let (runtime, calls, of_calls) = (runtime.to_owned(), recording.clone(), rules.clone());
        let accepting = accept(listener, shutdown.clone(), move |stream, number| {
            forward::connection(stream, number, runtime.clone(), calls.clone(), of_calls.clone())
        });
        tasks::spawn(accepting);
        Ok(Self { socket: listen.to_owned(), recording, rules, _shutdown: shutdown.drop_guard() })
    }

    /// The socket that it listens on.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its rules, which can be enabled and disabled.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The calls so far.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The socket may already be gone.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Binds a socket that only its owner can connect to, whatever the umask is: the runtime trusts the proxy's user.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves each connection in its own task, and numbers them from 1. All of them end when `shutdown` is cancelled.
async fn accept<Serving>(
    listener: UnixListener,
    shutdown: CancellationToken,
    serve: impl Fn(UnixStream, u64) -> Serving,
) where
    Serving: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut number = 0;
    loop {
        tokio::select! {
            // Dropping the set ends the connections.
            () = shutdown.cancelled() => return,
            // Removes ended connections, so that the set does not grow.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    number += 1;
                    connections.spawn(tasks::boxed(serve(stream, number)));
                }
                Err(error) => tracing::warn!(%error, "failed to accept connection"),
            }
        }
    }
}
