//! Measures section by section, and removes everything that it created, even after an interrupt.

use std::fs;
use std::time::{Duration, Instant};

use check::{BENCH_PREFIX, RunDirectory, TestImages, remove_dead_runs, remove_run};
use compact::Set;
use harness::client::Client;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::BenchError;
use super::floor::Floor;
use super::options::{Endpoint, Options};
use super::rows::{Machine, Report, Rows, Section, Subject};
use super::target::Target;
use super::{calls, density, events, logs, pulls, startup};

/// The time limit of the first Version call.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long pending calls may take after an interrupt.
const GRACE: Duration = Duration::from_secs(30);
/// The time limit of the cleanup at the end: the removal of a thousand pods takes a minute.
const REMOVAL: Duration = Duration::from_secs(600);
/// The name of the runtime that has an image of the host's root filesystem, and a command to start it.
const CRIB: &str = "crib";

/// A runtime to measure.
#[derive(Debug)]
struct Runtime {
    client: Client,
    endpoint: Endpoint,
    /// Its name, without the version.
    name: String,
    subject: Subject,
}

/// The results so far.
#[derive(Debug)]
struct Results {
    rows: Rows,
    notes: Vec<String>,
    failures: Vec<String>,
}

/// Runs a benchmark, and calls `say` with a description of each step. Cancelling `interrupt` ends it early. Everything that it
/// created is removed.
/// # Errors
/// See [`BenchError`]. If a section fails, the others still run: see [`Report::failures`].
pub async fn bench(
    options: Options,
    interrupt: CancellationToken,
    mut say: impl FnMut(&str),
) -> Result<Report, BenchError> {
    let began = Instant::now();
    let before = load();
    let mut runtimes = Vec::new();
    for endpoint in &options.endpoints {
        let limit = options.deadline.min(START_LIMIT);
        runtimes.push(unless_interrupted(connect(endpoint, limit), &interrupt).await??);
    }
    for runtime in &runtimes {
        let removal = timeout(REMOVAL, remove_dead_runs(&runtime.client, &runtime.client));
        let problem = match unless_interrupted(removal, &interrupt).await? {
            Ok(removed) => removed.err().map(|status| status.message().to_owned()),
            Err(elapsed) => Some(elapsed.to_string()),
        };
        if let Some(problem) = problem {
            tracing::warn!(problem, "failed to look for earlier benchmarks");
        }
    }
    let run = RunDirectory::make(BENCH_PREFIX).map_err(|source| BenchError::Io {
        doing: "make a directory for the benchmark".to_owned(),
        source,
    })?;
    let mut results =
        Results { rows: Rows::new(runtimes.len()), notes: Vec::new(), failures: Vec::new() };
    let measured = until_interrupt(
        measure(&options, &runtimes, &run, &interrupt, &mut results, &mut say),
        &interrupt,
    )
    .await;
    say("removing the pods of the benchmark");
    for runtime in &runtimes {
        let removal = timeout(REMOVAL, remove_run(&runtime.client, &run.name(), &Set::new())).await;
        results.notes.extend(removal.unwrap_or_else(|_| {
            let (socket, seconds) = (&runtime.subject.endpoint, REMOVAL.as_secs());
            vec![format!("{socket} did not remove the pods within {seconds} s")]
        }));
    }
    run.remove();
    match measured {
        Err(BenchError::Interrupted) if !results.rows.rows.is_empty() => {
            let note = "interrupted: only what was measured before is shown";
            results.failures.push(note.to_owned());
        }
        measured => measured?,
    }
    let mut rows = results.rows.rows;
    compact::sort_by_key(&mut rows, |row| row.section);
    Ok(Report {
        machine: Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel(),
            root: nix::unistd::geteuid().is_root(),
            load: [before, load()],
        },
        subjects: runtimes.into_iter().map(|runtime| runtime.subject).collect(),
        rows,
        notes: results.notes,
        failures: results.failures,
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// The result of the work, unless an interrupt comes first. Then the work is dropped, which is safe because it has created nothing.
async fn unless_interrupted<T>(
    work: impl Future<Output = T>,
    interrupt: &CancellationToken,
) -> Result<T, BenchError> {
    tokio::select! {
        done = work => Ok(done),
        () = interrupt.cancelled() => Err(BenchError::Interrupted),
    }
}

/// Runs the measurement to its end. After an interrupt, pending calls are awaited: a pod that a runtime creates for a disconnected
/// client would be left.
async fn until_interrupt(
    measuring: impl Future<Output = Result<(), BenchError>>,
    interrupt: &CancellationToken,
) -> Result<(), BenchError> {
    tokio::pin!(measuring);
    tokio::select! {
        measured = &mut measuring => measured?,
        () = interrupt.cancelled() => {
            // The measurement fails at its next step, or ends.
            let _ = timeout(GRACE, &mut measuring).await;
        }
    }
    match interrupt.is_cancelled() {
        true => Err(BenchError::Interrupted),
        false => Ok(()),
    }
}

async fn connect(endpoint: &Endpoint, limit: Duration) -> Result<Runtime, BenchError> {
    let mut client = Client::new(&endpoint.runtime);
    client.images = Client::new(&endpoint.images).images;
    let socket = endpoint.runtime.display();
    let version = timeout(limit, client.version())
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer within {limit:?}"))));
    let version = version.map_err(|status| BenchError::NoRuntime {
        endpoint: socket.to_string(),
        status: Box::new(status),
    })?;
    let subject = Subject {
        name: format!("{} {}", version.runtime_name, version.runtime_version),
        endpoint: format!("unix://{socket}"),
    };
    Ok(Runtime { client, endpoint: endpoint.clone(), name: version.runtime_name, subject })
}

/// The load average of the last minute (proc_loadavg(5)).
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

async fn measure(
    options: &Options,
    runtimes: &[Runtime],
    run: &RunDirectory,
    interrupt: &CancellationToken,
    results: &mut Results,
    say: &mut impl FnMut(&str),
) -> Result<(), BenchError> {
    say("preparing images");
    let images = TestImages::start(run, options.registry_port)
        .await
        .map_err(|error| BenchError::NoImage(chain(&error)))?;
    let mut targets = Vec::new();
    for runtime in runtimes {
        let image = image(options.image.as_deref(), runtime, &images).await?;
        let client = runtime.client.clone();
        let socket = &runtime.endpoint.runtime;
        let (name, deadline) = (&runtime.name, options.deadline);
        let target = Target::new(client, name, socket, image, run, deadline, interrupt.clone());
        // This pod exists until the end. If this benchmark is killed, a later one finds the remains by it.
        target.pod().await?;
        targets.push(target);
    }
    for section in &options.sections {
        say(section.title());
        match measure_section(*section, options, runtimes, &targets, &images, run, results, say)
            .await
        {
            Ok(()) => {}
            Err(error @ BenchError::Interrupted) => return Err(error),
            Err(error) => {
                let name = section.name();
                results.failures.push(format!("{name}: {}", chain(&error)));
            }
        }
    }
    images.stop().await;
    Ok(())
}

/// An error message with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes =
        std::iter::successors(error.source(), |error: &&dyn std::error::Error| (*error).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[expect(clippy::too_many_arguments, reason = "each section takes some of them")]
async fn measure_section(
    section: Section,
    options: &Options,
    runtimes: &[Runtime],
    targets: &[Target],
    images: &TestImages,
    run: &RunDirectory,
    results: &mut Results,
    say: &mut impl FnMut(&str),
) -> Result<(), BenchError> {
    let Results { rows, notes, .. } = results;
    let effort = &options.effort;
    let (few, some) = (effort.few_rounds(), effort.some_rounds());
    match section {
        Section::Startup => {
            let subject = runtimes.iter().position(|runtime| runtime.name == CRIB);
            match (subject, &options.crib) {
                (Some(subject), Some(crib)) => {
                    startup::measure(crib, run.path(), some, subject, rows).await
                }
                _ => {
                    notes.push("startup is measured of crib's own runtime only".to_owned());
                    Ok(())
                }
            }
        }
        Section::Calls => {
            let mut floor = start_floor(options, notes)?;
            calls::measure_sequential(targets, effort.rounds, floor.as_mut(), rows).await
        }
        Section::Throughput => {
            calls::measure_concurrent(targets, &effort.levels, effort.lifecycles, few, rows).await
        }
        Section::Growth => {
            calls::measure_beside_pods(targets, &effort.sizes, some, rows, say).await
        }
        Section::Density => density::measure(targets, effort.pods, few, rows, notes).await,
        Section::Events => events::measure(targets, some, rows, notes).await,
        Section::Pulls => pulls::measure(targets, images, effort.small_images, few, rows).await,
        Section::Logs => logs::measure(targets, effort.lines, few, rows).await,
    }
}

/// Makes sure that the endpoint has the containers' image, and returns its name.
async fn image(
    named: Option<&str>,
    runtime: &Runtime,
    images: &TestImages,
) -> Result<String, BenchError> {
    let client = &runtime.client;
    let image = match named {
        Some(image) => image,
        // Without namespaces crib runs only the host's own programs.
        None if has_no_namespaces(runtime).await => "crib.local/host",
        None => {
            let pulled = images.shell(client).await;
            return pulled.map_err(|error| BenchError::NoImage(chain(&error)));
        }
    };
    if client.image(image).await.ok().flatten().is_none() {
        let pulled = client.pull(image).await;
        pulled.map_err(|status| BenchError::NoImage(format!("{image}: {}", status.message())))?;
    }
    Ok(image.to_owned())
}

async fn has_no_namespaces(runtime: &Runtime) -> bool {
    let status = match runtime.name == CRIB {
        true => runtime.client.status().await.ok(),
        false => None,
    };
    let isolation = status.and_then(|mut status| status.info.remove("isolation"));
    isolation.as_deref() == Some("process")
}

/// Starts the helper that measures the kernel alone, with a network like that of pods. If the machine does not allow it, there is a
/// note instead.
fn start_floor(options: &Options, notes: &mut Vec<String>) -> Result<Option<Floor>, BenchError> {
    let Some(program) = &options.floor else {
        return Ok(None);
    };
    let mut floor = Floor::start(program, true).map_err(|source| BenchError::Io {
        doing: "start the helper that measures the kernel alone".to_owned(),
        source,
    })?;
    match floor.measure() {
        Ok(_) => Ok(Some(floor)),
        Err(error) => {
            notes.push(format!("the kernel alone is not measured: {error}"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_joined_with_their_causes() {
        let error = BenchError::Io {
            doing: "make it".to_owned(),
            source: std::io::Error::other("the disk is full"),
        };
        assert_eq!(chain(&error), "failed to make it: the disk is full");
    }

    #[tokio::test]
    async fn interrupt_waits_for_calls_that_have_begun() {
        let interrupt = CancellationToken::new();
        let (begun, mut done) = (interrupt.clone(), false);
        let measuring = async {
            begun.cancel();
            tokio::task::yield_now().await;
            done = true;
            Ok(())
        };
        let ended = until_interrupt(measuring, &interrupt).await;
        assert!(matches!(ended, Err(BenchError::Interrupted)), "{ended:?}");
        assert!(done);
    }
}
