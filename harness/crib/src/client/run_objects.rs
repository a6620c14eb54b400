//! The objects of runs from `run.sock`: a snapshot, or a watch.

use std::path::PathBuf;

use crib_base::run_socket::{Request, RunConnection, WatchEvent};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{CALL_TIMEOUT, CallError, Cri};
use crate::objects::kinds::{self, Resource};
use crate::objects::{events, metadata};

/// The number of changes that are buffered for each run.
const AHEAD: usize = 16;

/// The objects of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunObjects {
    /// The option that selects the run.
    pub(crate) choice: String,
    pub(crate) name: String,
    pub(crate) objects: Vec<Value>,
    /// Whether the run has ended, and all of its objects with it.
    pub(crate) ended: bool,
}

/// An object that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found<'r> {
    pub(crate) resource: Resource,
    pub(crate) object: &'r Value,
    pub(crate) run: &'r RunObjects,
}

impl RunObjects {
    fn new(cri: &Cri, objects: Vec<Value>) -> Self {
        let name = cri.run().map(ToString::to_string).unwrap_or_default();
        Self { choice: cri.choice(), name, objects, ended: false }
    }

    /// Applies a change to the objects.
    fn apply(&mut self, event: &WatchEvent) {
        let (WatchEvent::Added(object)
        | WatchEvent::Modified(object)
        | WatchEvent::Deleted(object)) = event
        else {
            return;
        };
        let found = self.objects.iter().position(|other| is_same(other, object));
        match (found, event) {
            (Some(at), WatchEvent::Deleted(_)) => _ = self.objects.remove(at),
            (Some(at), _) => {
                if let Some(old) = self.objects.get_mut(at) {
                    old.clone_from(object);
                }
            }
            (None, WatchEvent::Deleted(_)) => {}
            (None, _) => self.objects.push(object.clone()),
        }
    }
}

/// Whether two values are versions of the same object.
fn is_same(one: &Value, other: &Value) -> bool {
    one.get("kind") == other.get("kind")
        && one.get("apiVersion") == other.get("apiVersion")
        && ["namespace", "name"].iter().all(|field| metadata(one, field) == metadata(other, field))
}

/// The runtimes that may belong to runs. Without a runtime, there is no run.
pub(crate) fn with_runs(all: Result<Vec<Cri>, CallError>) -> Result<Vec<Cri>, CallError> {
    match all {
        Err(CallError::NoRuntime { .. }) => Err(CallError::NoRun),
        all => all,
    }
}

/// The objects of the active runs, sorted by the run's name; at least one run.
pub(crate) fn runs(all: &[Cri]) -> Result<Vec<RunObjects>, CallError> {
    let mut runs = Vec::new();
    for cri in all {
        let answer = cri.call_run(Request::Objects)?;
        runs.extend(answer.map(|answer| RunObjects::new(cri, answer.objects)));
    }
    compact::sort_by(&mut runs, |one, other| one.name.cmp(&other.name));
    if runs.is_empty() { Err(CallError::NoRun) } else { Ok(runs) }
}

/// Adds the events of the runs' pods to the objects, as objects of the kind Event.
pub(crate) fn add_events(all: &[Cri], runs: &mut [RunObjects]) -> Result<(), CallError> {
    for cri in all {
        let choice = cri.choice();
        let Some(run) = runs.iter_mut().find(|run| run.choice == choice) else {
            continue;
        };
        let pods = cri.call_run(Request::Pods)?.unwrap_or_default().pods;
        run.objects.extend(pods.iter().flat_map(events::objects));
    }
    Ok(())
}

/// The objects of a kind.
pub(crate) fn of_kind<'r>(runs: &'r [RunObjects], resource: &Resource) -> Vec<Found<'r>> {
    let of_run = |run: &'r RunObjects| {
        let objects = run.objects.iter().filter(|object| resource.has(object));
        objects.map(move |object| Found { resource: resource.clone(), object, run })
    };
    runs.iter().flat_map(of_run).collect()
}

/// The object with this name.
pub(crate) fn named<'r>(
    runs: &'r [RunObjects],
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Found<'r>, CallError> {
    let mut found = of_kind(runs, resource);
    found.retain(|found| {
        metadata(found.object, "name") == name
            && (!resource.namespaced || metadata(found.object, "namespace") == namespace)
    });
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(CallError::NoObject { resource: resource.plural_name(), name: name.to_owned() }),
        some => Err(CallError::Ambiguous {
            what: "object",
            name: resource.named(name),
            candidates: some.iter().map(|found| found.run.choice.clone()).collect(),
        }),
    }
}

/// The kinds, namespaces and names of the objects in manifests; at least one.
pub(crate) fn names_in_manifests(
    paths: &[PathBuf],
    namespace: &str,
) -> Result<Vec<(Resource, String, String)>, CallError> {
    let full_names =
        crib_run::full_names(paths).map_err(|problems| CallError::Usage(problems.join("\n")))?;
    let names = full_names.iter().filter_map(|full_name| {
        let (kind, name) = full_name.split_once(' ')?;
        let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
        Some((kinds::single(kind)?, namespace.to_owned(), name.to_owned()))
    });
    let names: Vec<(Resource, String, String)> = names.collect();
    if names.is_empty() {
        let problem = "the manifests contain no objects of kinds that `crib get` shows";
        return Err(CallError::Usage(problem.to_owned()));
    }
    Ok(names)
}

/// The objects of manifests, and errors for missing ones.
pub(crate) fn all_in_manifests<'r>(
    paths: &[PathBuf],
    runs: &'r [RunObjects],
    namespace: &str,
) -> Result<(Vec<Found<'r>>, Vec<CallError>), CallError> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (resource, namespace, name) in names_in_manifests(paths, namespace)? {
        match named(runs, &resource, &namespace, &name) {
            Ok(one) => found.push(one),
            Err(error @ CallError::NoObject { .. }) => missing.push(error),
            Err(error) => return Err(error),
        }
    }
    Ok((found, missing))
}

/// Sends a request to change an object to its run; the result is the reason if the run refuses the change.
pub(crate) fn request_change(
    all: &[Cri],
    found: &Found<'_>,
    request: Request,
) -> Result<Option<String>, CallError> {
    let run = all.iter().find(|cri| cri.choice() == found.run.choice);
    let answer = run.map_or(Ok(None), |cri| cri.call_run(request))?;
    Ok(answer.ok_or(CallError::Lost)?.refused)
}

/// A watch of the objects of several runs.
pub(crate) struct RunWatch {
    runs: Vec<RunObjects>,
    /// The index of a run, and its next event; `None` when the run has ended.
    changes: mpsc::Receiver<(usize, Result<Option<WatchEvent>, CallError>)>,
    /// Dropping it ends the reader tasks.
    _readers: JoinSet<()>,
}

/// An event of a watch.
#[derive(Debug)]
pub(crate) enum RunEvent {
    /// A change of an object in the run with this index; it was applied to the objects.
    Change(usize, WatchEvent),
    /// The run with this index has ended, so its objects no longer exist.
    Ended(usize),
}

impl RunWatch {
    /// Watches the active runs, sorted by the run's name; at least one run.
    pub(crate) async fn open(all: &[Cri]) -> Result<Self, CallError> {
        let mut opened = Vec::new();
        for cri in all {
            opened.extend(open(cri).await?);
        }
        compact::sort_by(&mut opened, |(one, _), (other, _)| one.name.cmp(&other.name));
        if opened.is_empty() {
            return Err(CallError::NoRun);
        }
        let (sender, changes) = mpsc::channel(AHEAD);
        let (mut runs, mut readers) = (Vec::new(), JoinSet::new());
        for (index, (run, mut lines)) in opened.into_iter().enumerate() {
            let (sender, choice) = (sender.clone(), run.choice.clone());
            readers.spawn(tasks::boxed(async move {
                loop {
                    let event = next(&choice, &mut lines).await;
                    let is_last = !matches!(event, Ok(Some(_)));
                    if sender.send((index, event)).await.is_err() || is_last {
                        return;
                    }
                }
            }));
            runs.push(run);
        }
        Ok(Self { runs, changes, _readers: readers })
    }

    /// The current objects.
    pub(crate) fn runs(&self) -> &[RunObjects] {
        &self.runs
    }

    /// Waits for the next event; `None` when all runs have ended. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<RunEvent>, CallError> {
        let Some((index, event)) = self.changes.recv().await else {
            return Ok(None);
        };
        let Some(run) = self.runs.get_mut(index) else {
            return Ok(None);
        };
        match event? {
            Some(event) => {
                run.apply(&event);
                Ok(Some(RunEvent::Change(index, event)))
            }
            None => {
                run.objects.clear();
                run.ended = true;
                Ok(Some(RunEvent::Ended(index)))
            }
        }
    }
}

/// Watches the run of a runtime, and reads its initial list; `None` if there is no run.
async fn open(cri: &Cri) -> Result<Option<(RunObjects, Lines<BufReader<UnixStream>>)>, CallError> {
    let directory = cri.run_directory();
    let failed = |source| CallError::Io {
        doing: format!("watch the run in {}", directory.display()),
        source,
    };
    let Some(connection) = RunConnection::open(directory).map_err(failed)? else {
        return Ok(None);
    };
    let stream = connection.watch().map_err(failed)?;
    stream.set_nonblocking(true).map_err(failed)?;
    let mut lines = BufReader::new(UnixStream::from_std(stream).map_err(failed)?).lines();
    let mut run = RunObjects::new(cri, Vec::new());
    let all = async {
        loop {
            match next(&run.choice, &mut lines).await? {
                Some(WatchEvent::Bookmark) => return Ok::<_, CallError>(Some(())),
                Some(event) => run.apply(&event),
                None => return Ok(None),
            }
        }
    };
    let timeout = cri.timeout().unwrap_or(CALL_TIMEOUT);
    let all = tokio::time::timeout(timeout, all).await;
    let all = all.map_err(|_| CallError::NoAnswer { call: "Watch", timeout })??;
    Ok(all.map(|()| (run, lines)))
}

/// The next event of a run; `None` when it has ended.
async fn next(
    choice: &str,
    lines: &mut Lines<BufReader<UnixStream>>,
) -> Result<Option<WatchEvent>, CallError> {
    let failed = |source| CallError::Io { doing: format!("watch the run of {choice}"), source };
    let line = match lines.next_line().await {
        // The process was killed.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
        line => line.map_err(failed)?,
    };
    match line.map(|line| serde_json::from_str(&line)).transpose() {
        Ok(Some(WatchEvent::Error(why))) => Err(failed(std::io::Error::other(why))),
        Ok(event) => Ok(event),
        // The process was killed while it wrote a line.
        Err(error) if error.is_eof() => Ok(None),
        Err(error) => Err(failed(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, version: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "n", "resourceVersion": version},
        })
    }

    #[test]
    fn changes_are_applied_to_the_objects_they_are_about() {
        let mut run = RunObjects {
            choice: String::new(),
            name: String::new(),
            objects: vec![object("a", "1"), object("b", "2")],
            ended: false,
        };
        run.apply(&WatchEvent::Modified(object("b", "3")));
        run.apply(&WatchEvent::Added(object("c", "4")));
        run.apply(&WatchEvent::Bookmark);
        run.apply(&WatchEvent::Deleted(object("a", "5")));
        run.apply(&WatchEvent::Deleted(object("a", "6")));
        assert_eq!(run.objects, [object("b", "3"), object("c", "4")]);
    }
}
