//! Rules for the values of a container's statistics: file pages, available memory, CPU rate, written files.

use std::io::Read as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use harness::eventually::within;

use crate::prelude::*;
use crate::rules::content::{image, script};
use crate::rules::limits::{memory_limit, of_cgroup, with};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-STA-024": "ContainerStats excludes inactive file pages from working_set_bytes, and all file pages from rss_bytes.",
        KUBELET, tags ["kubelet", "statistics", "resources"], calls [ContainerStats],
        unused_pages_of_files_are_left_out, faults [
            "ContainerStats drop stats.memory.working_set_bytes",
            "ContainerStats set stats.memory.working_set_bytes.value \"123456789\"",
            "ContainerStats set stats.memory.usage_bytes.value \"1000\"",
            "ContainerStats set stats.memory.rss_bytes.value \"67108864\"",
        ];
    Should "CRI-STA-025": "available_bytes in ContainerStats is the container's memory limit minus its working set.",
        API, tags ["kubelet", "statistics", "resources"], calls [ContainerStats, CreateContainer],
        available_memory_is_left_of_limit given [limits], faults [
            "ContainerStats drop stats.memory.available_bytes",
            "ContainerStats set stats.memory.available_bytes.value \"12345678\"",
            "ContainerStats set stats.memory.working_set_bytes.value \"1000000\"",
            "CreateContainer request set config.linux.resources.memory_limit_in_bytes 536870912",
        ];
    Should "CRI-STA-026": "usage_nano_cores in ContainerStats is the CPU time, in nanoseconds, that a container uses per second.",
        API, tags ["kubelet", "statistics", "resources"], calls [ContainerStats],
        rate_is_that_of_cpu_time given [limits, pod], faults [
            "ContainerStats set stats.cpu.usage_nano_cores.value \"1\"",
            "ContainerStats set stats.cpu.usage_nano_cores.value \"123456789012\"",
            "ContainerStats set stats.cpu.usage_core_nano_seconds.value \"1000\"",
        ];
    Should "CRI-STA-027": "used_bytes and inodes_used of the writable layer in ContainerStats count the files that the container writes, not the image's.",
        KUBELET, tags ["kubelet", "statistics", "files"], calls [ContainerStats],
        files_are_counted given [namespaces], faults [
            "ContainerStats set stats.writable_layer.used_bytes.value \"1000\"",
            "ContainerStats set stats.writable_layer.inodes_used.value \"7\"",
            "ContainerStats drop stats.writable_layer.inodes_used",
            "ContainerStats stale",
        ];
};

const MIB: u64 = 1 << 20;

fn value(value: Option<v1::UInt64Value>) -> u64 {
    value.map_or(0, |value| value.value)
}

fn limit(bytes: u64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        memory_limit_in_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        ..Default::default()
    }
}

async fn memory(x: &Context, id: &str) -> Result<v1::MemoryUsage, String> {
    let stats = x.client.container_stats(id).await;
    let stats = stats.map_err(|status| status.to_string())?;
    Ok(stats.memory.unwrap_or_default())
}

/// The inactive file bytes that the kernel charges to a container.
async fn inactive(x: &Context, id: &str) -> Verdict<u64> {
    let text = of_cgroup(x, id, "memory.stat", "memory/memory.stat").await?;
    let text = text.unwrap_or_default();
    let of = |name: &str| {
        let mut lines = text.lines();
        let number = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        number.trim().parse().ok()
    };
    // Only cgroup v1 has both: the total includes child cgroups.
    let bytes = of("total_inactive_file").or_else(|| of("inactive_file"));
    Ok(bytes.unwrap_or(0))
}

/// Skips the rule if the kernel counts no file pages: on tmpfs they are shared memory.
fn no_pages(seen: u64) -> Outcome {
    Outcome::Skipped(format!(
        "the kernel counts {seen} bytes in inactive_file after the container has written a file of 64 MiB"
    ))
}

async fn unused_pages_of_files_are_left_out(x: &Context) -> Verdict {
    // Far above the size of the file, so that the kernel need not write it back immediately.
    const LIMIT: u64 = 1 << 30;
    const LEAST: u64 = 24 * MIB;
    const RESIDENT: u64 = 32 * MIB;
    x.needs_limits()?;
    x.needs_namespaces()?;
    let text = "v=0123456789abcdef; while [ ${#v} -lt 65536 ]; do v=$v$v; done; n=0; while [ $n -lt 1024 ]; do n=$((n + 1)); printf %s $v; done >/written && echo ready; sleep 1000";
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, with(x.script("c", text), limit(LIMIT))).await?;
    if memory_limit(x, &id).await? != LIMIT.to_string() {
        return skipped("the container does not see its own cgroup below /sys/fs/cgroup");
    }
    // The kernel counts in batches, and updates the sums every two seconds.
    let counted =
        within(Duration::from_secs(3), "inactive_file", async || match inactive(x, &id).await {
            Ok(bytes) if bytes < LEAST + 8 * MIB => Err(bytes),
            result => Ok(result),
        });
    match counted.await {
        Ok(result) => result.map(drop)?,
        Err(_) => return Err(no_pages(inactive(x, &id).await?)),
    }
    let what = "usage_bytes to be 24 MiB above working_set_bytes, and rss_bytes below 32 MiB, of a container that wrote 64 MiB";
    x.until(what, async || {
        let memory = memory(x, &id).await?;
        let working = value(memory.working_set_bytes);
        let left_out = value(memory.usage_bytes).saturating_sub(working);
        if working > 0 && left_out >= LEAST && value(memory.rss_bytes) < RESIDENT {
            return Ok(Ok(()));
        }
        // The kernel may have reclaimed the pages in the meantime.
        match inactive(x, &id).await {
            Ok(bytes) if bytes >= LEAST => Err(format!("{memory:?}")),
            Ok(bytes) => Ok(Err(no_pages(bytes))),
            Err(outcome) => Ok(Err(outcome)),
        }
    })
    .await?
}

async fn available_memory_is_left_of_limit(x: &Context) -> Verdict {
    const LIMIT: u64 = 256 * MIB;
    const HELD: u64 = 32 * MIB;
    const SLACK: u64 = 4 * MIB;
    let text = format!(
        "v=0123456789abcdef; while [ ${{#v}} -lt {HELD} ]; do v=$v$v; done; echo ready; sleep 1000"
    );
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, with(x.script("c", &text), limit(LIMIT))).await?;
    let what =
        "available_bytes to be 256 MiB minus working_set_bytes, of a container that holds 32 MiB";
    // Some runtimes measure every few seconds.
    x.until(what, async || {
        let memory = memory(x, &id).await?;
        let working = value(memory.working_set_bytes);
        let sum = value(memory.available_bytes).saturating_add(working);
        match working >= HELD && sum.abs_diff(LIMIT) <= SLACK {
            true => Ok(()),
            false => Err(format!("{memory:?}")),
        }
    })
    .await
}

async fn cpu(x: &Context, id: &str) -> Result<v1::CpuUsage, String> {
    let stats = x.client.container_stats(id).await;
    let stats = stats.map_err(|status| status.to_string())?;
    Ok(stats.cpu.unwrap_or_default())
}

/// The CPU time used per second between two measurements, in nanoseconds; none if they are not half a second apart.
fn rate(before: &v1::CpuUsage, after: &v1::CpuUsage) -> Option<u128> {
    const INTERVAL: i64 = 500_000_000;
    let elapsed = after.timestamp.saturating_sub(before.timestamp);
    let used =
        value(after.usage_core_nano_seconds).saturating_sub(value(before.usage_core_nano_seconds));
    let elapsed = u128::try_from(elapsed).ok().filter(|_| elapsed >= INTERVAL)?;
    (u128::from(used) * 1_000_000_000).checked_div(elapsed)
}

async fn rate_is_that_of_cpu_time(x: &Context, pod: Pod) -> Verdict {
    const FACTOR: u128 = 4;
    let busy = x.script("c", "echo ready; while :; do :; done");
    let id = x.start_ready(&pod, busy).await?;
    let supported =
        within(Duration::from_secs(5), "usage_nano_cores", async || match cpu(x, &id).await {
            Ok(cpu) if value(cpu.usage_nano_cores) > 0 => Ok(()),
            seen => Err(seen),
        });
    if supported.await.is_err() {
        return skipped("the runtime does not report usage_nano_cores");
    }
    let what = "usage_nano_cores to match usage_core_nano_seconds per second within a factor of 4";
    x.until(what, async || {
        let before = cpu(x, &id).await?;
        // Runtimes compute the rate from two measurements, of which the first is from the previous call.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let after = cpu(x, &id).await?;
        let reported = u128::from(value(after.usage_nano_cores));
        let near = |rate| rate > 0 && reported <= rate * FACTOR && rate <= reported * FACTOR;
        match rate(&before, &after).is_some_and(near) {
            true => Ok(()),
            false => Err(format!("{after:?} after {before:?}")),
        }
    })
    .await
}

/// Random letters, which no filesystem can compress much.
fn letters(count: usize) -> Verdict<String> {
    let mut noise = Vec::new();
    let bytes = u64::try_from(count / 4 * 3).unwrap_or_default();
    std::fs::File::open("/dev/urandom")
        .and_then(|file| file.take(bytes).read_to_end(&mut noise))
        .map_err(|error| Outcome::Skipped(format!("no random bytes: {error}")))?;
    Ok(BASE64_STANDARD.encode(noise))
}

/// Bytes and inodes of a container's writable layer.
async fn layer(x: &Context, id: &str) -> Result<(u64, u64), String> {
    let stats = x.client.container_stats(id).await;
    let stats = stats.map_err(|status| status.to_string())?;
    let layer = stats.writable_layer.ok_or("no writable_layer")?;
    Ok((value(layer.used_bytes), value(layer.inodes_used)))
}

async fn files_are_counted(x: &Context) -> Verdict {
    const FRESH: u64 = 4 * MIB;
    const BYTES: u64 = 8 * MIB;
    const FILES: u64 = 200;
    let noise = harness::fixture_image::Layer::new().file("noise", 0o644, letters(65_536)?);
    let image = image(x, "1", |image| image.layer(noise)).await?;
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, script(x, &image, "echo ready; sleep 1000")).await?;
    let first = within(Duration::from_secs(5), "writable_layer", async || layer(x, &id).await);
    let first = match first.await {
        Ok(first) => first,
        Err(error) => return Err(Outcome::Skipped(error.to_string())),
    };
    if first.0 >= FRESH {
        return diverges(format!(
            "an unused writable layer has {} bytes: the files of the image are counted",
            first.0
        ));
    }
    let write = format!(
        "v=$(cat /noise); n=0; while [ $n -lt {FILES} ]; do n=$((n + 1)); printf %s \"$v\" >/work/$n; done"
    );
    x.client.sh(&id, &write).await?;
    let what = "the writable layer to grow by 8 MiB and 200 inodes with 200 files of 64 KiB";
    // Some runtimes measure every ten seconds.
    x.until(what, async || {
        let (bytes, inodes) = layer(x, &id).await?;
        match bytes >= first.0 + BYTES && inodes >= first.1 + FILES {
            true => Ok(()),
            false => Err(format!("used_bytes {bytes} and inodes_used {inodes}, before {first:?}")),
        }
    })
    .await
}
