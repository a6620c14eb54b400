//! Completions of arguments: the pods, containers and objects of runs, and the names of runs. A run that does not answer in time is
//! skipped.

use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use crib_base::live;
use crib_base::run_socket::{Request, RunConnection};
use serde_json::Value;

use crate::objects::kinds::{self, kinds_with_pods};
use crate::objects::metadata;
use crate::objects::pod_containers::all_containers;

/// The timeout of a run's answer, because the user waits at a prompt.
const SOON: Duration = Duration::from_secs(1);

/// The environment variable with which a shell requests completions.
pub(crate) const VARIABLE: &str = "CRIB_COMPLETE";

/// The names of background runs.
pub(crate) fn runs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let named = live::named_runs(&live::directory()).unwrap_or_default();
        candidates(named.iter().map(|run| run.name.as_str().to_owned()))
    })
}

/// Pods, and objects that have pods: `web`, `deploy/web`.
pub(crate) fn pods() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(names_with_pods(&objects())))
}

/// Pods, objects that have pods, and containers.
pub(crate) fn pods_and_containers() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let objects = objects();
        let containers = objects.iter().filter(|object| is_pod(object)).flat_map(all_containers);
        candidates(names_with_pods(&objects).into_iter().chain(containers))
    })
}

/// The containers of all pods.
pub(crate) fn containers() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let objects = objects();
        candidates(objects.iter().filter(|object| is_pod(object)).flat_map(all_containers))
    })
}

/// Kinds, and objects with their kinds: `pods`, `pod/web`.
pub(crate) fn kinds_and_objects() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let objects = objects();
        let named = objects.iter().filter_map(kinds::kind_and_name);
        candidates(kinds::plurals().map(str::to_owned).chain(named))
    })
}

fn candidates(names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

fn is_pod(object: &Value) -> bool {
    object.get("kind").and_then(Value::as_str) == Some("Pod")
}

fn names_with_pods(objects: &[Value]) -> Vec<String> {
    let pods = objects.iter().filter(|object| is_pod(object));
    let pods = pods.map(|pod| metadata(pod, "name").to_owned());
    pods.chain(objects.iter().filter_map(kinds_with_pods)).collect()
}

/// The objects of all runs.
fn objects() -> Vec<Value> {
    let endpoints = live::endpoints(&live::directory()).unwrap_or_default();
    let directories = endpoints.iter().filter_map(|endpoint| endpoint.path().parent());
    let directories = directories.map(PathBuf::from);
    let answers = directories.filter_map(|directory| {
        let mut connection = RunConnection::open(&directory).ok().flatten()?;
        connection.set_timeout(SOON).ok()?;
        connection.call(Request::Objects).ok().flatten()
    });
    answers.flat_map(|answer| answer.objects).collect()
}
