//! Runs rules in parallel: each with a connection, a recording and a deadline of its own, so that a call that hangs costs its
//! rule alone.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::cgroup;
use super::cleanup::{self, PREFIX};
use super::context::{Context, Shared};
use super::directory::RunDirectory;
use super::images::TestImages;
use super::outcome::Outcome;
use super::restart::Restart;
use super::rule::Rule;
use crate::client::Client;
use crate::proxy::{Call, Fault, Proxy};

/// How long removing a rule's pods may take, beyond which they are left for the end of the run.
const REMOVAL: Duration = Duration::from_secs(20);
/// The most rules that run at once.
const MOST_SLOTS: u32 = 1024;
/// The calls that a runtime may leave out.
const OPTIONAL: &[&str] = &[
    "CheckpointContainer",
    "GetContainerEvents",
    "ListMetricDescriptors",
    "ListPodSandboxMetrics",
    "ListPodSandboxStats",
    "PodSandboxStats",
    "RuntimeConfig",
    "StreamContainerStats",
    "StreamContainers",
    "StreamImages",
    "StreamPodSandboxMetrics",
    "StreamPodSandboxStats",
    "StreamPodSandboxes",
    "UpdatePodSandboxResources",
    "UpdateRuntimeConfig",
];

/// What is checked, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The runtime's socket.
    pub runtime: PathBuf,
    /// The image service's socket.
    pub images: PathBuf,
    /// The image of containers; otherwise one that the endpoint has, or gets from a registry of this process.
    pub image: Option<String>,
    /// The port of that registry at 127.0.0.1; otherwise a free one.
    pub registry_port: Option<u16>,
    /// The rules.
    pub rules: Vec<&'static Rule>,
    /// How many run at once.
    pub parallel: usize,
    /// How long a rule may take.
    pub deadline: Duration,
    /// How long a rule waits for one state.
    pub patience: Duration,
    /// How the runtime is restarted; otherwise the rules of restarts are skipped.
    pub restart: Option<Restart>,
    /// What the runtime is to do wrong, as the rules see it. One that is `off` and called `restarted` is switched on when a rule
    /// has restarted the runtime.
    pub faults: Vec<Fault>,
}

impl Options {
    /// Every rule, against the runtime at a socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self {
            runtime: socket.to_owned(),
            images: socket.to_owned(),
            image: None,
            registry_port: None,
            rules: super::all(),
            parallel: 8,
            deadline: Duration::from_secs(60),
            patience: Duration::from_secs(20),
            restart: None,
            faults: Vec::new(),
        }
    }
}

/// Why nothing was checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The runtime does not answer.
    #[error("the runtime does not answer Version: {}", .0.message())]
    NoRuntime(Box<Status>),
    /// The containers have no image.
    #[error("there is no image for containers: {0}")]
    NoImage(String),
    /// A file or a socket cannot be made.
    #[error("failed to {doing}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// How one rule ended.
#[derive(Debug, Clone)]
pub struct RuleResult {
    /// The rule.
    pub rule: &'static Rule,
    /// How: `Ok` is a pass.
    pub outcome: Result<(), Outcome>,
    /// How long it took.
    pub took: Duration,
    /// Its calls, in the order in which they began; times are since the rule's beginning.
    pub calls: Vec<Call>,
}

/// How a check ended.
#[derive(Debug, Clone)]
pub struct Report {
    /// The runtime's name and version.
    pub runtime: String,
    /// The endpoint, as a URL.
    pub endpoint: String,
    /// A result for each rule, in the order of the rules.
    pub results: Vec<RuleResult>,
    /// Whether it was interrupted: then rules are missing.
    pub interrupted: bool,
    /// What could not be removed.
    pub left: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

/// Runs the rules; `ended` is called after each one. Cancelling `interrupt` ends it early. Everything that was made is removed.
///
/// # Errors
/// See [`CheckError`]: then no rule has run.
pub async fn check(
    options: Options,
    interrupt: CancellationToken,
    mut ended: impl FnMut(&RuleResult),
) -> Result<Report, CheckError> {
    let began = Instant::now();
    let runtime = Client::new(&options.runtime);
    let mut direct = runtime.clone();
    direct.images = Client::new(&options.images).images;
    let version = runtime
        .version()
        .await
        .map_err(|status| CheckError::NoRuntime(Box::new(status)))?;
    if let Err(status) = cleanup::remove_dead_runs(&direct, &direct).await {
        tracing::warn!(
            message = status.message(),
            "failed to look for earlier checks"
        );
    }
    let directory = RunDirectory::make(PREFIX).map_err(|source| CheckError::Io {
        doing: "make a directory for the check",
        source,
    })?;
    let prepared = prepare(&options, &direct, &version.runtime_name, &directory).await;
    let shared = match prepared {
        Ok(shared) => Arc::new(shared),
        Err(error) => {
            directory.remove();
            return Err(error);
        }
    };
    let mut rules = JoinSet::new();
    // Others must not run while a rule restarts the runtime: such a rule takes all slots, and waits until they are free.
    let every =
        u32::try_from(options.parallel).map_or(MOST_SLOTS, |slots| slots.clamp(1, MOST_SLOTS));
    let slots = Arc::new(Semaphore::new(every as usize));
    for rule in options.rules.iter().copied() {
        let (slots, shared, direct) = (Arc::clone(&slots), Arc::clone(&shared), direct.clone());
        let options = options.clone();
        let needed = if rule.restarts() { every } else { 1 };
        rules.spawn(async move {
            // The semaphore is never closed.
            let _slots = slots.acquire_many(needed).await;
            run_rule(rule, &options, shared, &direct).await
        });
    }
    let mut results = Vec::new();
    let interrupted = loop {
        tokio::select! {
            () = interrupt.cancelled() => break true,
            next = rules.join_next() => match next {
                None => break false,
                Some(Ok(result)) => {
                    ended(&result);
                    results.push(result);
                }
                Some(Err(error)) => tracing::warn!(%error, "rule did not end"),
            }
        }
    };
    rules.shutdown().await;
    let position = |id: &str| options.rules.iter().position(|rule| rule.id == id);
    results.sort_by_key(|result: &RuleResult| position(result.rule.id));
    let left = clean_up(shared, &direct, directory).await;
    Ok(Report {
        runtime: format!("{} {}", version.runtime_name, version.runtime_version),
        endpoint: format!("unix://{}", options.runtime.display()),
        results,
        interrupted,
        left,
        took: began.elapsed(),
    })
}

async fn prepare(
    options: &Options,
    client: &Client,
    runtime_name: &str,
    directory: &RunDirectory,
) -> Result<Shared, CheckError> {
    let run = directory.name();
    let images = TestImages::start(directory, options.registry_port).await;
    let images = images.map_err(|error| match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    });
    let image = match (&options.image, runtime_name, &images) {
        (Some(image), _, _) => image.clone(),
        // crib has an image of the host's root.
        (None, "crib", _) => "crib.local/host".to_owned(),
        (None, _, Ok(images)) => images
            .shell(client)
            .await
            .map_err(|error| CheckError::NoImage(error.to_string()))?,
        (None, _, Err(why)) => return Err(CheckError::NoImage(why.clone())),
    };
    if !images.as_ref().is_ok_and(|images| images.has(&image))
        && client.image(&image).await.ok().flatten().is_none()
    {
        client
            .pull(&image)
            .await
            .map_err(|status| CheckError::NoImage(format!("{image}: {}", status.message())))?;
    }
    // What crib says of its box; other runtimes say nothing.
    let status = match client.status().await {
        Ok(status) if runtime_name == "crib" => status,
        Ok(_) | Err(_) => Default::default(),
    };
    let features = |handler: &v1::RuntimeHandler| handler.features.unwrap_or_default();
    let mut handlers = status.runtime_handlers.iter();
    let maps_no_ids = handlers.any(|handler| !features(handler).user_namespaces);
    let mut info = status.info;
    let isolation = info.remove("isolation").unwrap_or_default();
    let cgroups = info.remove("cgroups").unwrap_or_default();
    let no_namespaces =
        (isolation == "process").then(|| "isolation process has no namespaces".to_owned());
    let single = isolation
        .contains("single id")
        .then(|| "the user has no subordinate ids".to_owned());
    Ok(Shared {
        cgroup_parent: cgroup::parent(client, &run).await,
        run,
        directory: directory.path().to_owned(),
        image,
        images,
        patience: options.patience,
        restart: options.restart.clone(),
        no_users: no_namespaces.clone().or(single),
        no_limits: no_namespaces
            .clone()
            .or_else(|| cgroups.contains("not applied").then_some(cgroups)),
        no_user_namespaces: maps_no_ids
            .then(|| format!("isolation {isolation} maps no ids of the host here")),
        no_namespaces,
    })
}

async fn run_rule(
    rule: &'static Rule,
    options: &Options,
    shared: Arc<Shared>,
    direct: &Client,
) -> RuleResult {
    let began = Instant::now();
    let run = shared.run.clone();
    let (outcome, calls) = match connect(rule, options, shared) {
        Ok((context, proxies)) => {
            let zero = |proxy: &Proxy| proxy.recording().set_zero();
            proxies.iter().for_each(zero);
            let body = context.clone();
            // A task of its own: a rule that panics fails, and ends nothing else.
            let body = tokio::spawn(async move { (rule.body)(&body).await });
            let outcome = end_of(body, options.deadline).await;
            let mut calls: Vec<Call> = proxies.iter().flat_map(|p| p.recording().calls()).collect();
            calls.sort_by(|a, b| a.start.total_cmp(&b.start));
            (judged(outcome, &calls), calls)
        }
        Err(error) => {
            let why = format!("failed to make a socket: {error}");
            (Err(Outcome::Skipped(why)), Vec::new())
        }
    };
    let took = began.elapsed();
    let removal = cleanup::remove_pods(direct, &run, Some(rule.id));
    if tokio::time::timeout(REMOVAL.min(options.deadline), removal)
        .await
        .is_err()
    {
        tracing::debug!(rule = rule.id, "pods of rule are left for the end");
    }
    RuleResult {
        rule,
        outcome,
        took,
        calls,
    }
}

/// A connection that is recorded: through a proxy of the rule's own, or two if images have an endpoint of their own.
fn connect(
    rule: &'static Rule,
    options: &Options,
    shared: Arc<Shared>,
) -> io::Result<(Context, Vec<Proxy>)> {
    let socket = |suffix: &str| shared.directory.join(format!("{}{suffix}", rule.id));
    let proxy = Proxy::with_faults(&socket(".r"), &options.runtime, options.faults.clone())?;
    let mut client = Client::new(proxy.socket());
    let mut proxies = vec![proxy];
    if options.images != options.runtime {
        let proxy = Proxy::with_faults(&socket(".i"), &options.images, options.faults.clone())?;
        client.images = Client::new(proxy.socket()).images;
        proxies.push(proxy);
    }
    let context = Context {
        client,
        rule: rule.id,
        faults: proxies.iter().map(|proxy| proxy.rules().clone()).collect(),
        shared,
    };
    Ok((context, proxies))
}

async fn end_of(
    mut body: tokio::task::JoinHandle<Result<(), Outcome>>,
    deadline: Duration,
) -> Result<(), Outcome> {
    let failed = |expected: String, seen: String| Outcome::Fail {
        what: "the rule as a whole".to_owned(),
        expected,
        seen,
    };
    let outcome = tokio::time::timeout(deadline, &mut body).await;
    body.abort();
    match outcome {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Err(failed("the rule to end".to_owned(), error.to_string())),
        Err(_) => Err(failed(
            format!("to end within {} s", deadline.as_secs_f64()),
            "the last call below has not ended, or the state did not come".to_owned(),
        )),
    }
}

/// What a refused call means: a call that a runtime may leave out makes a rule unsupported, any other one fails it.
fn judged(outcome: Result<(), Outcome>, calls: &[Call]) -> Result<(), Outcome> {
    let Err(Outcome::Refused { code, message }) = outcome else {
        return outcome;
    };
    let of_code = |call: &&Call| call.code == Some(code) && call.message == message;
    let call = calls
        .iter()
        .rev()
        .find(of_code)
        .map(|call| call.method.as_str());
    let call = call.unwrap_or("a call");
    if code == Code::Unimplemented && OPTIONAL.contains(&call) {
        return Err(Outcome::Unsupported(format!("{call}: {message}")));
    }
    Err(Outcome::Fail {
        what: call.to_owned(),
        expected: "success".to_owned(),
        seen: format!("{code:?}: {message}"),
    })
}

async fn clean_up(shared: Arc<Shared>, client: &Client, directory: RunDirectory) -> Vec<String> {
    let run = shared.run.clone();
    let left = tokio::time::timeout(REMOVAL, cleanup::remove_run(client, &run)).await;
    // Every rule has ended: there is no other owner.
    if let Some(Shared {
        images: Ok(images), ..
    }) = Arc::into_inner(shared)
    {
        images.stop().await;
    }
    directory.remove();
    left.unwrap_or_else(|_| {
        vec![format!(
            "the runtime did not remove the pods of {run} within {} s",
            REMOVAL.as_secs()
        )]
    })
}
