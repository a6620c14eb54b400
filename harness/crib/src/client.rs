//! The CRI client of the commands: the endpoint, timeouts of calls, and how errors are reported.

use std::future::Future;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use harness::Client;
use harness::client::Answer;

use crate::args::{OptionalEndpoint, UnixEndpoint, duration};
use crate::endpoint::default_listen;
use crate::exit::{CALLS, Exit};
use crate::report::complain;
use crate::signals::Signals;

mod error;
pub(crate) mod find;
pub(crate) mod human;
pub(crate) mod output;
pub(crate) mod select;

pub(crate) use error::{CallError, start_failure_exit_code};

/// Where the runtime is. The names are crictl's.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// The runtime's CRI endpoint [default: the first socket found of crib, containerd and CRI-O]
    #[arg(long, value_name = "unix:///PATH", env = "CONTAINER_RUNTIME_ENDPOINT")]
    runtime_endpoint: Option<OptionalEndpoint>,
    /// The image service's CRI endpoint [default: the runtime's]
    #[arg(long, value_name = "unix:///PATH", env = "IMAGE_SERVICE_ENDPOINT")]
    image_endpoint: Option<OptionalEndpoint>,
    /// Timeout of each call: 10, 1.5s, 2m [default: 10s; none for pulls]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

/// Default timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a runtime, and to the service for its images.
pub(crate) struct Cri {
    /// The runtime.
    pub(crate) runtime: Client,
    /// Its images.
    pub(crate) images: Client,
    timeout: Option<Duration>,
}

impl Connection {
    /// Finds the runtime; it has to accept a connection.
    pub(crate) fn open(&self) -> Result<Cri, CallError> {
        let endpoint = match &self.runtime_endpoint {
            Some(OptionalEndpoint(Some(endpoint))) => endpoint.clone(),
            Some(OptionalEndpoint(None)) | None => find()?,
        };
        reach(&endpoint)?;
        let runtime = Client::new(endpoint.path());
        let images = match &self.image_endpoint {
            Some(OptionalEndpoint(Some(endpoint))) => {
                reach(endpoint)?;
                Client::new(endpoint.path())
            }
            Some(OptionalEndpoint(None)) | None => runtime.clone(),
        };
        Ok(Cri {
            runtime,
            images,
            timeout: self.timeout,
        })
    }
}

fn reach(endpoint: &UnixEndpoint) -> Result<(), CallError> {
    match UnixStream::connect(endpoint.path()) {
        Ok(_) => Ok(()),
        Err(source) => Err(CallError::Unreachable {
            endpoint: endpoint.clone(),
            source,
        }),
    }
}

/// The first socket that is there: this user's, root's, and those of other runtimes.
fn find() -> Result<UnixEndpoint, CallError> {
    let user = nix::unistd::geteuid();
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let temp = std::env::temp_dir();
    let own = default_listen(user.is_root(), runtime_dir.as_deref(), &temp, user.as_raw());
    let mut tried = vec![own.path().to_owned()];
    for path in [
        "/run/crib/crib.sock",
        "/run/containerd/containerd.sock",
        "/run/crio/crio.sock",
    ] {
        if !tried.iter().any(|tried| tried == Path::new(path)) {
            tried.push(path.into());
        }
    }
    match tried.iter().find(|path| path.exists()) {
        Some(path) => Ok(UnixEndpoint::at(path.clone())),
        None => Err(CallError::NoRuntime { tried }),
    }
}

impl Cri {
    /// Waits for the answer to a call, for as long as a call may take.
    pub(crate) async fn call<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Answer<T>>,
    ) -> Result<T, CallError> {
        let timeout = self.timeout.unwrap_or(CALL_TIMEOUT);
        self.wait(call, Some(timeout), answer).await
    }

    /// Waits for the answer to a call that may take long: only for as long as the user says, if at all.
    pub(crate) async fn call_with_user_timeout<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Answer<T>>,
    ) -> Result<T, CallError> {
        self.wait(call, self.timeout, answer).await
    }

    /// Waits for the answer to a call that ends by itself.
    pub(crate) async fn call_without_timeout<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Answer<T>>,
    ) -> Result<T, CallError> {
        self.wait(call, None, answer).await
    }

    async fn wait<T>(
        &self,
        call: &'static str,
        timeout: Option<Duration>,
        answer: impl Future<Output = Answer<T>>,
    ) -> Result<T, CallError> {
        let answer = match timeout {
            None => answer.await,
            Some(timeout) => tokio::time::timeout(timeout, answer)
                .await
                .map_err(|_| CallError::NoAnswer { call, timeout })?,
        };
        answer.map_err(|status| CallError::refused(call, status))
    }
}

/// Examples, and the exit codes under them.
pub(crate) fn with_codes(examples: &str) -> String {
    format!("{examples}\n\n{CALLS}")
}

/// Runs a command to its end, and tells what went wrong.
pub(crate) fn finish(command: impl Future<Output = Result<Exit, CallError>>) -> Exit {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = match tokio {
        Ok(tokio) => {
            let result = tokio.block_on(command);
            // A thread that reads the terminal would be waited for.
            tokio.shutdown_background();
            result
        }
        Err(source) => Err(CallError::Io {
            doing: "start the event loop".to_owned(),
            source,
        }),
    };
    result.unwrap_or_else(|error| {
        let exit = error.exit();
        if !matches!(error, CallError::Output(_) | CallError::AlreadyReported) {
            complain(&error);
        }
        exit
    })
}

/// What a command comes to, unless a signal comes first. The command is dropped then.
pub(crate) async fn until_signal(
    command: impl Future<Output = Result<Exit, CallError>>,
) -> Result<Exit, CallError> {
    let mut signals = Signals::listen().map_err(|source| CallError::Io {
        doing: "listen for signals".to_owned(),
        source,
    })?;
    tokio::select! {
        result = command => result,
        _ = signals.next() => Ok(Exit::Interrupted),
    }
}

/// Runs an operation on each item in order; reports a failed one and continues with the rest.
pub(crate) async fn each<T>(
    all: impl IntoIterator<Item = T>,
    mut one: impl AsyncFnMut(T) -> Result<(), CallError>,
) -> Result<Exit, CallError> {
    let mut failed = false;
    for item in all {
        match one(item).await {
            Ok(()) => {}
            Err(
                error @ (CallError::Refused { .. }
                | CallError::NotFound { .. }
                | CallError::Ambiguous { .. }
                | CallError::Io { .. }),
            ) => {
                complain(&error);
                failed = true;
            }
            Err(error) => return Err(error),
        }
    }
    if failed {
        Err(CallError::AlreadyReported)
    } else {
        Ok(Exit::Success)
    }
}
