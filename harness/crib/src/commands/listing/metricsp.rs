//! `crib metricsp`: the metrics of pods.

use crate::client::output::{Document, print_message};
use crate::commands::prelude::*;

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
pub(crate) async fn run(args: &MetricspArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let mut client = cri.runtime.runtime.clone();
    loop {
        let request = v1::ListPodSandboxMetricsRequest {};
        let answer = client.list_pod_sandbox_metrics(request);
        let answer = cri.call("ListPodSandboxMetrics", answer).await?.into_inner();
        print_message("ListPodSandboxMetricsResponse", &answer, args.output)?;
        if !args.watch {
            return Ok(Exit::Success);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
