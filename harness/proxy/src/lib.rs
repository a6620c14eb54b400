//! A proxy between a CRI client and a runtime, which records every call, and forwards it unchanged or with faults.
//!
//! It forwards HTTP/2 requests, not messages: metadata, deadlines, streams, cancellation, trailers and error details reach
//! the other side as they were sent, and a call that this version of the CRI does not have is forwarded too. Messages are
//! decoded only when a record is read. Each client connection has a connection to the runtime of its own, and ends with it.
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
//! | `json` | decodes messages by the contract's descriptors |
//! | `record` | the recorded calls |
//! | `body` | a body that is recorded while it passes |
//! | `fault` | a rule, from its text |
//! | `schedule` ◆ | whether a rule applies to one more call |
//! | `rules` | the rules of a running proxy, which are switched and count |
//! | `rule_in_call` | a rule in the course of one call |
//! | `faulty`, `faulty_body`, `throttled` | what rules do with one call, its messages, and their speed |
//! | `answers` | answers that the proxy makes itself |
//! | `control` | switches rules through a socket |
//! | `forward` | forwards the requests of one connection |
//! | `recorded` ◆ | the calls of a file |
//! | `replay` | serves a recording without a runtime |
//! | `lint` ◆ | what a recorded client does wrong |

use std::io;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

mod answers;
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
mod rule_in_call;
mod rules;
mod schedule;
#[cfg(test)]
mod tests;
mod throttled;

pub use fault::{BadFault, BadRules, Fault, RuleSet};
pub use json::dynamic;
pub use lint::{Finding, LINT_RULES, SeenCall, lint};
pub use record::{Call, Message, Recording};
pub use recorded::{BadRecording, RecordedCall, RecordedMessage, RecordingError, finished_lines};
pub use replay::{Replay, ReplayError};
pub use rules::{RuleState, Rules, UnknownRule};

/// A proxy that listens on a unix socket. Dropping it closes all connections and removes the socket.
#[derive(Debug)]
pub struct Proxy {
    socket: PathBuf,
    recording: Recording,
    rules: Rules,
    /// Ends the task, and with it all connections.
    _shutdown: DropGuard,
}

impl Proxy {
    /// Listens on the socket `listen` and forwards to the runtime's socket, which need not exist yet. The directory of
    /// `listen` decides who may connect; the runtime sees the proxy's user as its peer.
    ///
    /// # Errors
    /// Binding failed.
    pub fn start(listen: &Path, runtime: &Path) -> io::Result<Self> {
        Self::with_faults(listen, runtime, Vec::new())
    }

    /// As [`Self::start`], for a runtime that is to have these faults.
    ///
    /// # Errors
    /// Binding failed.
    pub fn with_faults(listen: &Path, runtime: &Path, faults: Vec<Fault>) -> io::Result<Self> {
        Self::with_rules(listen, runtime, faults.into())
    }

    /// As [`Self::start`], for a runtime that is to behave by these rules.
    ///
    /// # Errors
    /// Binding failed.
    pub fn with_rules(listen: &Path, runtime: &Path, rules: RuleSet) -> io::Result<Self> {
        let rules = Rules::new(rules);
        let listener = UnixListener::bind(listen)?;
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

    /// Its rules, which can be switched on and off.
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
        // A socket that is gone already is what is wanted.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Serves each connection, which has a number from 1 on, in a task of its own. All of them end with the token.
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
            // Collects connections that ended, so that the set does not grow.
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
