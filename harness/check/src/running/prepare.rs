//! Calls before the first rule. A hanging call must not hang the check.

use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use compact::Set;
use cri::v1;
use harness::client::{CallResult, Client};
use harness::debug_text::brief;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::cgroup;
use crate::context::Shared;
use crate::directory::RunDirectory;
use crate::images::{ImageError, TestImages};
use crate::running::{CheckError, Options};

/// After this time without a response, a warning names the call.
const SILENCE: Duration = Duration::from_secs(3);

/// The limit of calls outside of rules: a deadline, and the interruption of the check.
#[derive(Debug, Clone)]
pub(crate) struct CallLimit {
    deadline: Duration,
    interrupt: CancellationToken,
    seen: Arc<Mutex<(Duration, Set<String>)>>,
}

impl CallLimit {
    pub(crate) fn new(deadline: Duration, interrupt: CancellationToken) -> Self {
        Self { deadline, interrupt, seen: Arc::new(Mutex::new((Duration::MAX, Set::new()))) }
    }

    /// The shortest response time, and the methods without a response.
    pub(crate) fn seen(&self) -> (Duration, Set<String>) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a call; without a response it returns DEADLINE_EXCEEDED.
    ///
    /// # Errors
    /// [`CheckError::Interrupted`]
    pub(crate) async fn call<T>(
        &self,
        name: &str,
        call: impl Future<Output = CallResult<T>>,
    ) -> Result<CallResult<T>, CheckError> {
        let began = Instant::now();
        let deadline = match name {
            "Version" | "PullImage" => self.deadline,
            // The rules can run without the other calls.
            _ => self.deadline / 8,
        };
        let late = || {
            let seconds = deadline.as_secs_f64();
            Status::deadline_exceeded(format!("no answer to {name} within {seconds} s"))
        };
        let silence = async || -> Infallible {
            tokio::time::sleep(SILENCE).await;
            let within = deadline;
            tracing::warn!(call = name, ?within, "waiting for the runtime's response");
            std::future::pending().await
        };
        tokio::select! {
            () = self.interrupt.cancelled() => Err(CheckError::Interrupted),
            never = silence() => match never {},
            answer = tokio::time::timeout(deadline, call) => {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                match &answer {
                    Ok(_) => seen.0 = seen.0.min(began.elapsed()),
                    Err(_) => seen.1.extend(name.split(", ").map(str::to_owned)),
                }
                Ok(answer.unwrap_or_else(|_| Err(late())))
            }
        }
    }
}

/// Collects what the rules need to know about the runtime, and provides the containers' image.
pub(crate) async fn prepare(
    options: &Options,
    client: &Client,
    runtime_name: &str,
    directory: &RunDirectory,
    limit: &CallLimit,
) -> Result<Shared, CheckError> {
    let run = directory.name();
    let images = TestImages::start(directory, options.registry_port).await;
    let images = images.map_err(|error| reason(&error));
    let image = match (&options.image, runtime_name, &images) {
        (Some(image), _, _) => image.clone(),
        // crib has an image of the host's root filesystem.
        (None, "crib", _) => "crib.local/host".to_owned(),
        (None, _, Ok(images)) => {
            let image = images.add_shell().map_err(|error| no_image(&error))?;
            let pulled = limit.call("PullImage", client.pull(&image)).await?;
            pulled.map_err(|status| {
                let status = Box::new(status);
                let image = image.clone();
                no_image(&ImageError::Pull { image, status })
            })?;
            image
        }
        (None, _, Err(why)) => return Err(CheckError::NoImage(why.clone())),
    };
    if !images.as_ref().is_ok_and(|images| images.has(&image)) {
        let found = limit.call("ImageStatus", client.image(&image)).await?;
        if let Err(status) = &found {
            tracing::warn!(message = brief(status.message()), image, "failed to find image");
        }
        if found.ok().flatten().is_none() {
            let pulled = limit.call("PullImage", client.pull(&image)).await?;
            pulled
                .map_err(|status| CheckError::NoImage(format!("{image}: {}", status.message())))?;
        }
    }
    let pulls = options.rules.iter().any(|rule| rule.calls.contains(&"PullImage"));
    let images = match images {
        Ok(images) if pulls && !images.has(&image) => reachable(images, client, limit).await?,
        images => images,
    };
    let status = match limit.call("Status", client.status()).await? {
        // crib's status describes its machine; other runtimes do not report this.
        Ok(status) if runtime_name == "crib" => status,
        Ok(_) => Default::default(),
        Err(status) => {
            tracing::warn!(message = brief(status.message()), "failed to get runtime status");
            Default::default()
        }
    };
    let features = |handler: &v1::RuntimeHandler| handler.features.unwrap_or_default();
    let mut handlers = status.runtime_handlers.iter();
    let maps_no_ids = handlers.any(|handler| !features(handler).user_namespaces);
    let mut info = status.info;
    let isolation = info.remove("isolation").unwrap_or_default();
    let cgroups = info.remove("cgroups").unwrap_or_default();
    let no_namespaces =
        (isolation == "process").then(|| "isolation process has no namespaces".to_owned());
    let single =
        isolation.contains("single id").then(|| "the user has no subordinate ids".to_owned());
    let group = limit.call("RuntimeConfig", cgroup::of_run(client, &run));
    let cgroup = group.await?.unwrap_or_else(|status| {
        // The call is optional.
        if status.code() != tonic::Code::Unimplemented {
            tracing::warn!(message = brief(status.message()), "pods have no cgroup parent");
        }
        None
    });
    Ok(Shared {
        cgroup,
        run,
        directory: directory.path().to_owned(),
        sockets: directory.sockets(),
        image,
        images,
        wait_limit: options.wait_limit,
        unfinished: Mutex::default(),
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

/// The images, or the reason if the runtime cannot reach the registry in this process.
async fn reachable(
    images: TestImages,
    client: &Client,
    limit: &CallLimit,
) -> Result<Result<TestImages, String>, CheckError> {
    if let Err(error) = images.add("reachable:1", "reachable", |image| image) {
        return Ok(Err(reason(&error)));
    }
    let name = format!("{}:1", images.name("reachable"));
    let Err(status) = limit.call("PullImage", client.pull(&name)).await? else {
        return Ok(Ok(images));
    };
    // If the runtime reached the registry, or failed for another reason, the rules of pulls report the failure.
    if images.seen("") > 0 || !is_of_connection(status.message()) {
        return Ok(Ok(images));
    }
    let why = format!(
        "the runtime does not reach the registry of the check at {}: {}",
        images.url(),
        status.message()
    );
    images.stop().await;
    Ok(Err(why))
}

/// Whether an error message is about a failed connection.
fn is_of_connection(message: &str) -> bool {
    let message = message.to_lowercase();
    let words = [
        "connection refused",
        "unreachable",
        "no route to host",
        "timed out",
        "timeout",
        "cannot be reached",
        "http response to https client",
    ];
    words.iter().any(|words| message.contains(words))
}

fn no_image(error: &ImageError) -> CheckError {
    CheckError::NoImage(error.to_string())
}

fn reason(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
