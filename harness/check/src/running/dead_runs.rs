//! Removes what killed checks and benchmarks left. A run is dead if it does not hold the lock of its directory; if only its name is
//! known, its process must have exited, too. If the runtime was killed as well, it may have forgotten the pods; cgroups and
//! directories then still name the run.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use compact::{Map, Set};
use cri::v1;
use harness::client::{CallResult, Client};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::cgroup;
use crate::context::{DIRECTORY_ANNOTATION, RUN_LABEL};
use crate::directory::{lives, remove_directory};
use crate::running::cleanup::{BENCH_PREFIX, LISTING, PREFIX, remove_images, remove_pods};

/// Longer than any run takes.
const LONGEST: Duration = Duration::from_hours(1);

/// Removes what dead runs left.
pub async fn remove_dead_runs(runtime: &Client, images: &Client) -> CallResult<()> {
    let temporary = harness::temp_dir();
    let mut dead: Map<String, Set<PathBuf>> = Map::new();
    for pod in runtime.pods(v1::PodSandboxFilter::default()).await? {
        let directory = pod.annotations.get(DIRECTORY_ANNOTATION).map(PathBuf::from);
        if let (Some(run), Some(directory)) = (pod.labels.get(RUN_LABEL), directory)
            && !lives(&directory)
        {
            dead.entry(run.clone()).or_default().insert(directory);
        }
    }
    for (run, directories) in dead {
        report(&run, remove_pods(runtime, &run, None, &Set::new(), LISTING).await);
        remove_images(images, &run).await;
        // Labels and annotations come from the runtime: only cgroups and directories with a run's name are removed.
        if process(&run).is_some() {
            report(&run, cgroup::remove(&run));
            let own = temporary.join(&run);
            if directories.contains(&own) {
                remove_directory(&own);
            }
        }
    }
    // A run in another PID namespace may still be alive: then it holds its lock.
    let is_dead = |run: &String| has_ended(run) && !lives(&temporary.join(run));
    // Its directory may be elsewhere, too: no run takes this long.
    let is_old = |run: &String| age(run).is_some_and(|age| age > LONGEST);
    for run in runs_of(&images.list_images().await?) {
        if is_dead(&run) && is_old(&run) {
            report(&run, remove_images(images, &run).await);
        }
    }
    for run in cgroup::names().into_iter().filter(is_dead) {
        report(&run, cgroup::remove(&run));
    }
    for run in names_in(&temporary).into_iter().filter(is_dead) {
        remove_directory(&temporary.join(run));
    }
    Ok(())
}

fn report(run: &str, all_left: Vec<String>) {
    for left in all_left {
        tracing::warn!(run, left, "failed to clean up after an earlier run");
    }
}

/// Whether this is a run's name and the run's process has exited.
fn has_ended(run: &str) -> bool {
    process(run).is_some_and(|process| kill(process, None) == Err(Errno::ESRCH))
}

fn process(run: &str) -> Option<Pid> {
    parse(run).map(|(_, process)| process)
}

/// The time since the start of the run with this name.
fn age(run: &str) -> Option<Duration> {
    let now = SystemTime::UNIX_EPOCH.elapsed().ok()?;
    parse(run).map(|(began, _)| now.saturating_sub(began))
}

/// The start of a run, since 1970, and its process id, from its name: a prefix, microseconds, the process id and a counter.
fn parse(run: &str) -> Option<(Duration, Pid)> {
    let rest = [PREFIX, BENCH_PREFIX].iter().find_map(|prefix| run.strip_prefix(prefix))?;
    let mut words = rest.split('-');
    let began = Duration::from_micros(u64::from_str_radix(words.next()?, 16).ok()?);
    let process = words.next()?.parse().ok().filter(|id| *id > 0)?;
    words.next()?.parse::<u32>().ok()?;
    let is_whole = words.next().is_none();
    is_whole.then(|| (began, Pid::from_raw(process)))
}

/// The names of runs in the names of images.
fn runs_of(images: &[v1::Image]) -> Set<String> {
    let names = images.iter().flat_map(|image| image.repo_tags.iter().chain(&image.repo_digests));
    let words = names.flat_map(|name| name.split('/'));
    words.filter(|word| parse(word).is_some()).map(str::to_owned).collect()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = directory.read_dir().into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::check("crib-check-64ab-12-0", Some(12))]
    #[case::bench("crib-bench-64ab-12-3", Some(12))]
    #[case::other_program("crib-run-64ab-12-0", None)]
    #[case::no_time("crib-check-xyz-12-0", None)]
    #[case::group_of_processes("crib-check-64ab-0-0", None)]
    #[case::no_count("crib-check-64ab-12", None)]
    #[case::more("crib-check-64ab-12-0-1", None)]
    #[case::path("crib-check-64ab-12-0/..", None)]
    fn process_is_part_of_the_name(#[case] run: &str, #[case] expected: Option<i32>) {
        assert_eq!(process(run).map(Pid::as_raw), expected);
    }

    #[test]
    fn runs_are_found_in_names_of_images() {
        let images = [v1::Image {
            repo_tags: vec!["127.0.0.1:1/crib-check-64ab-12-0/a:1".to_owned()],
            repo_digests: vec!["docker.io/library/crib-check@sha256:0".to_owned()],
            ..Default::default()
        }];
        let runs = runs_of(&images);
        assert_eq!(runs, Set::from(["crib-check-64ab-12-0".to_owned()]));
        assert!(age("crib-check-64ab-12-0").is_some_and(|age| age > LONGEST));
    }

    #[test]
    fn run_of_this_process_has_not_ended() {
        let living = format!("{PREFIX}1-{}-0", std::process::id());
        assert!(!has_ended(&living));
        // No process has this id: the kernel's limit is 2²² (proc(5), pid_max).
        assert!(has_ended(&format!("{PREFIX}1-{}-0", i32::MAX)));
    }
}
