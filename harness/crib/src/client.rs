//! The CRI client of the commands: endpoints, timeouts of calls, and error messages.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cri::v1;
use crib_base::args::UnixEndpoint;
use crib_base::dirs::temp_dir;
use crib_base::exit::{CALLS, Exit};
use crib_base::live::{self, NamedRun, RunName};
use crib_base::report::{chain, event_loop, print_error};
use crib_base::run_socket::{self, Request, RunConnection, RunResponse};
use crib_base::signals::Signals;
use harness::Client;
use harness::client::CallResult;
use harness::client::within;
use tokio::runtime::Builder;

use crate::endpoint::{check_shared, default_listen, dial};

pub(crate) mod agents;
pub(crate) mod completion;
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
pub(crate) mod run_objects;
pub(crate) mod select;
mod settings;
pub(crate) mod status;

pub(crate) use error::{CallError, start_failure_exit_code};
pub(crate) use settings::{ClientArgs, Connection, Endpoints};

/// Default timeout of a call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The additional time after which the runtime's deadline of a call expires.
const CANCEL_MARGIN: Duration = Duration::from_secs(1);

/// A connection to a runtime and its image service.
pub(crate) struct Cri {
    /// The runtime service.
    pub(crate) runtime: Client,
    /// The image service.
    pub(crate) images: Client,
    /// The runtime's endpoint.
    pub(crate) endpoint: UnixEndpoint,
    /// Whether the runtime belongs to a `crib run`, and may end at any time.
    of_run: bool,
    run: Option<RunName>,
    timeout: Option<Duration>,
}

impl Connection {
    /// Connects to the runtime.
    pub(crate) fn open(&self) -> Result<Cri, CallError> {
        Ok(self.with_timeout(self.endpoints.open()?))
    }

    /// Connects to the runtimes that are searched for containers and pods.
    pub(crate) fn open_all(&self) -> Result<Vec<Cri>, CallError> {
        let all = self.endpoints.open_all()?.into_iter();
        Ok(all.map(|cri| self.with_timeout(cri)).collect())
    }

    /// Like [`Self::open_all`]; returns an empty list if no endpoint was given and no runtime was found.
    pub(crate) fn open_all_or_none(&self) -> Result<Vec<Cri>, CallError> {
        match self.open_all() {
            Err(CallError::NoRuntime { .. }) => Ok(Vec::new()),
            all => all,
        }
    }

    fn with_timeout(&self, mut cri: Cri) -> Cri {
        cri.set_timeout(self.timeout);
        cri
    }
}

impl Endpoints {
    /// Connects to the runtime. Without a given endpoint, tries the default sockets, then the runtime of the only `crib run`.
    pub(crate) fn open(&self) -> Result<Cri, CallError> {
        let mut all = self.open_all()?;
        match (all.len(), all.first()) {
            (2.., Some(first)) if first.of_run => {
                Err(CallError::SeveralRuntimes(all.iter().map(Cri::choice).collect()))
            }
            _ => Ok(all.swap_remove(0)),
        }
    }

    /// The sockets of the runtime and the image service, as in [`Self::open`].
    pub(crate) fn sockets(&self) -> Result<(PathBuf, PathBuf), CallError> {
        let runtime = self.open()?.endpoint;
        let images = self.settings()?.image_endpoint;
        let images = images.as_ref().unwrap_or(&runtime).path().to_owned();
        Ok((runtime.path().to_owned(), images))
    }

    /// Connects to the given runtime; otherwise to the one at the default sockets, if any, and to those of all `crib run`s. Returns
    /// at least one.
    pub(crate) fn open_all(&self) -> Result<Vec<Cri>, CallError> {
        let settings = self.settings()?;
        let directory = live::directory();
        let failed = |source| CallError::Io {
            doing: format!("look for runs in {}", directory.display()),
            source,
        };
        if let Some(name) = &self.run {
            let named = live::named_runs(&directory).map_err(failed)?;
            let Some(run) = named.iter().find(|run| run.name == *name) else {
                return Err(CallError::UnknownRun {
                    name: name.clone(),
                    known: named.into_iter().map(|run| run.name).collect(),
                });
            };
            let endpoint = UnixEndpoint::at(run_socket::runtime_socket(&run.directory));
            let mut cri = connect(&settings, &endpoint, true)?;
            cri.run = Some(run.name.clone());
            return Ok(vec![cri]);
        }
        if let Some(endpoint) = &settings.runtime_endpoint {
            return Ok(vec![connect(&settings, endpoint, false)?]);
        }
        let live = live::endpoints(&directory).map_err(failed)?;
        let named = live::named_runs(&directory).map_err(failed)?;
        let usual = find().and_then(|endpoint| connect(&settings, &endpoint, false));
        // A run may have ended after it was listed.
        let runs = live.iter().filter_map(|endpoint| {
            let mut cri = connect(&settings, endpoint, true).ok()?;
            let of = |run: &&NamedRun| endpoint.path().parent() == Some(&run.directory);
            cri.run = named.iter().find(of).map(|run| run.name.clone());
            Some(cri)
        });
        let mut all: Vec<Cri> = runs.collect();
        match usual {
            Ok(usual) => all.insert(0, usual),
            Err(error) if all.is_empty() => return Err(error),
            Err(_) => {}
        }
        Ok(all)
    }
}

fn connect(
    settings: &settings::Settings,
    endpoint: &UnixEndpoint,
    of_run: bool,
) -> Result<Cri, CallError> {
    reach(endpoint)?;
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
        endpoint: endpoint.clone(),
        of_run,
        run: None,
        timeout: settings.timeout,
    })
}

fn reach(endpoint: &UnixEndpoint) -> Result<(), CallError> {
    match dial(endpoint.path()) {
        Ok(()) => Ok(()),
        Err(source) => Err(CallError::Unreachable { endpoint: endpoint.clone(), source }),
    }
}

/// The first existing socket: this user's, root's, the one in crictl's configuration, and those of other runtimes.
fn find() -> Result<UnixEndpoint, CallError> {
    let user = nix::unistd::geteuid();
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let temp = temp_dir();
    let own = default_listen(user.is_root(), runtime_dir.as_deref(), &temp, user.as_raw());
    let mut all = vec![own.path().to_owned(), "/run/crib/crib.sock".into()];
    all.extend(
        settings::of_this_machine()?.runtime_endpoint.map(|endpoint| endpoint.path().to_owned()),
    );
    all.extend(
        ["/run/containerd/containerd.sock", "/run/crio/crio.sock"].into_iter().map(PathBuf::from),
    );
    let mut tried: Vec<PathBuf> = Vec::new();
    for path in all {
        if !tried.contains(&path) {
            tried.push(path);
        }
    }
    match tried.iter().find(|path| path.exists()) {
        // In a temporary directory, another user may have created a socket with this name.
        Some(path) if path == own.path() => {
            let checked = check_shared(path).map_err(|error| CallError::Usage(chain(&error)));
            checked.map(|()| own.clone())
        }
        Some(path) => Ok(UnixEndpoint::at(path.clone())),
        None => Err(CallError::NoRuntime { tried }),
    }
}

impl Cri {
    /// The result of a call; `None` if the runtime belongs to a `crib run` that has ended.
    pub(crate) fn unless_ended<T>(
        &self,
        answer: Result<T, CallError>,
    ) -> Result<Option<T>, CallError> {
        match answer {
            Err(error) if self.of_run && error.exit() == Exit::NoRuntime => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// The option that selects this runtime.
    pub(crate) fn choice(&self) -> String {
        match &self.run {
            Some(name) => format!("--run {name}"),
            None => format!("--runtime-endpoint {}", self.endpoint),
        }
    }

    /// The name of the runtime's run.
    pub(crate) fn run(&self) -> Option<&RunName> {
        self.run.as_ref()
    }

    /// The directory of the runtime's `crib run`, if there is one.
    fn run_directory(&self) -> &Path {
        self.endpoint.path().parent().unwrap_or(Path::new("/"))
    }

    /// Sends a request to the runtime's `crib run`; `None` if there is no run, or it is ending.
    pub(crate) fn call_run(&self, request: Request) -> Result<Option<RunResponse>, CallError> {
        let run = self.run_directory();
        let failed =
            |source| CallError::Io { doing: format!("ask the run in {}", run.display()), source };
        let Some(mut connection) = RunConnection::open(run).map_err(failed)? else {
            return Ok(None);
        };
        connection.set_timeout(self.timeout.unwrap_or(CALL_TIMEOUT)).map_err(failed)?;
        connection.call(request).map_err(failed)
    }

    /// The user's timeout for calls, if set.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Sets the timeout for calls; `None` keeps the current one.
    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout.or(self.timeout);
    }

    /// Waits for the response with the user's timeout, or else the default.
    pub(crate) async fn call<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = CallResult<T>>,
    ) -> Result<T, CallError> {
        let timeout = self.timeout.unwrap_or(CALL_TIMEOUT);
        self.wait(call, Some(timeout), answer).await
    }

    /// The running containers.
    pub(crate) async fn running_containers(&self) -> Result<Vec<v1::Container>, CallError> {
        let state = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() };
        let running = v1::ContainerFilter { state: Some(state), ..Default::default() };
        self.call("ListContainers", self.runtime.containers(running)).await
    }

    /// Waits for the response to a call that may take long, with a timeout only if the user set one.
    pub(crate) async fn call_with_user_timeout<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = CallResult<T>>,
    ) -> Result<T, CallError> {
        self.wait(call, self.timeout, answer).await
    }

    /// Waits for the response with this timeout, or else the user's, if set.
    pub(crate) async fn call_within<T>(
        &self,
        call: &'static str,
        timeout: Option<Duration>,
        answer: impl Future<Output = CallResult<T>>,
    ) -> Result<T, CallError> {
        self.wait(call, timeout.or(self.timeout), answer).await
    }

    /// Waits for the response to a call that ends by itself.
    pub(crate) async fn call_without_timeout<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = CallResult<T>>,
    ) -> Result<T, CallError> {
        self.wait(call, None, answer).await
    }

    async fn wait<T>(
        &self,
        call: &'static str,
        timeout: Option<Duration>,
        answer: impl Future<Output = CallResult<T>>,
    ) -> Result<T, CallError> {
        let answer = match timeout {
            None => answer.await,
            Some(timeout) => {
                // The runtime's deadline expires later, so that this client reports the timeout.
                let answer = within(timeout.saturating_add(CANCEL_MARGIN), answer);
                let answer = tokio::time::timeout(timeout, answer).await;
                answer.map_err(|_| CallError::NoAnswer { call, timeout })?
            }
        };
        answer.map_err(|status| CallError::refused(call, status))
    }
}

/// Examples, followed by the exit codes.
pub(crate) fn with_codes(examples: &str) -> String {
    format!("{examples}\n\n{CALLS}")
}

/// Runs a command and prints its error.
pub(crate) fn finish(command: impl Future<Output = Result<Exit, CallError>>) -> Exit {
    let tokio = match event_loop(&mut Builder::new_current_thread(), 4) {
        Ok(tokio) => tokio,
        Err(exit) => return exit,
    };
    let result = tokio.block_on(command);
    // A thread that reads the terminal would block a regular shutdown.
    tokio.shutdown_background();
    result.unwrap_or_else(|error| {
        let exit = error.exit();
        if !error.is_silent() {
            print_error(&error);
        }
        exit
    })
}

/// Runs a command until it ends or a signal arrives, which drops it.
pub(crate) async fn until_signal(
    command: impl Future<Output = Result<Exit, CallError>>,
) -> Result<Exit, CallError> {
    let mut signals = Signals::listen()
        .map_err(|source| CallError::Io { doing: "listen for signals".to_owned(), source })?;
    tokio::select! {
        result = command => result,
        _ = signals.next() => Ok(Exit::Interrupted),
    }
}

/// Runs an operation on each item in order; reports failures and continues.
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
                | CallError::NoObject { .. }
                | CallError::Ambiguous { .. }
                | CallError::StillRunning { .. }
                | CallError::Io { .. }),
            ) => {
                print_error(&error);
                failed = true;
            }
            Err(error) => return Err(error),
        }
    }
    if failed { Err(CallError::AlreadyReported) } else { Ok(Exit::Success) }
}
