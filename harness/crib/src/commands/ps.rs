//! `crib ps`: lists containers.

use std::collections::HashMap;

use clap::{Args, ValueEnum};
use cri::v1;

use crate::client::output::{Columns, Listing};
use crate::client::select::{Which, newest};
use crate::client::{CallError, Connection, Cri, finish, human, with_codes};
use crate::exit::Exit;

/// A container's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// Made, not started.
    Created,
    /// Started.
    Running,
    /// Ended.
    Exited,
    /// Lost.
    Unknown,
}

impl From<State> for v1::ContainerState {
    fn from(state: State) -> Self {
        match state {
            State::Created => Self::ContainerCreated,
            State::Running => Self::ContainerRunning,
            State::Exited => Self::ContainerExited,
            State::Unknown => Self::ContainerUnknown,
        }
    }
}

/// List containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib ps
  crib ps -a --label app=web --output json
  crib ps -q --name '^worker-' | xargs -n1 crib logs"))]
pub(crate) struct PsArgs {
    /// Include containers that are not running
    #[arg(short, long)]
    all: bool,
    /// Filter by container id prefix
    #[arg(long)]
    id: Option<String>,
    /// Filter by pod id
    #[arg(short, long, value_name = "POD ID")]
    pod: Option<String>,
    /// Filter by image name or id
    #[arg(long)]
    image: Option<String>,
    /// Filter by state
    #[arg(short, long, value_enum, ignore_case = true)]
    state: Option<State>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    listing: Listing,
    #[command(flatten)]
    connection: Connection,
}

/// Lists them.
pub(crate) fn run(args: &PsArgs) -> Exit {
    finish(list(args))
}

async fn list(args: &PsArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let count = args.which.count();
    let state = match args.state {
        Some(state) => Some(v1::ContainerState::from(state)),
        None if args.all || count.is_some() => None,
        None => Some(v1::ContainerState::ContainerRunning),
    };
    let filter = v1::ContainerFilter {
        id: args.id.clone().unwrap_or_default(),
        pod_sandbox_id: args.pod.clone().unwrap_or_default(),
        state: state.map(|state| v1::ContainerStateValue {
            state: state.into(),
        }),
        label_selector: args.which.labels(),
    };
    let containers = cri.runtime.containers(filter);
    let mut containers = cri.call("ListContainers", containers).await?;
    let image = match &args.image {
        Some(name) => cri.call("ImageStatus", cri.images.image(name)).await?,
        None => None,
    };
    let pods = pods(&cri).await?;
    containers.retain(|container| {
        let pod = pods.get(&container.pod_sandbox_id);
        let namespace = pod.map_or("", |pod| &pod.1);
        args.which.fits(&name(container), namespace)
            && (args.image.is_none() || is_of(container, args.image.as_deref(), image.as_ref()))
    });
    newest(&mut containers, |container| container.created_at, count);
    let answer = v1::ListContainersResponse { containers };
    let ids = answer.containers.iter().map(|container| &container.id);
    let table = || table(args, &answer.containers, &pods);
    args.listing
        .show("ListContainersResponse", &answer, ids, table)
}

/// Names and namespaces of pods by their ids.
pub(crate) async fn pods(cri: &Cri) -> Result<HashMap<String, (String, String)>, CallError> {
    let all = cri.runtime.pods(v1::PodSandboxFilter::default());
    let pods = cri.call("ListPodSandbox", all).await?;
    let named = pods.into_iter().map(|pod| {
        let metadata = pod.metadata.unwrap_or_default();
        (pod.id, (metadata.name, metadata.namespace))
    });
    Ok(named.collect())
}

fn table(
    args: &PsArgs,
    containers: &[v1::Container],
    pods: &HashMap<String, (String, String)>,
) -> Result<(), CallError> {
    let mut columns = Columns::new(&[
        "CONTAINER",
        "IMAGE",
        "CREATED",
        "STATE",
        "NAME",
        "ATTEMPT",
        "POD ID",
        "POD",
        "NAMESPACE",
    ]);
    let now = jiff::Timestamp::now().as_nanosecond();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    for container in containers {
        let unknown = ("unknown".to_owned(), "unknown".to_owned());
        let (pod, namespace) = pods
            .get(&container.pod_sandbox_id)
            .cloned()
            .unwrap_or(unknown);
        let image = container.image.clone().unwrap_or_default();
        let image = match image.user_specified_image.as_str() {
            "" => image.image,
            said => said.to_owned(),
        };
        let attempt = container.metadata.as_ref().map_or(0, |of| of.attempt);
        columns.row([
            human::id(&container.id, args.listing.no_trunc).to_owned(),
            shown_image(&image, args.listing.no_trunc),
            human::ago(container.created_at, now),
            state(container.state()).to_owned(),
            name(container),
            attempt.to_string(),
            human::id(&container.pod_sandbox_id, args.listing.no_trunc).to_owned(),
            pod,
            namespace,
        ]);
    }
    columns.print()
}

/// A name as it is, a digest cut.
fn shown_image(image: &str, whole: bool) -> String {
    match image.strip_prefix("sha256:") {
        Some(_) => human::id(image, whole).to_owned(),
        None => image.to_owned(),
    }
}

fn name(container: &v1::Container) -> String {
    container.metadata.clone().unwrap_or_default().name
}

pub(crate) fn state(state: v1::ContainerState) -> &'static str {
    match state {
        v1::ContainerState::ContainerCreated => "Created",
        v1::ContainerState::ContainerRunning => "Running",
        v1::ContainerState::ContainerExited => "Exited",
        v1::ContainerState::ContainerUnknown => "Unknown",
    }
}

/// Whether a container is of an image that is given by any of its names.
fn is_of(container: &v1::Container, said: Option<&str>, image: Option<&v1::Image>) -> bool {
    let own = container.image.clone().unwrap_or_default();
    let names = [&container.image_id, &container.image_ref, &own.image];
    names.into_iter().any(|name| {
        said == Some(name.as_str())
            || image.is_some_and(|image| {
                let mut all = image.repo_tags.iter().chain(&image.repo_digests);
                *name == image.id || all.any(|other| other == name)
            })
    })
}
