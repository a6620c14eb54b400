//! `crib down`: ends background runs, and cleans up after killed ones.

use std::io;
use std::path::{Path, PathBuf};

use compact::{Map, Set};
use crib_base::dirs::temp_dir;
use crib_base::live::{self, RunName};
use crib_base::run_socket::{PodWithEvents, Request, RunConnection};
use crib_base::waiting;
use crib_run::RunLock;
use jiff::Timestamp;
use runtime_fake::IsolationRequest;

use crate::client::completion;
use crate::commands::prelude::*;

const CODES: &str = "Exit codes:
    0  success
    1  no run has the given name, or an operation failed
    2  bad usage
  124  a run did not answer in time";

/// The timeout for a run's answer, which needs no waiting.
const RESPONSE_LIMIT: Duration = Duration::from_secs(10);

/// End background runs (`crib run --name`) and remove their pods
#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  crib down web
  crib down --all --force

`crib down` waits until the runs are removed, and prints the pods that have not ended yet. For each removed run, `crib down` \
prints the number of pods in each phase. A pod without terminationGracePeriodSeconds has a grace period of 10 s instead of \
30 s. Volumes of PersistentVolumeClaims are kept. To end pods that `crib run --keep` left running, use the NAME that `crib \
run` printed.\n\n{CODES}"))]
pub(crate) struct DownArgs {
    /// Names of runs, as given to `crib run --name`
    #[arg(required_unless_present = "all", value_name = "NAME", add = completion::runs())]
    names: Vec<RunName>,
    /// End all background runs, and the pods that `crib run --keep` left running
    #[arg(short, long, conflicts_with = "names")]
    all: bool,
    /// Kill the pods after 2 s instead of waiting for their grace periods
    #[arg(short, long)]
    force: bool,
    /// Where runs register
    #[arg(long, hide = true, default_value_os_t = live::directory())]
    live_dir: PathBuf,
}

/// The directories of runs by name. A name has several directories if earlier runs with it were killed.
type Runs = Map<RunName, Set<PathBuf>>;

/// A run that is ending.
struct EndingRun {
    name: RunName,
    directory: PathBuf,
    connection: RunConnection,
    /// Its pods before the end.
    pods: Vec<PodWithEvents>,
    /// Its pods with their deletion timestamps.
    ending: Vec<PodWithEvents>,
}

/// The delay after which the pods that are waited for are printed, and the interval at which they are printed again.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const NEXT_WAIT: Duration = Duration::from_secs(5);

/// Ends the runs. Must be called while the process has a single thread.
pub(crate) fn run(args: &DownArgs) -> Exit {
    let ended = known(args).and_then(|known| {
        let chosen = choose(known, &args.names, args.all)?;
        end(args, &chosen)?;
        Ok(chosen)
    });
    // Only inside a user namespace can a user other than root remove files that pods created with other user ids.
    let left = ended.and_then(|chosen| {
        let left = wait_for_locks(chosen.values().flatten())?;
        if !left.is_empty() && !nix::unistd::geteuid().is_root() {
            let entered = runtime_fake::enter(IsolationRequest::Auto, None::<&Path>);
            entered.map_err(|error| failed("enter a user namespace")(io::Error::other(error)))?;
        }
        Ok(left)
    });
    finish(async { remove(args, left?).await })
}

/// The active runs, and the directories of dead runs.
fn known(args: &DownArgs) -> Result<Runs, CallError> {
    let doing = format!("look for runs in {}", args.live_dir.display());
    let live = live::named_runs(&args.live_dir).map_err(failed(&doing))?;
    let live = live.into_iter().map(|run| (run.name, run.directory));
    let mut runs = Runs::new();
    for (name, directory) in live.chain(crib_run::with_names(&temp_dir())) {
        runs.entry(name).or_default().insert(directory);
    }
    Ok(runs)
}

/// Selects the runs to end.
fn choose(mut known: Runs, names: &[RunName], all: bool) -> Result<Runs, CallError> {
    if all {
        return Ok(known);
    }
    if let Some(name) = names.iter().find(|name| !known.contains_key(name)) {
        return Err(CallError::UnknownRun {
            name: name.clone(),
            known: known.into_keys().collect(),
        });
    }
    known.retain(|name, _| names.contains(name));
    Ok(known)
}

/// Ends all runs concurrently, and waits until their commands have ended.
fn end(args: &DownArgs, runs: &Runs) -> Result<(), CallError> {
    let mut ending = Vec::new();
    for (name, directories) in runs {
        for directory in directories {
            ending.extend(request_end(name, directory, args.force)?);
        }
    }
    let grace_periods = ending.iter().flat_map(|run| &run.ending).map(grace_seconds);
    if let Some(seconds) = grace_periods.max().filter(|most| *most > 0 && !args.force) {
        print_stderr(&format!(
            "ending the pods, which may take {seconds} s; `crib down --force` kills them after 2 s"
        ));
    }
    for run in ending {
        wait(&run, args.force).map_err(failed(&format!("wait for the end of run {}", run.name)))?;
        print(&summary(&run.name, &run.pods))?;
    }
    Ok(())
}

/// Waits for the end of a run. Prints the pods that it waits for, unless they are killed.
fn wait(run: &EndingRun, force: bool) -> io::Result<()> {
    let mut interval = FIRST_WAIT;
    while !run.connection.has_ended_within(interval)? {
        interval = NEXT_WAIT;
        if force {
            continue;
        }
        // A run that does not answer is still ending.
        let pods = request_pods(&run.directory, Request::Pods).unwrap_or_default();
        let pods: Vec<(String, Timestamp)> = pods.iter().filter_map(end_of).collect();
        let pods = pods.iter().map(|(name, until)| (name.as_str(), *until));
        if let Some(line) = waiting::sentence(pods, Timestamp::now()) {
            print_stderr(&format!("{}: {line}", run.name));
        }
    }
    Ok(())
}

/// The pods in the response of a run; empty if its command has ended or is ending.
fn request_pods(directory: &Path, request: Request) -> io::Result<Vec<PodWithEvents>> {
    let Some(mut connection) = RunConnection::open(directory)? else {
        return Ok(Vec::new());
    };
    connection.set_timeout(RESPONSE_LIMIT)?;
    Ok(connection.call(request)?.unwrap_or_default().pods)
}

/// The name of a terminating pod, and the end of its grace period.
fn end_of(pod: &PodWithEvents) -> Option<(String, Timestamp)> {
    let metadata = &pod.pod.metadata;
    let until = metadata.deletion_timestamp.as_ref()?;
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let name = metadata.name.as_deref().unwrap_or_default();
    (!has_ended(pod)).then(|| (format!("{namespace}/{name}"), until.0))
}

fn has_ended(pod: &PodWithEvents) -> bool {
    let status = pod.pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Requests the end of a run; `None` if its command has ended.
fn request_end(
    name: &RunName,
    directory: &Path,
    force: bool,
) -> Result<Option<EndingRun>, CallError> {
    let doing = format!("end run {name}");
    let open = || -> Result<_, CallError> {
        let connection = RunConnection::open(directory).map_err(failed(&doing))?;
        if let Some(connection) = &connection {
            connection.set_timeout(RESPONSE_LIMIT).map_err(failed(&doing))?;
        }
        Ok(connection)
    };
    let Some(mut connection) = open()? else {
        if crib_run::is_kept(directory) {
            RunConnection::end_runtime(directory).map_err(failed(&doing))?;
        }
        return Ok(None);
    };
    let silent = |connection: &RunConnection| CallError::SilentRun {
        name: name.clone(),
        pid: connection.pid(),
        timeout: RESPONSE_LIMIT,
    };
    let request = |connection: &mut RunConnection, request| match connection.call(request) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(silent(connection)),
        answer => answer.map_err(failed(&doing)),
    };
    // A run that is already ending does not answer.
    let answer = request(&mut connection, Request::End)?;
    if force && let Some(mut second) = open()? {
        request(&mut second, Request::Kill)?;
    }
    // The pods now have their deletion grace periods.
    let ending = request_pods(directory, Request::Pods).map_err(failed(&doing))?;
    Ok(Some(EndingRun {
        name: name.clone(),
        directory: directory.to_owned(),
        connection,
        pods: answer.unwrap_or_default().pods,
        ending,
    }))
}

/// Waits until no process uses the directories; locks and returns those that still exist.
fn wait_for_locks<'a>(
    directories: impl Iterator<Item = &'a PathBuf>,
) -> Result<Vec<(PathBuf, RunLock)>, CallError> {
    let mut left = Vec::new();
    for directory in directories {
        let doing = format!("lock {}", directory.display());
        let lock = RunLock::wait_for_end(directory).map_err(failed(&doing))?;
        left.extend(lock.map(|lock| (directory.clone(), lock)));
    }
    Ok(left)
}

/// Cleans up after runs that were killed together with their runtimes.
async fn remove(args: &DownArgs, left: Vec<(PathBuf, RunLock)>) -> Result<Exit, CallError> {
    crib_run::adopt_orphans();
    for (directory, lock) in left {
        let shown = directory.display().to_string();
        let removed =
            crib_run::remove_dead_run(directory, lock, IsolationRequest::Auto, &args.live_dir)
                .await;
        match removed {
            Ok(()) => print(&format!("removed {shown}, which a killed run left"))?,
            Err(problem) => {
                print_stderr(&problem);
                return Err(CallError::AlreadyReported);
            }
        }
    }
    Ok(Exit::Success)
}

/// The grace period of a pod in seconds; 0 if it has ended.
fn grace_seconds(pod: &PodWithEvents) -> i64 {
    if has_ended(pod) {
        return 0;
    }
    let spec = pod.pod.spec.as_ref();
    let own = spec.and_then(|spec| spec.termination_grace_period_seconds);
    pod.pod.metadata.deletion_grace_period_seconds.or(own).unwrap_or(30)
}

/// The number of a run's pods in each phase.
fn summary(name: &RunName, pods: &[PodWithEvents]) -> String {
    let mut phases: Map<&str, usize> = Map::new();
    for pod in pods {
        let status = pod.pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        *phases.entry(phase.unwrap_or("Pending")).or_default() += 1;
    }
    let phases: Vec<String> =
        phases.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
    match phases.as_slice() {
        [] => format!("{name}: no pods"),
        phases => format!("{name}: {}", phases.join(", ")),
    }
}

fn failed(doing: &str) -> impl FnOnce(io::Error) -> CallError {
    let doing = doing.to_owned();
    move |source| CallError::Io { doing, source }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodStatus;
    use rstest::rstest;

    use super::*;

    fn runs(names: &[&str]) -> Runs {
        let each = names.iter().map(|name| (name.parse().unwrap(), Set::new()));
        each.collect()
    }

    #[rstest]
    #[case::one(&["a", "b"], &["b"], false, Ok(vec!["b"]))]
    #[case::all(&["a", "b"], &[], true, Ok(vec!["a", "b"]))]
    #[case::none(&[], &[], true, Ok(vec![]))]
    #[case::unknown(&["a", "b"], &["b", "x"], false, Err("no run is named x: the named runs are a, b"))]
    #[case::unknown_alone(&[], &["x"], false, Err("no run is named x: no run has a name"))]
    fn runs_are_chosen_by_name(
        #[case] known: &[&str],
        #[case] names: &[&str],
        #[case] all: bool,
        #[case] expected: Result<Vec<&str>, &str>,
    ) {
        let names: Vec<RunName> = names.iter().map(|name| name.parse().unwrap()).collect();
        let chosen = choose(runs(known), &names, all).map_err(|error| error.to_string());
        assert_eq!(chosen, expected.map(|names| runs(&names)).map_err(str::to_owned));
    }

    fn pod(phase: Option<&str>) -> PodWithEvents {
        let mut answer = PodWithEvents::default();
        answer.pod.status =
            phase.map(|phase| PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() });
        answer
    }

    #[rstest]
    #[case(&[], "web: no pods")]
    #[case(&[None], "web: 1 Pending")]
    #[case(&[Some("Running"), Some("Failed"), Some("Running")], "web: 1 Failed, 2 Running")]
    fn summary_counts_phases(#[case] phases: &[Option<&str>], #[case] expected: &str) {
        let pods: Vec<PodWithEvents> = phases.iter().map(|phase| pod(*phase)).collect();
        assert_eq!(summary(&"web".parse().unwrap(), &pods), expected);
    }
}
