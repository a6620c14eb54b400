//! `crib top`: the resource usage of pods in the format of `kubectl top pod`.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use compact::Map;

use crate::client::output::Columns;
use crate::commands::listing::stats::share;
use crate::commands::prelude::*;

use crate::objects::selectors::Labels;

/// The interval between the two samples from which CPU usage is computed.
const INTERVAL: Duration = Duration::from_secs(1);
const MEBIBYTE: u64 = 1 << 20;

/// Show the CPU and memory usage of pods, as kubectl top does
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib top pod
  crib top pod -A --sort-by memory
  crib top pod web --containers
  crib top pod -l app=web --sum

CPU usage is in millicores, measured over one second; memory is the working set. The usage of a pod is the sum over its \
running containers."))]
pub(crate) struct TopArgs {
    /// Kind of object: `pod`
    #[arg(value_enum)]
    resource: Resource,
    /// Name of a pod [default: all]
    name: Option<String>,
    /// Namespace of the pods
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Show the pods of all namespaces
    #[arg(short = 'A', long, conflicts_with = "name")]
    all_namespaces: bool,
    /// Filter by labels: `app=web,tier!=db`, `app in (web, api)`, `app`, `!app`
    #[arg(short = 'l', long, conflicts_with = "name")]
    selector: Option<Labels>,
    /// Show the usage of each container
    #[arg(long)]
    containers: bool,
    /// Sort by CPU or memory usage, highest first
    #[arg(long, value_enum)]
    sort_by: Option<SortBy>,
    /// Show the sum of the usage below the pods
    #[arg(long)]
    sum: bool,
    /// Show the swap memory that the pods use
    #[arg(long)]
    show_swap: bool,
    /// Omit the headings
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// A kind whose usage can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Resource {
    /// Pods.
    #[value(aliases = ["pods", "po"])]
    Pod,
}

/// The sort key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SortBy {
    Cpu,
    Memory,
}

/// Prints the usage.
pub(crate) async fn run(args: &TopArgs) -> Result<Exit, CallError> {
    let Resource::Pod = args.resource;
    let all = match args.connection.open_all() {
        Err(CallError::NoRuntime { .. }) => return Err(CallError::NoRun),
        all => all?,
    };
    let before = measure(args, &all).await?;
    if let (Some(name), true) = (&args.name, before.is_empty()) {
        return Err(CallError::NotFound { what: "pod", name: name.clone() });
    }
    if before.is_empty() {
        match args.all_namespaces {
            true => print_stderr("no resources found"),
            false => print_stderr(&format!("no resources found in {} namespace", args.namespace)),
        }
        return Ok(Exit::Success);
    }
    tokio::time::sleep(INTERVAL).await;
    let now = measure(args, &all).await?;
    table(args, usage(&before, &now))?;
    Ok(Exit::Success)
}

/// A sample of a running container.
#[derive(Clone, Debug)]
struct Measured {
    namespace: String,
    pod: String,
    /// Its sandbox.
    pod_id: String,
    name: String,
    cpu: Option<v1::CpuUsage>,
    memory: u64,
    swap: u64,
}

/// The samples of the selected pods' containers, by container id.
type Measurement = HashMap<String, Measured>;

async fn measure(args: &TopArgs, all: &[Cri]) -> Result<Measurement, CallError> {
    let mut measured = Measurement::new();
    for cri in all {
        if let Some(of_one) = cri.unless_ended(measure_one(args, cri).await)? {
            measured.extend(of_one);
        }
    }
    Ok(measured)
}

async fn measure_one(args: &TopArgs, cri: &Cri) -> Result<Measurement, CallError> {
    let pods = cri.runtime.pods(v1::PodSandboxFilter::default());
    let pods = cri.call("ListPodSandbox", pods).await?;
    let pods: HashMap<String, v1::PodSandboxMetadata> = pods
        .into_iter()
        .filter(|pod| is_shown(args, pod))
        .map(|pod| (pod.id, pod.metadata.unwrap_or_default()))
        .collect();
    let running = cri.running_containers().await?;
    let of_pods: HashMap<String, String> =
        running.into_iter().map(|container| (container.id, container.pod_sandbox_id)).collect();
    let mut client = cri.runtime.runtime.clone();
    let request = v1::ListContainerStatsRequest::default();
    let answer = cri.call("ListContainerStats", client.list_container_stats(request)).await?;
    let stats = answer.into_inner().stats.into_iter().filter_map(|stats| {
        let attributes = stats.attributes?;
        let pod_id = of_pods.get(&attributes.id)?.clone();
        let pod = pods.get(&pod_id)?;
        let memory = stats.memory.and_then(|memory| memory.working_set_bytes);
        let swap = stats.swap.and_then(|swap| swap.swap_usage_bytes);
        let measured = Measured {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            pod_id,
            name: attributes.metadata.unwrap_or_default().name,
            cpu: stats.cpu,
            memory: memory.unwrap_or_default().value,
            swap: swap.unwrap_or_default().value,
        };
        Some((attributes.id, measured))
    });
    Ok(stats.collect())
}

fn is_shown(args: &TopArgs, pod: &v1::PodSandbox) -> bool {
    let metadata = pod.metadata.clone().unwrap_or_default();
    let label = |key: &str| pod.labels.get(key).map(String::as_str);
    (args.all_namespaces || metadata.namespace == args.namespace)
        && args.name.as_ref().is_none_or(|name| *name == metadata.name)
        && args.selector.as_ref().is_none_or(|selector| selector.accept(label))
}

/// The usage of a pod or container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Usage {
    name: String,
    /// Millicores.
    cpu: u64,
    memory: u64,
    swap: u64,
}

/// The usage of a pod and its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PodUsage {
    namespace: String,
    pod: Usage,
    containers: Vec<Usage>,
}

/// The usage of containers that are in both samples, by pod.
fn usage(before: &Measurement, now: &Measurement) -> Vec<PodUsage> {
    let mut pods: Map<&str, PodUsage> = Map::new();
    for (id, measured) in now {
        let earlier = before.get(id).and_then(|measured| measured.cpu.as_ref());
        let percent = share(earlier, measured.cpu.as_ref()).unwrap_or_default();
        let container = Usage {
            name: measured.name.clone(),
            cpu: thousandths(percent),
            memory: measured.memory,
            swap: measured.swap,
        };
        let pod = pods.entry(&measured.pod_id).or_default();
        pod.namespace.clone_from(&measured.namespace);
        pod.pod.name.clone_from(&measured.pod);
        pod.pod.cpu += container.cpu;
        pod.pod.memory += container.memory;
        pod.pod.swap += container.swap;
        pod.containers.push(container);
    }
    pods.into_values().collect()
}

/// Converts hundredths of a core to millicores, rounded up as in kubectl.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is no more than cores"
)]
fn thousandths(percent: f64) -> u64 {
    (percent * 10.0).ceil().max(0.0) as u64
}

fn compare(one: &Usage, other: &Usage, by: Option<SortBy>) -> Ordering {
    let most = match by {
        Some(SortBy::Cpu) => Reverse(one.cpu).cmp(&Reverse(other.cpu)),
        Some(SortBy::Memory) => Reverse(one.memory).cmp(&Reverse(other.memory)),
        None => Ordering::Equal,
    };
    most.then_with(|| one.name.cmp(&other.name))
}

fn table(args: &TopArgs, mut pods: Vec<PodUsage>) -> Result<(), CallError> {
    compact::sort_by(&mut pods, |one, other| {
        match args.sort_by {
            None => one.namespace.cmp(&other.namespace),
            Some(_) => Ordering::Equal,
        }
        .then_with(|| compare(&one.pod, &other.pod, args.sort_by))
    });
    let mut headings = Vec::new();
    headings.extend(args.all_namespaces.then_some("NAMESPACE"));
    headings.extend(args.containers.then_some("POD"));
    headings.extend(["NAME", "CPU(cores)", "MEMORY(bytes)"]);
    headings.extend(args.show_swap.then_some("SWAP(bytes)"));
    let mut columns = match args.no_headers {
        true => Columns::without_headings(headings.len()),
        false => Columns::new(&headings),
    };
    let sum = sum(&pods);
    for mut pod in pods {
        compact::sort_by(&mut pod.containers, |one, other| compare(one, other, args.sort_by));
        let rows = match args.containers {
            true => pod.containers,
            false => vec![pod.pod.clone()],
        };
        for row in rows {
            let mut cells = Vec::new();
            cells.extend(args.all_namespaces.then(|| pod.namespace.clone()));
            cells.extend(args.containers.then(|| pod.pod.name.clone()));
            cells.push(row.name.clone());
            cells.extend(usage_cells(&row, args.show_swap));
            columns.row(cells);
        }
    }
    if args.sum {
        let sum = usage_cells(&sum, args.show_swap);
        let empty = vec![String::new(); headings.len() - sum.len()];
        columns.row(empty.iter().cloned().chain(std::iter::repeat_n("_".repeat(8), sum.len())));
        columns.row(empty.into_iter().chain(sum));
    }
    columns.print()
}

/// The last cells of a row: CPU and memory, and swap if it is to be shown.
fn usage_cells(usage: &Usage, show_swap: bool) -> Vec<String> {
    let mebibytes = |bytes: u64| format!("{}Mi", bytes / MEBIBYTE);
    let mut cells = vec![format!("{}m", usage.cpu), mebibytes(usage.memory)];
    cells.extend(show_swap.then(|| mebibytes(usage.swap)));
    cells
}

/// The usage of all pods together, without a name.
fn sum(pods: &[PodUsage]) -> Usage {
    pods.iter().fold(Usage::default(), |sum, PodUsage { pod, .. }| Usage {
        cpu: sum.cpu + pod.cpu,
        memory: sum.memory + pod.memory,
        swap: sum.swap + pod.swap,
        ..sum
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn measured(pod: &str, name: &str, at: i64, used: u64, memory: u64) -> Measured {
        Measured {
            namespace: "default".to_owned(),
            pod: pod.to_owned(),
            pod_id: format!("id of {pod}"),
            name: name.to_owned(),
            cpu: Some(v1::CpuUsage {
                timestamp: at,
                usage_core_nano_seconds: Some(v1::UInt64Value { value: used }),
                ..Default::default()
            }),
            memory,
            swap: 2 * memory,
        }
    }

    #[test]
    fn pod_uses_what_its_containers_use() {
        let all = |at: i64, used: u64| {
            let one = |pod, name, used, memory| measured(pod, name, at, used, memory);
            Measurement::from([
                ("1".to_owned(), one("web", "a", used, 10)),
                ("2".to_owned(), one("web", "b", 2 * used, 20)),
                ("3".to_owned(), one("db", "c", 0, 30)),
            ])
        };
        let mut before = all(0, 0);
        before.remove("3");
        let found = usage(&before, &all(1_000_000_000, 100_100_000));
        let mut shown: Vec<_> =
            found.iter().map(|of| (of.pod.name.as_str(), of.pod.cpu, of.pod.memory)).collect();
        shown.sort_unstable();
        // A container that has just started has no CPU usage yet.
        assert_eq!(shown, [("db", 0, 30), ("web", 101 + 201, 30)]);
        assert_eq!(sum(&found), Usage { name: String::new(), cpu: 302, memory: 60, swap: 120 });
    }

    #[rstest]
    #[case(None, ["a", "b", "c"])]
    #[case(Some(SortBy::Cpu), ["b", "a", "c"])]
    #[case(Some(SortBy::Memory), ["c", "a", "b"])]
    fn most_comes_first_and_names_decide(#[case] by: Option<SortBy>, #[case] expected: [&str; 3]) {
        let of = |name: &str, cpu, memory| Usage { name: name.to_owned(), cpu, memory, swap: 0 };
        let mut all = [of("c", 1, 9), of("b", 5, 2), of("a", 1, 2)];
        compact::sort_by(&mut all, |one, other| compare(one, other, by));
        assert_eq!(all.map(|usage| usage.name), expected.map(str::to_owned));
    }

    #[test]
    fn swap_is_shown_if_requested() {
        let usage =
            Usage { name: String::new(), cpu: 7, memory: 5 * MEBIBYTE, swap: 3 * MEBIBYTE + 1 };
        assert_eq!(usage_cells(&usage, false), ["7m", "5Mi"]);
        assert_eq!(usage_cells(&usage, true), ["7m", "5Mi", "3Mi"]);
    }
}
