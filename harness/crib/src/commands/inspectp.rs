//! `crib inspectp`: the status of pods.

use clap::Args;

use crate::client::document::DocumentArgs;
use crate::client::pods::{self, PodFilterArgs};
use crate::client::{CallError, Connection, each, find, finish, status, with_codes};
use crate::exit::Exit;

/// Show details of pods
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib inspectp web
  crib inspectp -o go-template --template '{{.status.network.ip}}' web

Without ids, shows the pods that fit the filters. `crib inspect --help` says what templates can do."))]
pub(crate) struct InspectpArgs {
    /// Ids, id prefixes or names of pods
    #[arg(value_name = "POD")]
    pods: Vec<String>,
    /// Leave out what the runtime knows beyond the CRI
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    filter: PodFilterArgs,
    #[command(flatten)]
    document: DocumentArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Shows them.
pub(crate) fn run(args: &InspectpArgs) -> Exit {
    finish(show(args))
}

async fn show(args: &InspectpArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let mut ids = args.pods.clone();
    if ids.is_empty() {
        let found = pods::list(&all, &args.filter, None).await?;
        ids.extend(found.into_iter().map(|pod| pod.id));
    }
    if ids.is_empty() {
        return Err(CallError::NothingFits("pod"));
    }
    let mut shown = Vec::new();
    let exit = each(&ids, async |id: &String| {
        let (cri, pod) = find::pod(&all, id).await?;
        shown.push(status::pod(cri, &pod.id, !args.quiet).await?);
        Ok(())
    })
    .await;
    args.document.print(shown)?;
    exit
}
