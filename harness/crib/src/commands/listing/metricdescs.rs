//! `crib metricdescs`: which metrics of pods there are.

use crate::client::output::{Document, print_message};
use crate::commands::prelude::*;

/// List the metrics that metricsp shows
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

/// Lists them.
pub(crate) async fn run(args: &MetricdescsArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let mut client = cri.runtime.runtime.clone();
    let request = v1::ListMetricDescriptorsRequest {};
    let answer = client.list_metric_descriptors(request);
    let answer = cri.call("ListMetricDescriptors", answer).await?.into_inner();
    print_message("ListMetricDescriptorsResponse", &answer, args.output)?;
    Ok(Exit::Success)
}
