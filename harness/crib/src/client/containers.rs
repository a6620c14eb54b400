//! Selects containers with crictl's filters.

use std::collections::HashMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use cri::v1;
use crib_base::live::RunName;

use super::agents::{self, Agents};
use super::select::{Which, newest};
use super::{CallError, Cri};

/// A container state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// Created, but not started.
    Created,
    /// Started.
    Running,
    /// Ended.
    Exited,
    /// The runtime does not know the state.
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

/// Filters for containers, with crictl's names.
#[derive(Debug, Args)]
pub(crate) struct ContainerFilterArgs {
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
}

/// The ids of the filters' flags.
pub(crate) const FILTERS: [&str; 8] =
    ["pod", "image", "state", "name", "namespace", "label", "last", "latest"];

impl ContainerFilterArgs {
    /// Whether any filter is given.
    pub(crate) fn given(&self) -> bool {
        self.pod.is_some() || self.image.is_some() || self.state.is_some() || self.which.given()
    }
}

/// The identity of a pod.
#[derive(Clone, Debug)]
pub(crate) struct PodName {
    /// Its name.
    pub(crate) name: String,
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its uid.
    pub(crate) uid: String,
    /// The socket of its runtime.
    pub(crate) runtime: PathBuf,
    /// The name of its run, if any.
    pub(crate) run: Option<RunName>,
}

/// Pod identities by sandbox id.
pub(crate) type PodNames = HashMap<String, PodName>;

/// The containers to list if no state is given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listed<'a> {
    /// All containers.
    All,
    /// Running containers.
    Running,
    /// Running containers, and containers that these agents will restart.
    Alive(&'a Agents),
}

/// The matching containers, newest first, and the identities of all pods.
pub(crate) async fn list(
    runtimes: &[Cri],
    args: &ContainerFilterArgs,
    listed: Listed<'_>,
    id: Option<&str>,
) -> Result<(Vec<v1::Container>, PodNames), CallError> {
    let (mut containers, mut pods) = (Vec::new(), PodNames::new());
    for cri in runtimes {
        let found = list_one(cri, args, listed, id).await;
        if let Some((found, names)) = cri.unless_ended(found)? {
            containers.extend(found);
            pods.extend(names);
        }
    }
    newest(&mut containers, |container| container.created_at, args.which.count());
    Ok((containers, pods))
}

async fn list_one(
    cri: &Cri,
    args: &ContainerFilterArgs,
    listed: Listed<'_>,
    id: Option<&str>,
) -> Result<(Vec<v1::Container>, PodNames), CallError> {
    let running = v1::ContainerState::ContainerRunning;
    let restarted = match listed {
        Listed::Alive(agents) if agents.has(cri) => Some(agents),
        Listed::All | Listed::Running | Listed::Alive(_) => None,
    };
    let restarted = restarted.filter(|_| args.state.is_none() && args.which.count().is_none());
    let state = match (args.state, listed) {
        (Some(state), _) => Some(v1::ContainerState::from(state)),
        (None, Listed::All) => None,
        (None, _) if args.which.count().is_some() || restarted.is_some() => None,
        (None, Listed::Running | Listed::Alive(_)) => Some(running),
    };
    let filter = v1::ContainerFilter {
        id: id.unwrap_or_default().to_owned(),
        pod_sandbox_id: args.pod.clone().unwrap_or_default(),
        state: state.map(|state| v1::ContainerStateValue { state: state.into() }),
        label_selector: args.which.labels(),
    };
    let containers = cri.runtime.containers(filter);
    let mut containers = cri.call("ListContainers", containers).await?;
    let image = match &args.image {
        Some(name) => cri.call("ImageStatus", cri.images.image(name)).await?,
        None => None,
    };
    let pods = pod_names(cri).await?;
    containers.retain(|container| {
        let pod = pods.get(&container.pod_sandbox_id);
        let namespace = pod.map_or("", |pod| &pod.namespace);
        let is_restarted = |agents: &Agents| {
            let pod = pod.and_then(|pod| agents.pod(&pod.runtime, &pod.uid));
            pod.is_some_and(|pod| agents::is_restarted(pod, container))
        };
        let is_live = |agents| container.state() == running || is_restarted(agents);
        args.which.fits(&name(container), namespace)
            && restarted.is_none_or(is_live)
            && (args.image.is_none() || is_of(container, args.image.as_deref(), image.as_ref()))
    });
    Ok((containers, pods))
}

/// The identities of a runtime's pods by sandbox id.
async fn pod_names(cri: &Cri) -> Result<PodNames, CallError> {
    let all = cri.runtime.pods(v1::PodSandboxFilter::default());
    let pods = cri.call("ListPodSandbox", all).await?;
    let named = pods.into_iter().map(|pod| {
        let metadata = pod.metadata.unwrap_or_default();
        let name = PodName {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            runtime: cri.endpoint.path().to_owned(),
            run: cri.run().cloned(),
        };
        (pod.id, name)
    });
    Ok(named.collect())
}

/// Pod identities by container id.
pub(crate) type PodsOfContainers = HashMap<String, PodName>;

/// The pods of all containers.
pub(crate) async fn pods_of_containers(runtimes: &[Cri]) -> Result<PodsOfContainers, CallError> {
    let mut known = PodsOfContainers::new();
    for cri in runtimes {
        let both = async {
            let containers = cri.runtime.containers(v1::ContainerFilter::default());
            Ok((cri.call("ListContainers", containers).await?, pod_names(cri).await?))
        };
        if let Some((containers, pods)) = cri.unless_ended(both.await)? {
            known.extend(containers.into_iter().filter_map(|container| {
                Some((container.id, pods.get(&container.pod_sandbox_id)?.clone()))
            }));
        }
    }
    Ok(known)
}

/// The name of a container in its pod.
pub(crate) fn name(container: &v1::Container) -> String {
    container.metadata.clone().unwrap_or_default().name
}

/// Whether a container uses the image, given by any of its names.
fn is_of(container: &v1::Container, requested: Option<&str>, image: Option<&v1::Image>) -> bool {
    let own = container.image.clone().unwrap_or_default();
    let names = [&container.image_id, &container.image_ref, &own.image];
    names.into_iter().any(|name| {
        requested == Some(name.as_str())
            || image.is_some_and(|image| {
                let mut all = image.repo_tags.iter().chain(&image.repo_digests);
                *name == image.id || all.any(|other| other == name)
            })
    })
}
