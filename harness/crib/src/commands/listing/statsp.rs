//! `crib statsp`: resource usage of pods.

use std::collections::HashMap;

use crate::client::output::Sampling;
use crate::client::output::{Columns, Form, clear};
use crate::client::select::{label, labels};
use crate::commands::listing::stats::share;
use crate::commands::prelude::*;

/// Show CPU and memory usage of pods
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib statsp
  crib statsp --watch --seconds 5
  crib statsp -o json 3f1c

CPU % is the average usage between two samples; 100 is one full core."))]
pub(crate) struct StatspArgs {
    /// Pod id or id prefix [default: all pods]
    pod: Option<String>,
    /// Same as the POD argument
    #[arg(long, conflicts_with = "pod")]
    id: Option<String>,
    /// Filter by label; repeatable
    #[arg(long, value_parser = label, value_name = "KEY=VALUE")]
    label: Vec<(String, String)>,
    /// Refresh until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    /// Sampling interval
    #[arg(short, long, value_parser = duration, default_value = "1", value_name = "TIME")]
    seconds: Duration,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Prints the usage.
pub(crate) async fn run(args: &StatspArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let sampling = Sampling { watch: args.watch, interval: args.seconds, output: args.output };
    sampling
        .print(
            "ListPodSandboxStatsResponse",
            async || measure(args, &cri).await,
            |before, now| table(args, before, now),
        )
        .await
}

async fn measure(
    args: &StatspArgs,
    cri: &Cri,
) -> Result<v1::ListPodSandboxStatsResponse, CallError> {
    let id = args.pod.as_ref().or(args.id.as_ref());
    let request = v1::ListPodSandboxStatsRequest {
        filter: Some(v1::PodSandboxStatsFilter {
            id: id.cloned().unwrap_or_default(),
            label_selector: labels(&args.label),
        }),
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("ListPodSandboxStats", client.list_pod_sandbox_stats(request));
    let mut answer = answer.await?.into_inner();
    compact::sort_by(&mut answer.stats, |a, b| id_of(a).cmp(id_of(b)));
    Ok(answer)
}

fn id_of(stats: &v1::PodSandboxStats) -> &str {
    stats.attributes.as_ref().map_or("", |of| of.id.as_str())
}

fn cpu(stats: &v1::PodSandboxStats) -> Option<&v1::CpuUsage> {
    stats.linux.as_ref()?.cpu.as_ref()
}

fn table(
    args: &StatspArgs,
    before: &v1::ListPodSandboxStatsResponse,
    now: &v1::ListPodSandboxStatsResponse,
) -> Result<(), CallError> {
    let before: HashMap<&str, &v1::PodSandboxStats> =
        before.stats.iter().map(|stats| (id_of(stats), stats)).collect();
    let mut columns = Columns::new(&["POD", "POD ID", "CPU %", "MEM"]);
    columns.right(&[2, 3]);
    for stats in &now.stats {
        let metadata = stats.attributes.clone().unwrap_or_default().metadata;
        let memory = stats.linux.as_ref().and_then(|linux| linux.memory.as_ref());
        let memory = memory.and_then(|memory| memory.working_set_bytes.as_ref());
        let before = before.get(id_of(stats)).and_then(|stats| cpu(stats));
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        columns.row([
            metadata.unwrap_or_default().name,
            human::id(id_of(stats), false).to_owned(),
            or_dash(share(before, cpu(stats)).map(|share| format!("{share:.2}"))),
            or_dash(memory.map(|memory| human::usage(memory.value))),
        ]);
    }
    if args.watch {
        clear()?;
    }
    columns.print()
}
