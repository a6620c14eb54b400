//! `crib ps`: lists containers.

use jiff::Timestamp;
use serde_json::Value;

use crate::client::agents::{self, Agents};
use crate::client::containers::{self, ContainerFilterArgs, Listed, PodName, PodNames, name};
use crate::client::output::{Columns, Listing, now};
use crate::client::status::{escaped, pairs};
use crate::commands::prelude::*;

/// List containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib ps
  crib ps -a --label app=web --output json
  crib ps -q --name '^worker-' | xargs -n1 crib logs

Containers of `crib run` that wait for a restart are shown even without -a; their STATE is the reason for waiting, such as \
CrashLoopBackOff. While a pod of `crib run` is terminating, the STATE of its running containers is Terminating. In all other \
cases, STATE comes from the runtime: Created, Running, Exited or Unknown."))]
pub(crate) struct PsArgs {
    /// Include containers that are not running
    #[arg(short, long)]
    all: bool,
    /// Filter by container id prefix
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    filter: ContainerFilterArgs,
    /// Show labels and annotations too
    #[arg(short, long)]
    verbose: bool,
    /// Show the tag of each image instead of its id
    #[arg(short, long)]
    resolve_image_path: bool,
    #[command(flatten)]
    listing: Listing,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Lists the containers.
pub(crate) async fn run(args: &PsArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all_or_none()?;
    let agents = Agents::ask(&all);
    let listed = if args.all { Listed::All } else { Listed::Alive(&agents) };
    let (mut containers, pods) =
        containers::list(&all, &args.filter, listed, args.id.as_deref()).await?;
    let answer = v1::ListContainersResponse { containers: containers.clone() };
    if args.resolve_image_path {
        resolve(&all, &mut containers).await?;
    }
    let ids = answer.containers.iter().map(|container| &container.id);
    let shown = || match args.verbose {
        true => containers
            .iter()
            .flat_map(|container| lines(container, &pods, &agents))
            .try_for_each(|line| print(&line)),
        false => table(args, &containers, &pods, &agents),
    };
    args.listing.show("ListContainersResponse", &answer, ids, shown)
}

/// Replaces the image of each container by its first tag, if it has one.
async fn resolve(all: &[Cri], containers: &mut [v1::Container]) -> Result<(), CallError> {
    for container in containers {
        let image = container.image.get_or_insert_default();
        for cri in all {
            let found = cri.call("ImageStatus", cri.images.image(&image.image));
            let found = cri.unless_ended(found.await)?.flatten();
            if let Some(tag) = found.and_then(|found| found.repo_tags.into_iter().next()) {
                image.user_specified_image.clear();
                image.image = tag;
                break;
            }
        }
    }
    Ok(())
}

/// The lines of a container for `--verbose`.
fn lines(container: &v1::Container, pods: &PodNames, agents: &Agents) -> Vec<String> {
    let metadata = container.metadata.clone().unwrap_or_default();
    let pod = pods.get(&container.pod_sandbox_id);
    let namespace = pod.map_or("unknown", |pod| &pod.namespace);
    let image = container.image.clone().unwrap_or_default().image;
    let mut lines = vec![
        format!("ID: {}", container.id),
        format!("PodID: {}", container.pod_sandbox_id),
        format!("Namespace: {namespace}"),
        format!("Name: {}", metadata.name),
        format!("Attempt: {}", metadata.attempt),
        format!("State: {}", state(container, known(container, pods, agents))),
        format!("Image: {image}"),
        format!("Created: {}", human::ago(container.created_at, now())),
    ];
    let run = pod.and_then(|pod| pod.run.as_ref());
    lines.extend(run.map(|run| format!("Run: {run}")));
    lines.extend(pairs("Labels:", &container.labels));
    lines.extend(pairs("Annotations:", &container.annotations));
    lines.push(String::new());
    escaped(lines)
}

/// The pod of a container, if an agent reports it.
fn known<'a>(container: &v1::Container, pods: &PodNames, agents: &'a Agents) -> Option<&'a Value> {
    let pod = pods.get(&container.pod_sandbox_id)?;
    agents.pod(&pod.runtime, &pod.uid)
}

fn table(
    args: &PsArgs,
    containers: &[v1::Container],
    pods: &PodNames,
    agents: &Agents,
) -> Result<(), CallError> {
    let pod_of = |container: &v1::Container| pods.get(&container.pod_sandbox_id);
    // The column RUN is added only if needed, because programs may depend on crictl's columns.
    let has_runs =
        containers.iter().any(|container| pod_of(container).is_some_and(|pod| pod.run.is_some()));
    let mut headings = vec![
        "CONTAINER",
        "IMAGE",
        "CREATED",
        "STATE",
        "NAME",
        if agents.is_empty() { "ATTEMPT" } else { "RESTARTS" },
        "POD ID",
        "POD",
        "NAMESPACE",
    ];
    headings.extend(has_runs.then_some("RUN"));
    let mut columns = Columns::new(&headings);
    for container in containers {
        let pod = pod_of(container);
        let name_of = |part: fn(&PodName) -> &String| {
            pod.map_or_else(|| "unknown".to_owned(), |pod| part(pod).clone())
        };
        let image = container.image.clone().unwrap_or_default();
        let image = match image.user_specified_image.as_str() {
            "" => image.image,
            message => message.to_owned(),
        };
        let attempt = container.metadata.as_ref().map_or(0, |of| of.attempt);
        let known = known(container, pods, agents);
        let restarts = known.and_then(|pod| agents::restarts(pod, container));
        let mut cells = vec![
            human::id(&container.id, args.listing.no_trunc).to_owned(),
            shown_image(&image, args.listing.no_trunc),
            human::ago(container.created_at, now()),
            state(container, known),
            name(container),
            restarts.map_or_else(|| attempt.to_string(), |of| of.shown(Timestamp::now())),
            human::id(&container.pod_sandbox_id, args.listing.no_trunc).to_owned(),
            name_of(|pod| &pod.name),
            name_of(|pod| &pod.namespace),
        ];
        if has_runs {
            let run = pod.and_then(|pod| pod.run.as_ref());
            cells.push(run.map(ToString::to_string).unwrap_or_default());
        }
        columns.row(cells);
    }
    columns.print()
}

/// Shortens a digest; keeps a name.
fn shown_image(image: &str, whole: bool) -> String {
    match image.strip_prefix("sha256:") {
        Some(_) => human::id(image, whole).to_owned(),
        None => image.to_owned(),
    }
}

fn state(container: &v1::Container, known: Option<&Value>) -> String {
    if let Some(state) = known.and_then(|pod| agents::state(pod, container)) {
        return state;
    }
    let state = match container.state() {
        v1::ContainerState::ContainerCreated => "Created",
        v1::ContainerState::ContainerRunning => "Running",
        v1::ContainerState::ContainerExited => "Exited",
        v1::ContainerState::ContainerUnknown => "Unknown",
    };
    state.to_owned()
}
