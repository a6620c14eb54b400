//! `crib pods`: lists pods.

use std::collections::HashMap;
use std::path::PathBuf;

use crib_base::columns::age::age;
use crib_base::columns::fields::age_of;
use crib_base::columns::pod_summary::PodSummary;
use jiff::Timestamp;
use serde_json::Value;

use crate::client::agents::Agents;
use crate::client::output::{Columns, Listing, now};
use crate::client::pods::{self, PodFilterArgs};
use crate::client::status::{escaped, pairs};
use crate::commands::prelude::*;

/// List pods
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib pods
  crib pods --state ready --namespace '^kube-system$'
  crib pods --label app=web -o yaml

For pods of `crib run`, READY, STATUS, RESTARTS and AGE are as in `kubectl get pods`, and come from the run's agent. For \
pods that `crib run` did not start, STATUS is the state of the sandbox, Ready or NotReady. If `crib run` started none of the \
listed runtimes, the columns are those of `crictl pods`. --state always filters by the state of the sandbox."))]
pub(crate) struct PodsArgs {
    /// Filter by pod id prefix
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    filter: PodFilterArgs,
    /// Show labels and annotations too
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    listing: Listing,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// A sandbox, and its agent's view of the pod.
struct Listed<'a> {
    sandbox: &'a v1::PodSandbox,
    cri: &'a Cri,
    known: Option<&'a Value>,
}

/// Lists the pods.
pub(crate) async fn run(args: &PodsArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all_or_none()?;
    let found = pods::list_with_runtimes(&all, &args.filter, args.id.as_deref()).await?;
    let (items, runtimes): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let answer = v1::ListPodSandboxResponse { items };
    let ids = answer.items.iter().map(|pod| &pod.id);
    let shown = || {
        let agents = Agents::ask(&all);
        let latest = latest(answer.items.iter().zip(&runtimes));
        let rows = answer.items.iter().zip(&runtimes).map(|(sandbox, cri)| Listed {
            sandbox,
            cri,
            known: known(sandbox, cri, &agents, &latest),
        });
        let rows: Vec<Listed<'_>> = rows.collect();
        match args.verbose {
            true => rows.iter().flat_map(lines).try_for_each(|line| print(&line)),
            false if agents.is_empty() => table(args, &rows),
            false => table_of_agents(args, &rows),
        }
    };
    args.listing.show("ListPodSandboxResponse", &answer, ids, shown)
}

/// The latest attempts of pods, by runtime and uid.
type Latest = HashMap<(PathBuf, String), u32>;

fn latest<'a>(all: impl Iterator<Item = (&'a v1::PodSandbox, &'a &'a Cri)>) -> Latest {
    let mut latest = Latest::new();
    for (sandbox, cri) in all {
        let metadata = sandbox.metadata.clone().unwrap_or_default();
        let attempt = latest.entry((cri.endpoint.path().to_owned(), metadata.uid)).or_default();
        *attempt = (*attempt).max(metadata.attempt);
    }
    latest
}

/// The agent's view of a sandbox's pod; `None` for an earlier sandbox of the pod, because the agent reports only the latest one.
fn known<'a>(
    sandbox: &v1::PodSandbox,
    cri: &Cri,
    agents: &'a Agents,
    latest: &Latest,
) -> Option<&'a Value> {
    let metadata = sandbox.metadata.clone().unwrap_or_default();
    let path = cri.endpoint.path();
    let pod = agents.pod(path, &metadata.uid)?;
    let is_latest = latest.get(&(path.to_owned(), metadata.uid)) == Some(&metadata.attempt);
    is_latest.then_some(pod)
}

/// The lines of a pod for `--verbose`.
fn lines(pod: &Listed<'_>) -> Vec<String> {
    let Listed { sandbox, cri, known } = pod;
    let metadata = sandbox.metadata.clone().unwrap_or_default();
    let mut lines = vec![
        format!("ID: {}", sandbox.id),
        format!("Name: {}", metadata.name),
        format!("UID: {}", metadata.uid),
        format!("Namespace: {}", metadata.namespace),
    ];
    lines.extend((metadata.attempt != 0).then(|| format!("Attempt: {}", metadata.attempt)));
    match known.map(PodSummary::of) {
        None => lines.push(format!("Status: {}", state(sandbox))),
        Some(summary) => lines.extend([
            format!("Status: {}", summary.status),
            format!("Ready: {}", summary.ready()),
            format!("Restarts: {}", summary.restarts.shown(Timestamp::now())),
        ]),
    }
    lines.push(format!("Created: {}", human::timestamp(sandbox.created_at)));
    lines.extend(cri.run().map(|run| format!("Run: {run}")));
    lines.extend(pairs("Labels:", &sandbox.labels));
    lines.extend(pairs("Annotations:", &sandbox.annotations));
    lines.push(format!("Runtime: {}", handler(sandbox)));
    lines.push(String::new());
    escaped(lines)
}

fn state(pod: &v1::PodSandbox) -> &'static str {
    match pod.state() {
        v1::PodSandboxState::SandboxReady => "Ready",
        v1::PodSandboxState::SandboxNotready => "NotReady",
    }
}

fn handler(pod: &v1::PodSandbox) -> &str {
    match pod.runtime_handler.as_str() {
        "" => "(default)",
        handler => handler,
    }
}

/// crictl's table; programs may depend on the number of its columns.
fn table(args: &PodsArgs, pods: &[Listed<'_>]) -> Result<(), CallError> {
    let mut columns =
        Columns::new(&["POD ID", "CREATED", "STATE", "NAME", "NAMESPACE", "ATTEMPT", "RUNTIME"]);
    for Listed { sandbox, .. } in pods {
        let metadata = sandbox.metadata.clone().unwrap_or_default();
        columns.row([
            human::id(&sandbox.id, args.listing.no_trunc).to_owned(),
            human::ago(sandbox.created_at, now()),
            state(sandbox).to_owned(),
            metadata.name,
            metadata.namespace,
            metadata.attempt.to_string(),
            handler(sandbox).to_owned(),
        ]);
    }
    columns.print()
}

/// kubectl's table, with the ids of the sandboxes.
fn table_of_agents(args: &PodsArgs, pods: &[Listed<'_>]) -> Result<(), CallError> {
    let has_runs = pods.iter().any(|pod| pod.cri.run().is_some());
    let mut headings = vec!["POD ID", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "NAMESPACE"];
    headings.extend(has_runs.then_some("RUN"));
    let mut columns = Columns::new(&headings);
    let now = Timestamp::now();
    for Listed { sandbox, cri, known } in pods {
        let summary = known.map(PodSummary::of);
        let metadata = sandbox.metadata.clone().unwrap_or_default();
        let unknown = || "-".to_owned();
        let created = Timestamp::from_nanosecond(sandbox.created_at.into());
        let of = summary.as_ref();
        let mut cells = vec![
            human::id(&sandbox.id, args.listing.no_trunc).to_owned(),
            metadata.name,
            of.map_or_else(unknown, PodSummary::ready),
            of.map_or_else(|| state(sandbox).to_owned(), |of| of.status.clone()),
            of.map_or_else(unknown, |of| of.restarts.shown(now)),
            match known {
                Some(pod) => age_of(pod, now),
                None => created.map_or_else(|_| unknown(), |created| age(created, now)),
            },
            metadata.namespace,
        ];
        if has_runs {
            cells.push(cri.run().map(ToString::to_string).unwrap_or_default());
        }
        columns.row(cells);
    }
    columns.print()
}
