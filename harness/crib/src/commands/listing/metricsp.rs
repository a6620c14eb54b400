//! `crib metricsp`: the metrics of pods. `crib metricdescs`: the available metrics.

use crate::client::output::{Document, print_message};
use crate::commands::prelude::*;

/// The interval of `--watch`.
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
    /// Print the metrics repeatedly until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Prints the metrics.
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

/// List the metrics that `crib metricsp` shows
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib metricdescs | jq -r '.descriptors[].name'"))]
pub(crate) struct MetricdescsArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Document,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Prints the descriptors of metrics.
pub(crate) async fn list_descriptors(args: &MetricdescsArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let mut client = cri.runtime.runtime.clone();
    let request = v1::ListMetricDescriptorsRequest {};
    let answer = client.list_metric_descriptors(request);
    let answer = cri.call("ListMetricDescriptors", answer).await?.into_inner();
    print_message("ListMetricDescriptorsResponse", &answer, args.output)?;
    Ok(Exit::Success)
}
