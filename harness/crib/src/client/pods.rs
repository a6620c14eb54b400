//! Selects pods with crictl's filters.

use clap::{Args, ValueEnum};
use cri::v1;

use super::select::{Which, newest};
use super::{CallError, Cri};

/// A pod state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// The sandbox is running.
    Ready,
    /// The sandbox is not running.
    #[value(name = "notready")]
    NotReady,
}

impl From<State> for v1::PodSandboxState {
    fn from(state: State) -> Self {
        match state {
            State::Ready => Self::SandboxReady,
            State::NotReady => Self::SandboxNotready,
        }
    }
}

/// Filters for pods, with crictl's names.
#[derive(Debug, Args)]
pub(crate) struct PodFilterArgs {
    /// Filter by state
    #[arg(short, long, value_enum, ignore_case = true)]
    state: Option<State>,
    #[command(flatten)]
    which: Which,
}

/// The matching pods, newest first.
pub(crate) async fn list(
    runtimes: &[Cri],
    args: &PodFilterArgs,
    id: Option<&str>,
) -> Result<Vec<v1::PodSandbox>, CallError> {
    let found = list_with_runtimes(runtimes, args, id).await?;
    Ok(found.into_iter().map(|(pod, _)| pod).collect())
}

/// The matching pods, newest first, each with its runtime.
pub(crate) async fn list_with_runtimes<'c>(
    runtimes: &'c [Cri],
    args: &PodFilterArgs,
    id: Option<&str>,
) -> Result<Vec<(v1::PodSandbox, &'c Cri)>, CallError> {
    let mut items = Vec::new();
    for cri in runtimes {
        let found = list_one(cri, args, id).await;
        let found = cri.unless_ended(found)?.unwrap_or_default().into_iter();
        items.extend(found.map(|pod| (pod, cri)));
    }
    newest(&mut items, |(pod, _)| pod.created_at, args.which.count());
    Ok(items)
}

async fn list_one(
    cri: &Cri,
    args: &PodFilterArgs,
    id: Option<&str>,
) -> Result<Vec<v1::PodSandbox>, CallError> {
    let filter = v1::PodSandboxFilter {
        id: id.unwrap_or_default().to_owned(),
        state: args.state.map(|state| v1::PodSandboxStateValue {
            state: v1::PodSandboxState::from(state).into(),
        }),
        label_selector: args.which.labels(),
    };
    let mut items = cri.call("ListPodSandbox", cri.runtime.pods(filter)).await?;
    items.retain(|pod| {
        let metadata = pod.metadata.clone().unwrap_or_default();
        args.which.fits(&metadata.name, &metadata.namespace)
    });
    Ok(items)
}
