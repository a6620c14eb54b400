//! The CRI client of the commands: the endpoint, timeouts of calls, and how errors are reported.

use std::future::Future;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use harness::Client;
use harness::client::Answer;

use crate::args::UnixEndpoint;
use crate::endpoint::default_listen;
use crate::exit::{CALLS, Exit};
use crate::report::complain;
use crate::signals::Signals;

pub(crate) mod config;
pub(crate) mod containers;
pub(crate) mod credentials;
pub(crate) mod document;
mod error;
pub(crate) mod find;
pub(crate) mod human;
pub(crate) mod images;
pub(crate) mod output;
pub(crate) mod pods;
pub(crate) mod select;
mod settings;
pub(crate) mod status;

pub(crate) use error::{CallError, start_failure_exit_code};
pub(crate) use settings::{ClientArgs, Connection, Endpoints};

/// Default timeout of a call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

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
        let mut cri = self.endpoints.open()?;
        cri.timeout = self.timeout.or(cri.timeout);
        Ok(cri)
    }
}

impl Endpoints {
    /// Finds the runtime; it has to accept a connection.
    pub(crate) fn open(&self) -> Result<Cri, CallError> {
        let settings = self.settings()?;
        let endpoint = match &settings.runtime_endpoint {
            Some(endpoint) => endpoint.clone(),
            None => find()?,
        };
        reach(&endpoint)?;
        let runtime = Client::new(endpoint.path());
        let images = match &settings.image_endpoint {
            Some(endpoint) => {
                reach(endpoint)?;
                Client::new(endpoint.path())
            }
            None => runtime.clone(),
        };
        Ok(Cri {
            runtime,
            images,
            timeout: settings.timeout,
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

/// The first socket that is there: this user's, root's, the one that crictl is set up for, and those of other runtimes.
fn find() -> Result<UnixEndpoint, CallError> {
    let user = nix::unistd::geteuid();
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let temp = std::env::temp_dir();
    let own = default_listen(user.is_root(), runtime_dir.as_deref(), &temp, user.as_raw());
    let mut all = vec![own.path().to_owned(), "/run/crib/crib.sock".into()];
    all.extend(
        settings::of_this_machine()?
            .runtime_endpoint
            .map(|endpoint| endpoint.path().to_owned()),
    );
    all.extend(
        ["/run/containerd/containerd.sock", "/run/crio/crio.sock"]
            .into_iter()
            .map(PathBuf::from),
    );
    let mut tried: Vec<PathBuf> = Vec::new();
    for path in all {
        if !tried.contains(&path) {
            tried.push(path);
        }
    }
    match tried.iter().find(|path| path.exists()) {
        Some(path) => Ok(UnixEndpoint::at(path.clone())),
        None => Err(CallError::NoRuntime { tried }),
    }
}

impl Cri {
    /// How long a call may take, if the user said so.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Changes how long a call may take; `None` leaves it as it is.
    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout.or(self.timeout);
    }

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

    /// Waits for the answer to a call with a timeout of its own; without one, as the user says.
    pub(crate) async fn call_within<T>(
        &self,
        call: &'static str,
        timeout: Option<Duration>,
        answer: impl Future<Output = Answer<T>>,
    ) -> Result<T, CallError> {
        self.wait(call, timeout.or(self.timeout), answer).await
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
                | CallError::StillRunning { .. }
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
