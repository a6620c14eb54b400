//! `crib metricsp`: the metrics of pods.

use clap::Args;
use cri::v1;

use crate::client::output::{Document, print_message};
use crate::client::{CallError, Connection, finish, until_signal, with_codes};
use crate::exit::Exit;

/// How often --watch asks.
const INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);

/// Show the metrics of pods
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib metricsp
  crib metricsp | jq '.podMetrics[].containerMetrics[].metrics[].name'"))]
pub(crate) struct MetricspArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Document,
    /// Repeat until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Shows them.
pub(crate) fn run(args: &MetricspArgs) -> Exit {
    finish(until_signal(show(args)))
}

async fn show(args: &MetricspArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let mut client = cri.runtime.runtime.clone();
    loop {
        let request = v1::ListPodSandboxMetricsRequest {};
        let answer = client.list_pod_sandbox_metrics(request);
        let answer = cri
            .call("ListPodSandboxMetrics", answer)
            .await?
            .into_inner();
        print_message("ListPodSandboxMetricsResponse", &answer, args.output)?;
        if !args.watch {
            return Ok(Exit::Success);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
