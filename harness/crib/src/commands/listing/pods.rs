//! `crib pods`: lists pods.

use crib_base::live::RunName;

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
  crib pods --label app=web -o yaml"))]
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

/// Lists them.
pub(crate) async fn run(args: &PodsArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let found = pods::list_with_runs(&all, &args.filter, args.id.as_deref()).await?;
    let (items, runs): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let answer = v1::ListPodSandboxResponse { items };
    let ids = answer.items.iter().map(|pod| &pod.id);
    let rows = || answer.items.iter().zip(runs.iter().map(Option::as_ref));
    let shown = || match args.verbose {
        true => rows().flat_map(|(pod, run)| lines(pod, run)).try_for_each(|line| print(&line)),
        false => table(args, &rows().collect::<Vec<_>>()),
    };
    args.listing.show("ListPodSandboxResponse", &answer, ids, shown)
}

/// A pod as `--verbose` shows it.
fn lines(pod: &v1::PodSandbox, run: Option<&RunName>) -> Vec<String> {
    let metadata = pod.metadata.clone().unwrap_or_default();
    let mut lines = vec![
        format!("ID: {}", pod.id),
        format!("Name: {}", metadata.name),
        format!("UID: {}", metadata.uid),
        format!("Namespace: {}", metadata.namespace),
    ];
    lines.extend((metadata.attempt != 0).then(|| format!("Attempt: {}", metadata.attempt)));
    lines.push(format!("Status: {}", state(pod)));
    lines.push(format!("Created: {}", human::timestamp(pod.created_at)));
    lines.extend(run.map(|run| format!("Run: {run}")));
    lines.extend(pairs("Labels:", &pod.labels));
    lines.extend(pairs("Annotations:", &pod.annotations));
    lines.push(format!("Runtime: {}", handler(pod)));
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

fn table(args: &PodsArgs, pods: &[(&v1::PodSandbox, Option<&RunName>)]) -> Result<(), CallError> {
    // Programs may count the columns of crictl.
    let has_runs = pods.iter().any(|(_, run)| run.is_some());
    let mut headings =
        vec!["POD ID", "CREATED", "STATE", "NAME", "NAMESPACE", "ATTEMPT", "RUNTIME"];
    headings.extend(has_runs.then_some("RUN"));
    let mut columns = Columns::new(&headings);
    for (pod, run) in pods {
        let metadata = pod.metadata.clone().unwrap_or_default();
        let mut cells = vec![
            human::id(&pod.id, args.listing.no_trunc).to_owned(),
            human::ago(pod.created_at, now()),
            state(pod).to_owned(),
            metadata.name,
            metadata.namespace,
            metadata.attempt.to_string(),
            handler(pod).to_owned(),
        ];
        if has_runs {
            cells.push(run.map(ToString::to_string).unwrap_or_default());
        }
        columns.row(cells);
    }
    columns.print()
}
