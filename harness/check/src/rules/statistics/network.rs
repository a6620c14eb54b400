//! Rules for a pod's network statistics: its interfaces, and the bytes received and sent.

use compact::Set;

use crate::prelude::*;
use crate::rules::sandbox::echo::of_now;
use crate::rules::statistics::accuracy::{interfaces, sandbox_stats};
use crate::rules::statistics::metrics::metrics;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-STA-016": "Network statistics in PodSandboxStats match the counters of the pod's interface.",
        API, tags ["kubelet", "network"], calls [PodSandboxStats, ExecSync],
        traffic_is_that_of_interface, faults [
            "PodSandboxStats drop stats.linux.network",
            "PodSandboxStats set stats.linux.network.default_interface.name \"none\"",
            "PodSandboxStats set stats.linux.network.default_interface.rx_bytes.value \"123456789\"",
            "PodSandboxStats drop stats.linux.network.default_interface.tx_bytes",
            "PodSandboxStats drop stats.linux.network.timestamp",
        ];
    Should "CRI-STA-019": "PodSandboxStats lists every network interface of the pod except loopback.",
        API, tags ["kubelet", "network"], calls [PodSandboxStats, ExecSync],
        every_interface_is_measured given [namespaces, pod], faults [
            "PodSandboxStats drop stats.linux.network.interfaces",
            "PodSandboxStats drop stats.linux.network",
        ];
    Should "CRI-STA-028": "Network metrics in ListPodSandboxMetrics match the counters of the pod's interface.",
        API, tags ["metrics", "network"], calls [ListPodSandboxMetrics, ExecSync],
        traffic_in_metrics_is_that_of_interface, faults [
            "ListPodSandboxMetrics drop pod_metrics.metrics.value.value",
            "ListPodSandboxMetrics set pod_metrics.metrics.value.value \"123456789\"",
            "ListPodSandboxMetrics set pod_metrics.metrics.label_values []",
        ];
};

/// Bytes received and sent, of an interface in `/proc/net/dev`.
fn counted(text: &str, name: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))?;
    let columns: Vec<u64> =
        line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    Some((*columns.first()?, *columns.get(8)?))
}

/// Sends 280 kB to the first gateway, without waiting for an answer.
const SEND: &str = r#"
open(my $routes, "<", "/proc/net/route") or exit;
my ($gateway) = map { (split /\t/)[2] } grep { (split /\t/)[1] eq "00000000" } <$routes>;
exit unless $gateway;
socket(my $any, 2, 2, 0) or exit;
send($any, "x" x 1400, 0, pack("S n L x8", 2, 9, hex $gateway)) for 1 .. 200;
"#;

/// Runs a pod with a container whose sent and received bytes differ, unless the image has no perl.
async fn run_with_traffic(x: &Context) -> Verdict<(Pod, String)> {
    x.needs_namespaces()?;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let _ = x.client.sh(&id, &format!("perl -e '{SEND}'")).await;
    Ok((pod, id))
}

async fn traffic_is_that_of_interface(x: &Context) -> Verdict {
    let (pod, id) = run_with_traffic(x).await?;
    let before = x.client.sh(&id, "cat /proc/net/dev").await?;
    let network = sandbox_stats(x, &pod.id).await?.linux.unwrap_or_default();
    let network = network.network.unwrap_or_default();
    let after = x.client.sh(&id, "cat /proc/net/dev").await?;
    of_now("the time of network", network.timestamp)?;
    let interface = network.default_interface.clone().unwrap_or_default();
    let (Some(before), Some(after)) =
        (counted(&before, &interface.name), counted(&after, &interface.name))
    else {
        return failed("default_interface", "an interface of the pod", format!("{network:?}"));
    };
    let value = |value: Option<v1::UInt64Value>| value.map(|value| value.value);
    between("rx_bytes", value(interface.rx_bytes), before.0, after.0)?;
    between("tx_bytes", value(interface.tx_bytes), before.1, after.1)
}

fn between(what: &str, seen: Option<u64>, least: u64, most: u64) -> Verdict {
    let counted = seen.is_some_and(|seen| (least..=most).contains(&seen));
    ensure(counted, what, &format!("between {least} and {most}"), seen)
}

async fn traffic_in_metrics_is_that_of_interface(x: &Context) -> Verdict {
    const RECEIVED: &str = "container_network_receive_bytes_total";
    const SENT: &str = "container_network_transmit_bytes_total";
    let (pod, id) = run_with_traffic(x).await?;
    // A runtime without statistics of pods fails here.
    let name = sandbox_stats(x, &pod.id).await?.linux.unwrap_or_default();
    let name = name.network.unwrap_or_default().default_interface;
    let name = name.unwrap_or_default().name;
    let before = x.client.sh(&id, "cat /proc/net/dev").await?;
    let all = metrics(x, &pod.id).await?.metrics;
    let after = x.client.sh(&id, "cat /proc/net/dev").await?;
    if !all.iter().any(|metric| metric.name == RECEIVED) {
        let why = format!("the metrics of a pod have no {RECEIVED}");
        return Err(Outcome::Unsupported(why));
    }
    let (Some(before), Some(after)) = (counted(&before, &name), counted(&after, &name)) else {
        return failed("/proc/net/dev", format!("{name:?}"), after);
    };
    let of = |wanted: &str| {
        let mut all = all.iter();
        let metric = all.find(|one| one.name == wanted && one.label_values.contains(&name));
        metric.map(|metric| metric.value.unwrap_or_default().value)
    };
    between(RECEIVED, of(RECEIVED), before.0, after.0)?;
    between(SENT, of(SENT), before.1, after.1)
}

/// Creates a bridge in the network namespace: the ioctl SIOCBRADDBR, for images without ip(8).
const BRIDGE: &str = r#"
socket(my $any, 2, 2, 0) or die "socket: $!";
my $name = pack("a16", "second");
ioctl($any, 0x89a0, $name) or die "SIOCBRADDBR: $!";
"#;

async fn every_interface_is_measured(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    let security = fixture::security(&mut config);
    let capabilities = security.capabilities.get_or_insert_default();
    capabilities.add_capabilities = vec!["NET_ADMIN".to_owned()];
    let id = x.start_ready(&pod, config).await?;
    if let Err(status) = x.client.sh(&id, &format!("perl -e '{BRIDGE}'")).await {
        return skipped(format!("no second network interface in the pod: {}", status.message()));
    }
    let text = x.client.sh(&id, "cat /proc/net/dev").await?;
    let names = text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    let stats = sandbox_stats(x, &pod.id).await?;
    let others = |name: &String| name != "lo";
    let expected: Set<String> = names.filter(others).collect();
    let seen: Set<String> = interfaces(&stats).into_iter().filter(others).collect();
    equal("default_interface and interfaces", &seen, &expected)
}
