//! `crib pods`: lists pods.

use clap::{Args, ValueEnum};
use cri::v1;

use crate::client::output::{Columns, Listing};
use crate::client::select::{Which, newest};
use crate::client::{CallError, Connection, finish, human, with_codes};
use crate::exit::Exit;

/// A pod's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// Its namespaces are there.
    Ready,
    /// They are not.
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
pub(crate) fn run(args: &PodsArgs) -> Exit {
    finish(list(args))
}

async fn list(args: &PodsArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let filter = v1::PodSandboxFilter {
        id: args.id.clone().unwrap_or_default(),
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
    newest(&mut items, |pod| pod.created_at, args.which.count());
    let answer = v1::ListPodSandboxResponse { items };
    let ids = answer.items.iter().map(|pod| &pod.id);
    let table = || table(args, &answer.items);
    args.listing
        .show("ListPodSandboxResponse", &answer, ids, table)
}

fn table(args: &PodsArgs, pods: &[v1::PodSandbox]) -> Result<(), CallError> {
    let headings = [
        "POD ID",
        "CREATED",
        "STATE",
        "NAME",
        "NAMESPACE",
        "ATTEMPT",
        "RUNTIME",
    ];
    let mut columns = Columns::new(&headings);
    let now = jiff::Timestamp::now().as_nanosecond();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    for pod in pods {
        let metadata = pod.metadata.clone().unwrap_or_default();
        let handler = match pod.runtime_handler.as_str() {
            "" => "(default)",
            handler => handler,
        };
        columns.row([
            human::id(&pod.id, args.listing.no_trunc).to_owned(),
            human::ago(pod.created_at, now),
            match pod.state() {
                v1::PodSandboxState::SandboxReady => "Ready".to_owned(),
                v1::PodSandboxState::SandboxNotready => "NotReady".to_owned(),
            },
            metadata.name,
            metadata.namespace,
            metadata.attempt.to_string(),
            handler.to_owned(),
        ]);
    }
    columns.print()
}
