//! Runs rules in parallel, each with its own connection, recording and deadline, so that a hanging call affects only its rule.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use harness::client::Client;
use harness::debug_text::brief;
use proxy::{Call, Proxy};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, LocalPoolHandle};
use tonic::Code;

use crate::context::{Context, Shared, Unfinished, Waiting};
use crate::directory::RunDirectory;
use crate::outcome::Outcome;
use crate::restart::Restart;
use crate::rule::Rule;
use crate::running::cleanup::{self, PREFIX};
use crate::running::dead_runs;
use crate::running::interruption;
use crate::running::pace::{Pace, Slot};
use crate::running::prepare::{CallLimit, prepare};
use crate::running::{CheckError, DEADLINE, Options};

/// The time limit for the removal of a rule's pods. Remaining pods are removed at the end of the run.
const REMOVAL: Duration = Duration::from_secs(20);
/// The time limit for the removal of everything that rules left, at the end of the run.
const LAST_REMOVAL: Duration = Duration::from_secs(60);
/// The number of threads for rules, which mostly wait.
const WORKERS: usize = 4;
/// The interval at which a running rule is examined.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The optional calls.
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

/// The result of one rule.
#[derive(Debug, Clone)]
pub struct RuleResult {
    /// The rule.
    pub rule: &'static Rule,
    /// The outcome: `Ok` if the rule passed.
    pub outcome: Result<(), Outcome>,
    /// The duration.
    pub took: Duration,
    /// Its calls, sorted by their starts; times are relative to the rule's start.
    pub calls: Vec<Call>,
}

/// The result of a check.
#[derive(Debug, Clone)]
pub struct Report {
    /// The runtime's name and version.
    pub runtime: String,
    /// The endpoint, as a URL.
    pub endpoint: String,
    /// The command line of this check, without the selection of rules.
    pub command: String,
    /// The results, in the order of the rules.
    pub results: Vec<RuleResult>,
    /// Why the check ended early, so that results are missing.
    pub cut_short: Option<CutShort>,
    /// What could not be removed.
    pub left: Vec<String>,
    /// The duration.
    pub took: Duration,
}

/// Why a check ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CutShort {
    /// The check was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// The runtime stopped responding; the last error.
    #[error("the runtime stopped responding ({0})")]
    RuntimeGone(String),
}

/// Runs the rules, and calls `ended` after each one. Cancelling `interrupt` ends the check early. Removes everything that the rules
/// created.
///
/// # Errors
/// See [`CheckError`]; no rule has run.
pub async fn check(
    options: Options,
    interrupt: CancellationToken,
    mut ended: impl FnMut(&RuleResult),
) -> Result<Report, CheckError> {
    let began = Instant::now();
    let runtime = Client::with_deadline(&options.runtime, options.deadline_of_calls());
    let mut direct = runtime.clone();
    direct.images = Client::with_deadline(&options.images, options.deadline_of_calls()).images;
    let limit = CallLimit::new(options.deadline, interrupt.clone());
    let version = limit
        .call("Version", runtime.version())
        .await?
        .map_err(|status| CheckError::NoRuntime(Box::new(status)))?;
    let removal = dead_runs::remove_dead_runs(&direct, &direct);
    let calls = "ListPodSandbox, ListImages or a removal";
    if let Err(status) = limit.call(calls, removal).await? {
        tracing::warn!(message = brief(status.message()), "failed to look for earlier checks");
    }
    let directory = RunDirectory::make(PREFIX)
        .map_err(|source| CheckError::Io { doing: "make a directory for the check", source })?;
    let prepared = prepare(&options, &direct, &version.runtime_name, &directory, &limit);
    let shared = match prepared.await {
        Ok(shared) => Arc::new(shared),
        Err(error) => {
            let run = directory.name();
            let removal = cleanup::remove_images(&direct, &run);
            // The error below is more important than images that could not be removed.
            let _ = tokio::time::timeout(REMOVAL.min(options.deadline), removal).await;
            directory.remove();
            return Err(error);
        }
    };
    let mut rules = JoinSet::new();
    let workers = LocalPoolHandle::new(WORKERS);
    // Some rules must run alone, for example if they restart the runtime: such a rule takes all slots, and waits until they are
    // free.
    let pace =
        Arc::new(Pace::new(options.parallel, began + options.deadline * 4 / 3, limit.seen()));
    for rule in options.rules.iter().copied() {
        let (pace, shared, direct) = (Arc::clone(&pace), Arc::clone(&shared), direct.clone());
        let (options, interrupted) = (options.clone(), interrupt.clone());
        let workers = workers.clone();
        rules.spawn(tasks::boxed(async move {
            let alone = rule.runs_alone() && (!rule.restarts() || options.restart.is_some());
            // `None` if the check ended early: no further rule starts.
            let slot = pace.slot(alone).await?;
            run_rule(rule, &options, shared, &direct, &interrupted, &workers, (&pace, slot)).await
        }));
    }
    let mut results = Vec::new();
    // This call runs concurrently with the rules: otherwise a slow runtime would delay them all.
    let (mut probes, mut ask_again) = (JoinSet::new(), false);
    let probe = || {
        let (runtime, limit) = (runtime.clone(), limit.clone());
        async move { interruption::unreachable_reason(&runtime, &limit).await }
    };
    let cut_short = loop {
        tokio::select! {
            () = interrupt.cancelled() => break Some(CutShort::Interrupted),
            Some(unreachable_reason) = probes.join_next() => match unreachable_reason {
                Ok(Some(why)) => break Some(CutShort::RuntimeGone(why)),
                Ok(None) | Err(_) => if std::mem::take(&mut ask_again) {
                    probes.spawn(tasks::boxed(probe()));
                },
            },
            next = rules.join_next(), if !rules.is_empty() || probes.is_empty() => match next {
                None => break None,
                Some(Ok(None)) => {}
                Some(Ok(Some(result))) => {
                    ended(&result);
                    let lost = interruption::may_be_unreachable(&result.calls);
                    results.push(result);
                    match probes.is_empty() {
                        true if lost => drop(probes.spawn(tasks::boxed(probe()))),
                        _ => ask_again |= lost,
                    }
                }
                Some(Err(error)) => tracing::warn!(%error, "rule task failed"),
            }
        }
    };
    pace.close();
    if cut_short == Some(CutShort::Interrupted) {
        // Cleanup does not find a pod that is still being created.
        let unfinished: Vec<Unfinished> = shared.unfinished().values().cloned().collect();
        interruption::stop_creating_pods(&unfinished).await;
    }
    rules.shutdown().await;
    let position = |id: &str| options.rules.iter().position(|rule| rule.id == id);
    compact::sort_by_key(&mut results, |result: &RuleResult| position(result.rule.id));
    let left = clean_up(shared, &direct, directory).await;
    Ok(Report {
        runtime: format!("{} {}", version.runtime_name, version.runtime_version),
        endpoint: format!("unix://{}", options.runtime.display()),
        command: command_line(&options),
        results,
        cut_short,
        left,
        took: began.elapsed(),
    })
}

/// The command line of a check with these options.
fn command_line(options: &Options) -> String {
    let url = |socket: &Path| format!("unix://{}", socket.display());
    let mut words = vec![("--runtime-endpoint", url(&options.runtime))];
    if options.images != options.runtime {
        words.push(("--image-endpoint", url(&options.images)));
    }
    let port = options.registry_port.map(|port| port.to_string());
    let restart = options.restart.as_ref().and_then(Restart::line);
    let deadline = options.deadline.as_secs_f64();
    let deadline = (options.deadline != DEADLINE).then(|| format!("{deadline}s"));
    let optional = [
        ("--deadline", deadline),
        ("--image", options.image.clone()),
        ("--registry-port", port),
        ("--restart-command", restart.map(str::to_owned)),
    ];
    words.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let words = words.iter().map(|(name, value)| format!(" {name} {}", shell_word(value)));
    format!("crib check{}", words.collect::<String>())
}

/// Quotes the text as one word of a shell.
fn shell_word(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@%+,=".contains(letter);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Runs a rule; `None` if the check was interrupted before the rule's start.
async fn run_rule(
    rule: &'static Rule,
    options: &Options,
    shared: Arc<Shared>,
    direct: &Client,
    interrupted: &CancellationToken,
    workers: &LocalPoolHandle,
    (pace, mut slot): (&Pace, Slot),
) -> Option<RuleResult> {
    let began = Instant::now();
    if !pace.has_time() {
        let (outcome, calls) = (Err(no_time()), Vec::new());
        return Some(RuleResult { rule, outcome, took: Duration::ZERO, calls });
    }
    let connected = connect(rule, options, Arc::clone(&shared));
    let (outcome, calls) = match connected {
        Ok((context, proxies)) => {
            // The first proxy is the one of the runtime's socket.
            if let Some(proxy) = proxies.first() {
                let (recording, faults) = (proxy.recording().clone(), proxy.rules().clone());
                let unfinished = Unfinished { recording, faults };
                shared.unfinished().insert(rule.id, unfinished);
            }
            // From here on an interruption finds the rule in `unfinished`.
            if interrupted.is_cancelled() {
                return None;
            }
            let zero = |proxy: &Proxy| proxy.recording().set_zero();
            proxies.iter().for_each(zero);
            let body = context.clone();
            // A separate task: a panic fails only this rule.
            let body = workers.spawn_pinned(move || async move { (rule.body)(&body).await });
            let calls = || {
                let calls = proxies.iter().flat_map(|proxy| proxy.recording().calls());
                let mut calls: Vec<Call> = calls.collect();
                compact::sort_by(&mut calls, |a, b| a.start.total_cmp(&b.start));
                calls
            };
            let looked_at = (pace, &mut slot);
            let ended = wait_for_end(body, options.deadline, looked_at, &calls).await;
            let calls = calls();
            pace.learn(&calls, matches!(ended, Err(None)).then_some(options.deadline));
            let outcome = ended.unwrap_or_else(|unanswered_call| {
                let waiting = context.waiting.get();
                Err(unanswered_call.unwrap_or_else(|| {
                    deadline_exceeded(options.deadline, &calls, waiting.as_deref())
                }))
            });
            if outcome.is_err() && began.elapsed() >= options.wait_limit {
                pace.kept_waiting();
            }
            (classified(outcome, &calls), calls)
        }
        Err(error) => {
            let why = format!("failed to make a socket: {error}");
            (Err(Outcome::Skipped(why)), Vec::new())
        }
    };
    let took = began.elapsed();
    let answered = cleanup::created_pods(&calls);
    let listing = pace.listing(cleanup::LISTING);
    let removal = cleanup::remove_pods(direct, &shared.run, Some(rule.id), &answered, listing);
    let within = pace.removal(REMOVAL.min(options.deadline));
    let removed = tokio::time::timeout(within, releasing_slot(removal, pace, &mut slot)).await;
    if !answered.is_empty() {
        pace.learn_removal(removed.is_ok());
    }
    match removed {
        Ok(left) if left.is_empty() => drop(shared.unfinished().remove(rule.id)),
        Ok(_) | Err(_) => {
            tracing::debug!(
                rule = rule.id,
                "failed to remove the pods of a rule; retrying at the end of the check"
            );
        }
    }
    Some(RuleResult { rule, outcome, took, calls })
}

/// A recorded connection: through the rule's own proxy, or two proxies if the image service has its own endpoint.
fn connect(
    rule: &'static Rule,
    options: &Options,
    shared: Arc<Shared>,
) -> io::Result<(Context, Vec<Proxy>)> {
    let faults = || interruption::with_refusal(&options.faults);
    let socket = |suffix: &str| shared.sockets.join(format!("{}{suffix}", rule.id));
    let proxy = Proxy::with_faults(&socket(".r"), &options.runtime, faults())?;
    let deadline = options.deadline_of_calls();
    let mut client = Client::with_deadline(proxy.socket(), deadline);
    let mut proxies = vec![proxy];
    if options.images != options.runtime {
        let proxy = Proxy::with_faults(&socket(".i"), &options.images, faults())?;
        client.images = Client::with_deadline(proxy.socket(), deadline).images;
        proxies.push(proxy);
    }
    let context = Context {
        client,
        rule: rule.id,
        faults: proxies.iter().map(|proxy| proxy.rules().clone()).collect(),
        waiting: Waiting::default(),
        shared,
    };
    Ok((context, proxies))
}

/// Waits for the end of a rule's body: `Ok` with its outcome, `Err(Some(_))` if it waits in vain, or `Err(None)` at the deadline.
async fn wait_for_end(
    body: tokio::task::JoinHandle<Result<(), Outcome>>,
    deadline: Duration,
    (pace, slot): (&Pace, &mut Slot),
    calls: &impl Fn() -> Vec<Call>,
) -> Result<Result<(), Outcome>, Option<Outcome>> {
    let mut body = AbortOnDropHandle::new(body);
    let began = Instant::now();
    let ended = async {
        loop {
            if let Ok(ended) = tokio::time::timeout(POLL_INTERVAL, &mut body).await {
                let of_panic = |error: tokio::task::JoinError| {
                    Err(rule_failure("the rule to end".to_owned(), error.to_string()))
                };
                return Ok(ended.unwrap_or_else(of_panic));
            }
            let took = began.elapsed();
            if !pace.has_time() {
                return Err(Some(no_time()));
            }
            if let Some(call) = pace.unanswered_call(&calls(), took.as_secs_f64()) {
                let seen =
                    format!("no answer to {}, which was never answered in this check", call.method);
                return Err(Some(rule_failure("an answer".to_owned(), seen)));
            }
            pace.release_slot(slot, took);
        }
    };
    tokio::time::timeout(deadline, ended).await.unwrap_or(Err(None))
}

/// The outcome of a rule for which no time is left.
fn no_time() -> Outcome {
    let why = "the runtime is so slow that the check has no time left for this rule: run it alone with --select";
    Outcome::Skipped(why.to_owned())
}

/// Completes `work`; if it takes long, the rule releases its slot to the next rule.
async fn releasing_slot<T>(work: impl Future<Output = T>, pace: &Pace, slot: &mut Slot) -> T {
    let began = Instant::now();
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(POLL_INTERVAL, &mut work).await {
            Ok(done) => return done,
            Err(_) => pace.release_slot(slot, began.elapsed()),
        }
    }
}

fn rule_failure(expected: String, seen: String) -> Outcome {
    Outcome::Fail { what: "the rule as a whole".to_owned(), expected, seen }
}

/// The failure of a rule that exceeded its deadline; it names the open call, or what the rule waited for.
fn deadline_exceeded(deadline: Duration, calls: &[Call], waiting: Option<&str>) -> Outcome {
    let deadline = deadline.as_secs_f64();
    let duration = |call: &Call| (call.end.unwrap_or(deadline) - call.start).max(0.0);
    // The event stream stays open as long as the rule reads it.
    let calls = calls.iter().filter(|call| call.method != "GetContainerEvents");
    let together: f64 = calls.clone().map(duration).sum();
    let count = calls.clone().count();
    // A call that started just before the deadline is not the cause.
    let is_open = |call: &&Call| call.end.is_none() && duration(call) > deadline / 4.0;
    let open = calls.clone().rev().find(is_open);
    let slowest = calls.max_by(|a, b| duration(a).total_cmp(&duration(b)));
    let seen = match (open.or(slowest), waiting) {
        (Some(call), _) if is_open(&call) => {
            format!("no answer to {} for {:.1} s", call.method, duration(call))
        }
        (_, Some(what)) => format!("still waiting for {what}"),
        (Some(call), None) => format!(
            "the slowest call, {}, took {:.1} s, and all {count} together {together:.1} s",
            call.method,
            duration(call)
        ),
        (None, None) => "no call was made".to_owned(),
    };
    rule_failure(format!("to end within {deadline} s"), seen)
}

/// The outcome for a refused call: an optional call makes the rule unsupported, any other call fails it.
fn classified(outcome: Result<(), Outcome>, calls: &[Call]) -> Result<(), Outcome> {
    let Err(Outcome::Refused { code, message }) = outcome else {
        return outcome;
    };
    let of_code = |call: &&Call| call.code == Some(code) && call.message == message;
    let call = calls.iter().rev().find(of_code).map(|call| call.method.as_str());
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
    let unfinished: Vec<Unfinished> = shared.unfinished().values().cloned().collect();
    let calls: Vec<Call> = unfinished.iter().flat_map(|one| one.recording.calls()).collect();
    let answered = cleanup::created_pods(&calls);
    let left =
        tokio::time::timeout(LAST_REMOVAL, cleanup::remove_run(client, &run, &answered)).await;
    // All rules have ended, so this is the only owner.
    if let Some(Shared { images: Ok(images), .. }) = Arc::into_inner(shared) {
        images.stop().await;
    }
    directory.remove();
    left.unwrap_or_else(|_| {
        vec![format!(
            "the runtime did not remove the pods of {run} within {} s",
            LAST_REMOVAL.as_secs()
        )]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_has_all_that_a_rule_depends_on() {
        let mut options = Options::new(Path::new("/s"));
        assert_eq!(command_line(&options), "crib check --runtime-endpoint unix:///s");
        options.images = "/i".into();
        options.deadline = Duration::from_millis(1500);
        options.image = Some("a/b:1".to_owned());
        options.registry_port = Some(5055);
        options.restart = Some(Restart::command("it's done"));
        let expected = "crib check --runtime-endpoint unix:///s --image-endpoint unix:///i --deadline 1.5s --image a/b:1 \
            --registry-port 5055 --restart-command 'it'\\''s done'";
        assert_eq!(command_line(&options), expected);
    }
}
