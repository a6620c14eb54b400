//! `crib pods`: a runtime's pods.

use clap::{Args, ValueEnum};
use cri::v1;
use regex::Regex;

use super::call::output::{Columns, Document, Form, print, print_message};
use super::call::select::{fits, label, labels, newest, pattern};
use super::call::{CallError, Connection, finish, human, with_codes};
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
    /// Only ids
    #[arg(short, long)]
    quiet: bool,
    /// Only pods whose id begins so
    #[arg(long)]
    id: Option<String>,
    /// Only pods whose name fits this regular expression
    #[arg(long, value_parser = pattern, value_name = "REGEX")]
    name: Option<Regex>,
    /// Only pods whose namespace fits this regular expression
    #[arg(long, value_parser = pattern, value_name = "REGEX")]
    namespace: Option<Regex>,
    /// Only pods in this state
    #[arg(short, long, value_enum, ignore_case = true)]
    state: Option<State>,
    /// Only pods with this label; can be given several times
    #[arg(long, value_parser = label, value_name = "KEY=VALUE")]
    label: Vec<(String, String)>,
    /// Only the newest ones
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "latest")]
    last: Option<usize>,
    /// Only the newest one
    #[arg(short, long)]
    latest: bool,
    /// Do not cut ids
    #[arg(long)]
    no_trunc: bool,
    /// How to print them
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
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
        label_selector: labels(&args.label),
    };
    let mut items = cri.call("ListPodSandbox", cri.runtime.pods(filter)).await?;
    items.retain(|pod| {
        let metadata = pod.metadata.clone().unwrap_or_default();
        fits(args.name.as_ref(), &metadata.name)
            && fits(args.namespace.as_ref(), &metadata.namespace)
    });
    let count = args.last.or(args.latest.then_some(1));
    newest(&mut items, |pod| pod.created_at, count);
    if args.quiet {
        for pod in &items {
            print(&pod.id)?;
        }
        return Ok(Exit::Success);
    }
    let answer = v1::ListPodSandboxResponse { items };
    match args.output {
        Form::Json => print_message("ListPodSandboxResponse", &answer, Document::Json)?,
        Form::Yaml => print_message("ListPodSandboxResponse", &answer, Document::Yaml)?,
        Form::Table => table(args, &answer.items)?,
    }
    Ok(Exit::Success)
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
            human::id(&pod.id, args.no_trunc).to_owned(),
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
