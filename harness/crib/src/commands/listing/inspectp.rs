//! `crib inspectp`: the status of pods.

use clap::Args;
use crib_base::exit::Exit;

use crate::client::document::DocumentArgs;
use crate::client::pods::{self, PodFilterArgs};
use crate::client::{CallError, Connection, find, status, with_codes};

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
pub(crate) async fn run(args: &InspectpArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let mut ids = args.pods.clone();
    if ids.is_empty() {
        let found = pods::list(&all, &args.filter, None).await?;
        ids.extend(found.into_iter().map(|pod| pod.id));
    }
    let shown = async |id: &str| {
        let (cri, pod) = find::pod(&all, id).await?;
        status::pod(cri, &pod.id, !args.quiet).await
    };
    args.document.print_each("pod", &ids, shown).await
}
