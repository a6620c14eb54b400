//! `crib stats`: resource usage of containers.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use crate::client::containers::{self, PodsOfContainers};
use crate::client::output::Sampling;
use crate::client::output::{Columns, Form, clear};
use crate::client::select::{label, labels};
use crate::commands::prelude::*;

/// Show CPU, memory and disk usage of containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib stats
  crib stats --watch --seconds 5
  crib stats --pod 3f1c -o json

CPU % is the average usage between two samples; 100 is one full core."))]
pub(crate) struct StatsArgs {
    /// Container id or id prefix [default: all containers]
    container: Option<String>,
    /// Include containers that are not running
    #[arg(short, long)]
    all: bool,
    /// Same as the CONTAINER argument
    #[arg(long, conflicts_with = "container")]
    id: Option<String>,
    /// Filter by pod id
    #[arg(short, long, value_name = "POD ID")]
    pod: Option<String>,
    /// Filter by label; repeatable
    #[arg(long, value_parser = label, value_name = "KEY=VALUE")]
    label: Vec<(String, String)>,
    /// Refresh until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    /// Sampling interval
    #[arg(short, long, value_parser = duration, default_value = "1", value_name = "TIME")]
    seconds: Duration,
    /// Show full ids
    #[arg(long)]
    no_trunc: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Prints the usage.
pub(crate) async fn run(args: &StatsArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    // The pods at the time of the latest sample.
    let pods = RefCell::new(PodsOfContainers::new());
    let sampling = Sampling { watch: args.watch, interval: args.seconds, output: args.output };
    sampling
        .print(
            "ListContainerStatsResponse",
            async || {
                let mut answer = v1::ListContainerStatsResponse::default();
                for cri in &all {
                    if let Some(of_one) = cri.unless_ended(measure(args, cri).await)? {
                        answer.stats.extend(of_one.stats);
                    }
                }
                compact::sort_by(&mut answer.stats, |a, b| id_of(a).cmp(id_of(b)));
                if args.output == Form::Table {
                    *pods.borrow_mut() = containers::pods_of_containers(&all).await?;
                }
                Ok(answer)
            },
            |before, now| table(args, before, now, &pods.borrow()),
        )
        .await
}

async fn measure(args: &StatsArgs, cri: &Cri) -> Result<v1::ListContainerStatsResponse, CallError> {
    let id = args.container.as_ref().or(args.id.as_ref());
    let request = v1::ListContainerStatsRequest {
        filter: Some(v1::ContainerStatsFilter {
            id: id.cloned().unwrap_or_default(),
            pod_sandbox_id: args.pod.clone().unwrap_or_default(),
            label_selector: labels(&args.label),
        }),
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("ListContainerStats", client.list_container_stats(request));
    let mut answer = answer.await?.into_inner();
    // As in crictl, JSON and YAML contain the runtime's whole response.
    if !args.all && args.output == Form::Table {
        let running = cri.running_containers().await?;
        let running: HashSet<String> = running.into_iter().map(|of| of.id).collect();
        answer.stats.retain(|stats| running.contains(id_of(stats)));
    }
    Ok(answer)
}

fn id_of(stats: &v1::ContainerStats) -> &str {
    stats.attributes.as_ref().map_or("", |of| of.id.as_str())
}

fn table(
    args: &StatsArgs,
    before: &v1::ListContainerStatsResponse,
    now: &v1::ListContainerStatsResponse,
    pods: &PodsOfContainers,
) -> Result<(), CallError> {
    let before: HashMap<&str, &v1::ContainerStats> =
        before.stats.iter().map(|stats| (id_of(stats), stats)).collect();
    // The column RUN is added only if needed, because programs may depend on crictl's columns.
    let has_runs =
        now.stats.iter().any(|stats| pods.get(id_of(stats)).is_some_and(|pod| pod.run.is_some()));
    let mut headings = vec!["CONTAINER", "NAME", "CPU %", "MEM", "DISK", "INODES", "SWAP", "POD"];
    headings.extend(has_runs.then_some("RUN"));
    let mut columns = Columns::new(&headings);
    columns.right(&[2, 3, 4, 5, 6]);
    for stats in &now.stats {
        let metadata = stats.attributes.clone().unwrap_or_default().metadata;
        let layer = stats.writable_layer.clone().unwrap_or_default();
        let bytes = |value: Option<v1::UInt64Value>| {
            value.map_or_else(|| "-".to_owned(), |value| human::usage(value.value))
        };
        let memory = stats.memory.and_then(|memory| memory.working_set_bytes);
        let inodes = layer.inodes_used;
        let pod = pods.get(id_of(stats));
        let mut cells = vec![
            human::id(id_of(stats), args.no_trunc).to_owned(),
            metadata.unwrap_or_default().name,
            share(
                before.get(id_of(stats)).and_then(|stats| stats.cpu.as_ref()),
                stats.cpu.as_ref(),
            )
            .map_or_else(|| "-".to_owned(), |share| format!("{share:.2}")),
            bytes(memory),
            bytes(layer.used_bytes),
            inodes.map_or_else(|| "-".to_owned(), |inodes| inodes.value.to_string()),
            bytes(stats.swap.and_then(|swap| swap.swap_usage_bytes)),
            pod.map_or_else(|| "unknown".to_owned(), |pod| pod.name.clone()),
        ];
        if has_runs {
            let run = pod.and_then(|pod| pod.run.as_ref());
            cells.push(run.map(ToString::to_string).unwrap_or_default());
        }
        columns.row(cells);
    }
    if args.watch {
        clear()?;
    }
    columns.print()
}

/// CPU usage between two samples, in percent of a core.
#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
pub(crate) fn share(before: Option<&v1::CpuUsage>, now: Option<&v1::CpuUsage>) -> Option<f64> {
    let (before, now) = (before?, now?);
    let used = |cpu: &v1::CpuUsage| Some(cpu.usage_core_nano_seconds.as_ref()?.value);
    let time = now.timestamp.checked_sub(before.timestamp)?;
    let used = used(now)?.saturating_sub(used(before)?);
    (time > 0).then(|| used as f64 * 100.0 / time as f64)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn cpu(timestamp: i64, used: u64) -> v1::CpuUsage {
        v1::CpuUsage {
            timestamp,
            usage_core_nano_seconds: Some(v1::UInt64Value { value: used }),
            ..Default::default()
        }
    }

    #[rstest]
    #[case((100, 10), (200, 60), Some(50.0))]
    #[case((100, 10), (200, 210), Some(200.0))]
    #[case((100, 10), (100, 60), None)]
    #[case((100, 60), (200, 10), Some(0.0))]
    fn cpu_percentage_is_computed_from_two_samples(
        #[case] before: (i64, u64),
        #[case] now: (i64, u64),
        #[case] expected: Option<f64>,
    ) {
        let (before, now) = (cpu(before.0, before.1), cpu(now.0, now.1));
        assert_eq!(share(Some(&before), Some(&now)), expected);
        assert_eq!(share(None, Some(&now)), None);
    }
}
