//! Rules for measurements: calls agree with each other and with the kernel.

use crate::numbers::{Numbers, difference, numbers};
use crate::prelude::*;
use crate::rules::content::image;
use crate::rules::limits::{of_cgroup, some_limits};
use crate::rules::sandbox::echo::of_now;
use crate::rules::statistics::without_cgroup_parent;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-STA-013": "ContainerStats and ListContainerStats set the same fields for a container, with similar values.",
        KUBELET, tags ["kubelet", "agreement"], calls [ContainerStats, ListContainerStats],
        container_is_measured_alike given [pod], faults [
            "ContainerStats drop stats.memory.rss_bytes",
            "ContainerStats drop stats.writable_layer.inodes_used",
            "ListContainerStats drop stats.memory.usage_bytes",
            "ListContainerStats set stats.memory.page_faults.value \"123456789\"",
            "ListContainerStats set stats.memory.timestamp 1800000000",
            "ListContainerStats drop stats.writable_layer.fs_id.mountpoint",
            "ListContainerStats drop stats.memory.rss_bytes.value",
            "ListContainerStats drop stats.writable_layer.inodes_used.value",
            "ListContainerStats drop stats.attributes.metadata.attempt",
        ];
    Should "CRI-STA-014": "PodSandboxStats, ListPodSandboxStats and ContainerStats report consistent measurements of a sandbox and its container.",
        KUBELET, tags ["kubelet", "agreement"], calls [PodSandboxStats, ListPodSandboxStats, ContainerStats],
        sandbox_is_measured_alike given [pod], faults [
            "PodSandboxStats drop stats.linux.memory.rss_bytes",
            "PodSandboxStats drop stats.linux.network",
            "ListPodSandboxStats drop stats.linux.process",
            "ListPodSandboxStats set stats.linux.network.default_interface.name \"none\"",
            "ListPodSandboxStats set stats.linux.memory.usage_bytes.value \"0\"",
            "PodSandboxStats drop stats.linux.containers.memory.working_set_bytes",
            "ListPodSandboxStats drop stats.linux.containers.attributes.labels",
        ];
    Should "CRI-STA-015": "Memory statistics in ContainerStats match the container's cgroup, and available_bytes is the unused part of the container's memory limit.",
        KUBELET, tags ["kubelet", "resources"], calls [ContainerStats, ExecSync],
        memory_is_that_of_cgroup given [limits, pod], faults [
            "ContainerStats drop stats.memory.usage_bytes",
            "ContainerStats set stats.memory.usage_bytes.value \"1\"",
            "ContainerStats set stats.memory.available_bytes.value \"123456789\"",
            "ContainerStats drop stats.memory.rss_bytes",
            "ContainerStats drop stats.memory.page_faults",
            "ContainerStats set stats.memory.timestamp 1800000000",
        ];
    Should "CRI-STA-022": "Every stats call reports more memory and CPU time for the busier of two containers, and the pod's usage includes both containers.",
        KUBELET, tags ["kubelet", "resources"], calls [ContainerStats, ListContainerStats, PodSandboxStats],
        busier_container_is_identified, faults [
            "ContainerStats set stats.memory.working_set_bytes.value \"1000\"",
            "ContainerStats set stats.cpu.usage_core_nano_seconds.value \"1000\"",
            "ListContainerStats set stats.memory.working_set_bytes.value \"40000000\"",
            "ListContainerStats set stats.cpu.usage_core_nano_seconds.value \"1000\"",
            "PodSandboxStats set stats.linux.memory.working_set_bytes.value \"1\"",
            "PodSandboxStats set stats.linux.cpu.usage_core_nano_seconds.value \"1\"",
            "PodSandboxStats set stats.linux.containers.memory.working_set_bytes.value \"1\"",
        ];
};

pub(crate) async fn listed_container_stats(x: &Context, id: &str) -> Verdict<v1::ContainerStats> {
    let filter = v1::ContainerStatsFilter { id: id.to_owned(), ..Default::default() };
    match x.client.list_container_stats(filter).await?.pop() {
        Some(value) => Ok(value),
        None => failed("ListContainerStats by id", "the container", "nothing"),
    }
}

pub(crate) async fn sandbox_stats(x: &Context, id: &str) -> Verdict<v1::PodSandboxStats> {
    without_cgroup_parent(x.client.pod_stats(id).await)
}

async fn listed_sandbox_stats(x: &Context, id: &str) -> Verdict<v1::PodSandboxStats> {
    let filter = v1::PodSandboxStatsFilter { id: id.to_owned(), ..Default::default() };
    match without_cgroup_parent(x.client.list_pod_stats(filter).await)?.pop() {
        Some(value) => Ok(value),
        None => failed("ListPodSandboxStats by id", "the sandbox", "nothing"),
    }
}

/// Fails unless all measurements of one object, in chronological order, agree.
pub(crate) fn agree(measurements: &[(&str, Numbers)]) -> Verdict {
    for pair in measurements.windows(2) {
        if let [(_, earlier), (what, later)] = pair
            && let Some(difference) = difference(earlier, later)
        {
            return failed(*what, "the preceding measurement", difference);
        }
    }
    Ok(())
}

/// The mount point of a container's writable layer.
fn layer(stats: &v1::ContainerStats) -> Option<String> {
    let layer = stats.writable_layer.as_ref()?;
    Some(layer.fs_id.clone().unwrap_or_default().mountpoint)
}

/// Starts an idle container, from an image with layers if possible: not every image has a measured writable layer.
async fn idle(x: &Context, pod: &Pod) -> Verdict<String> {
    let mut config = x.forever("c");
    config.metadata.get_or_insert_default().attempt = 3;
    if x.needs_namespaces().is_ok()
        && let Ok(image) = image(x, "1", |image| image).await
    {
        config.image.get_or_insert_default().image = image;
    }
    let id = pod.start(config).await?;
    x.logged(pod, "ready").await?;
    Ok(id)
}

async fn container_is_measured_alike(x: &Context, pod: Pod) -> Verdict {
    let id = idle(x, &pod).await?;
    let first = x.client.container_stats(&id).await?;
    let listed = listed_container_stats(x, &id).await?;
    let last = x.client.container_stats(&id).await?;
    let of = |stats: &v1::ContainerStats| numbers("ContainerStats", stats);
    agree(&[
        ("ContainerStats", of(&first)),
        ("ListContainerStats", of(&listed)),
        ("ContainerStats", of(&last)),
    ])?;
    equal("writable_layer.fs_id.mountpoint in ListContainerStats", &layer(&listed), &layer(&last))?;
    equal("attributes in ListContainerStats", &listed.attributes, &last.attributes)
}

/// The names of the network interfaces of a sandbox.
pub(crate) fn interfaces(stats: &v1::PodSandboxStats) -> Vec<String> {
    let network = stats.linux.as_ref().and_then(|linux| linux.network.clone());
    let network = network.unwrap_or_default();
    let all = network.default_interface.into_iter();
    all.chain(network.interfaces).map(|interface| interface.name).collect()
}

/// The only container of a sandbox.
fn container(stats: v1::PodSandboxStats) -> Verdict<v1::ContainerStats> {
    let containers = stats.linux.unwrap_or_default().containers;
    match <[v1::ContainerStats; 1]>::try_from(containers) {
        Ok([container]) => Ok(container),
        Err(others) => {
            failed("the containers in the sandbox's statistics", "one", format!("{others:?}"))
        }
    }
}

async fn sandbox_is_measured_alike(x: &Context, pod: Pod) -> Verdict {
    let id = idle(x, &pod).await?;
    let first = sandbox_stats(x, &pod.id).await?;
    let listed = listed_sandbox_stats(x, &pod.id).await?;
    let last = sandbox_stats(x, &pod.id).await?;
    let of = |stats: &v1::PodSandboxStats| numbers("PodSandboxStats", stats);
    agree(&[
        ("PodSandboxStats", of(&first)),
        ("ListPodSandboxStats", of(&listed)),
        ("PodSandboxStats", of(&last)),
    ])?;
    equal(
        "the network interfaces in ListPodSandboxStats",
        &interfaces(&listed),
        &interfaces(&last),
    )?;
    let (listed, last) = (container(listed)?, container(last)?);
    let alone = x.client.container_stats(&id).await?;
    for (what, stats) in [("ListPodSandboxStats", &listed), ("PodSandboxStats", &last)] {
        let what = format!("the container's attributes in {what}");
        equal(&what, &stats.attributes, &alone.attributes)?;
    }
    let of = |stats: &v1::ContainerStats| numbers("ContainerStats", stats);
    agree(&[
        ("the container in ListPodSandboxStats", of(&listed)),
        ("the container in PodSandboxStats", of(&last)),
        ("ContainerStats", of(&alone)),
    ])
}

async fn memory_is_that_of_cgroup(x: &Context, pod: Pod) -> Verdict {
    const LIMIT: u64 = 64 << 20;
    let id = x.start_ready(&pod, some_limits(x.forever("c"))).await?;
    let file = ("memory.current", "memory/memory.usage_in_bytes");
    let Some(current) = of_cgroup(x, &id, file.0, file.1).await? else {
        return skipped("the container does not see its cgroup below /sys/fs/cgroup");
    };
    let current: u64 = current.parse().unwrap_or_default();
    let memory = x.client.container_stats(&id).await?.memory.unwrap_or_default();
    of_now("the time of memory", memory.timestamp)?;
    let value = |value: Option<v1::UInt64Value>| value.map_or(0, |value| value.value);
    let used = value(memory.usage_bytes);
    // `current` includes the command that read it, which has exited when the runtime measures.
    let near = (current / 8..=current.saturating_mul(8)).contains(&used);
    ensure(near, "usage_bytes", &format!("near {current}"), memory)?;
    let working = value(memory.working_set_bytes);
    let within = (1..=used).contains(&working);
    ensure(within, "working_set_bytes", "at most usage_bytes", memory)?;
    let resident = value(memory.rss_bytes);
    let within = (1..=LIMIT).contains(&resident);
    ensure(within, "rss_bytes", "not 0, and below the limit", memory)?;
    let left = value(memory.available_bytes);
    let sum = left.saturating_add(working);
    let near = (LIMIT - (LIMIT >> 3)..=LIMIT + (LIMIT >> 3)).contains(&sum);
    ensure(near, "available_bytes", "the rest of 64 MiB", memory)?;
    let faults = value(memory.page_faults);
    ensure(faults > 0, "page_faults", "not 0", memory)?;
    let major = value(memory.major_page_faults);
    ensure(major <= faults, "major_page_faults", "at most page_faults", memory)
}

/// The minimum working set of the busy container of [`busier_container_is_identified`].
const BUSY: u64 = 32 << 20;

/// CPU time and working set.
type Used = (u64, u64);

fn used(cpu: Option<v1::CpuUsage>, memory: Option<v1::MemoryUsage>) -> Used {
    let value = |value: Option<v1::UInt64Value>| value.map_or(0, |value| value.value);
    (
        value(cpu.and_then(|cpu| cpu.usage_core_nano_seconds)),
        value(memory.and_then(|memory| memory.working_set_bytes)),
    )
}

/// The usage of two containers, if the first one uses more.
fn busier(what: &str, of: [&v1::ContainerStats; 2]) -> Result<[Used; 2], String> {
    let both = of.map(|stats| used(stats.cpu, stats.memory));
    let [(busy_time, busy_set), (idle_time, idle_set)] = both;
    let holds = busy_time > idle_time && busy_set >= BUSY && idle_set < BUSY * 3 / 4;
    holds.then_some(both).ok_or_else(|| {
        format!("{what}: CPU time and working set of the busy and the idle one: {both:?}")
    })
}

/// The statistics of two containers in a list.
fn two_of<'a>(
    all: &'a [v1::ContainerStats],
    ids: [&str; 2],
) -> Result<[&'a v1::ContainerStats; 2], String> {
    let of = |id: &str| {
        let mut all = all.iter();
        all.find(|one| one.attributes.as_ref().is_some_and(|is| is.id == id))
            .ok_or_else(|| format!("no statistics of container {id}"))
    };
    let [first, second] = ids;
    Ok([of(first)?, of(second)?])
}

/// Compares the usage of two containers in each call. Not every runtime reports it for pods.
async fn usage_of_both(x: &Context, pod: &Pod, ids: [&str; 2]) -> Verdict<Result<(), String>> {
    let [busy, idle] = ids;
    let first = x.client.container_stats(busy).await?;
    let second = x.client.container_stats(idle).await?;
    let filter = v1::ContainerStatsFilter { pod_sandbox_id: pod.id.clone(), ..Default::default() };
    let listed = x.client.list_container_stats(filter).await?;
    let of_containers = || {
        let alone = busier("ContainerStats", [&first, &second])?;
        busier("ListContainerStats", two_of(&listed, ids)?)?;
        Ok(alone)
    };
    let [of_busy, of_idle] = match of_containers() {
        Ok(used) => used,
        Err(why) => return Ok(Err(why)),
    };
    let of_pod = sandbox_stats(x, &pod.id).await?.linux.unwrap_or_default();
    let all = used(of_pod.cpu, of_pod.memory);
    let of_pod = || {
        busier("PodSandboxStats", two_of(&of_pod.containers, ids)?)?;
        match all.0 >= of_busy.0 + of_idle.0 && all.1 >= BUSY {
            true => Ok(()),
            false => Err(format!("PodSandboxStats: CPU time and working set of the pod: {all:?}")),
        }
    };
    Ok(of_pod())
}

async fn busier_container_is_identified(x: &Context) -> Verdict {
    x.needs_limits()?;
    let pod = x.pod().await?;
    let script = format!(
        "v=0123456789abcdef; while [ ${{#v}} -lt {BUSY} ]; do v=$v$v; done; echo ready; while :; do :; done"
    );
    let busy = pod.start(x.script("c", &script)).await?;
    let idle = x.start_ready(&pod, x.forever("d")).await?;
    // Some runtimes measure every few seconds.
    x.until("the busy container to use more than the idle one", async || {
        match usage_of_both(x, &pod, [&busy, &idle]).await {
            Ok(Ok(())) => Ok(Ok(())),
            Ok(Err(why)) => Err(why),
            Err(outcome) => Ok(Err(outcome)),
        }
    })
    .await?
}
