//! Rules for reclaimed resources: the disk space of a removed image, and the memory of a process that has ended.

use crate::prelude::*;
use crate::rules::image::{add, pull};
use crate::rules::statistics::accuracy::{listed_container_stats, sandbox_stats};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-RTM-012": "From an image's pull until its removal, ImageFsInfo counts the image's bytes and inodes, which the kubelet reports as usage of the image filesystem.",
        KUBELET, tags ["kubelet", "statistics", "image"], calls [ImageFsInfo, PullImage, RemoveImage],
        image_usage_follows_pull_and_removal, faults [
            "ImageFsInfo stale",
            "ImageFsInfo set image_filesystems.used_bytes.value \"123456789\"",
            "ImageFsInfo set image_filesystems.inodes_used.value \"12345\"",
            "PullImage request set image.image \"127.0.0.1:1/none:1\"",
            "ImageFsInfo after 1 set image_filesystems.used_bytes.value \"9000000000000\"",
        ];
    Should "CRI-STA-023": "ContainerStats, ListContainerStats and PodSandboxStats report the current memory usage, not the peak: the reported usage falls when a process ends.",
        API, tags ["kubelet", "statistics", "resources"], calls [ContainerStats, ListContainerStats, PodSandboxStats],
        memory_usage_falls_after_release given [limits, namespaces], faults [
            "ContainerStats stale",
            "ContainerStats set stats.memory.usage_bytes.value \"123456789\"",
            "ListContainerStats set stats.memory.working_set_bytes.value \"123456789\"",
            "PodSandboxStats set stats.linux.memory.usage_bytes.value \"123456789\"",
        ];
};

async fn image_filesystems(x: &Context) -> Result<Vec<v1::FilesystemUsage>, Status> {
    Ok(x.client.image_fs_info().await?.image_filesystems)
}

/// Bytes and inodes that the image filesystems use.
fn used(all: &[v1::FilesystemUsage]) -> (u64, u64) {
    let sum = |field: fn(&v1::FilesystemUsage) -> Option<v1::UInt64Value>| {
        all.iter().filter_map(field).map(|used| used.value).sum()
    };
    (sum(|one| one.used_bytes), sum(|one| one.inodes_used))
}

/// Whether an image filesystem is CRI-O's directory for image metadata, which has no layers.
fn has_no_layers(one: &v1::FilesystemUsage) -> bool {
    let place = one.fs_id.as_ref().map(|id| id.mountpoint.as_str());
    place.is_some_and(|place| place.ends_with("-images"))
}

async fn image_usage_follows_pull_and_removal(x: &Context) -> Verdict {
    // Other rules pull and remove small images concurrently.
    const CONTENT: usize = 64 << 20;
    const BYTES: u64 = 40 << 20;
    const FILES: usize = 3000;
    const INODES: u64 = 2000;
    let (name, _) = add(x, "1", |image| {
        let large = Layer::new().file("large", 0o644, vec![0; CONTENT]);
        let many = (0..FILES)
            .fold(large, |layer, number| layer.file(&format!("many/{number}"), 0o644, ""));
        image.layer(many)
    })?;
    // A runtime may fail to measure while other rules remove images.
    let filesystems = x.until("an answer of ImageFsInfo", async || image_filesystems(x).await);
    let filesystems = filesystems.await?;
    if filesystems.iter().any(has_no_layers) {
        return diverges("the layers of images are not counted");
    }
    let before = used(&filesystems);
    pull(x, &name).await?;
    let more = |(bytes, inodes): (u64, u64), than: (u64, u64)| {
        bytes >= than.0.saturating_add(BYTES) && inodes >= than.1.saturating_add(INODES)
    };
    let look = async || image_filesystems(x).await.map(|all| used(&all));
    // Some runtimes measure every ten seconds.
    let what = "bytes and inodes to grow by 40 MiB and 2000 with an image of 64 MiB and 3000 files";
    let with_image = x
        .until(what, async || match look().await {
            Ok(used) if more(used, before) => Ok(used),
            seen => Err(format!("{seen:?}, {before:?} before")),
        })
        .await?;
    x.client.remove_image(&name).await?;
    let what = "bytes and inodes to fall by 40 MiB and 2000 after the image was removed";
    x.until(what, async || match look().await {
        Ok(used) if more(with_image, used) => Ok(()),
        seen => Err(format!("{seen:?}, {with_image:?} before")),
    })
    .await
}

/// Used bytes and working set bytes.
fn both(memory: Option<v1::MemoryUsage>) -> [u64; 2] {
    let memory = memory.unwrap_or_default();
    [memory.usage_bytes, memory.working_set_bytes].map(|value| value.map_or(0, |value| value.value))
}

/// The memory usage of a pod's only container in each call; the third one is of the pod.
async fn memory_usages(x: &Context, pod: &str, id: &str) -> Verdict<[[u64; 2]; 3]> {
    let one = both(x.client.container_stats(id).await?.memory);
    let listed = both(listed_container_stats(x, id).await?.memory);
    let of_pod = match sandbox_stats(x, pod).await {
        Ok(stats) => both(stats.linux.unwrap_or_default().memory),
        // Some runtimes measure only pods that have a parent cgroup.
        Err(Outcome::Diverges(_)) => one,
        Err(other) => return Err(other),
    };
    Ok([one, listed, of_pod])
}

async fn memory_usage_falls_after_release(x: &Context) -> Verdict {
    const HELD: u64 = 32 << 20;
    const FREED: u64 = 24 << 20;
    let text = "( v=0123456789abcdef; while [ ${#v} -lt 33554432 ]; do v=$v$v; done; echo held; until [ -e /tmp/go ]; do sleep 0.05; done ); echo free; sleep 1000";
    let pod = x.pod().await?;
    let id = pod.start(x.script("c", text)).await?;
    x.logged(&pod, "held").await?;
    let look = async || memory_usages(x, &pod.id, &id).await;
    let held = |all: &[[u64; 2]; 3]| all.iter().flatten().all(|used| *used >= HELD);
    let seen = x
        .until("each call to report at least 32 MiB", async || match look().await {
            Ok(all) if held(&all) => Ok(all),
            seen => Err(format!("{seen:?}")),
        })
        .await?;
    x.client.sh(&id, ": >/tmp/go").await?;
    x.logged(&pod, "free").await?;
    let freed = |all: &[[u64; 2]; 3]| {
        let pairs = all.iter().flatten().zip(seen.iter().flatten());
        pairs.into_iter().all(|(now, before)| now + FREED <= *before)
    };
    let what = "usage_bytes and working_set_bytes of each call to fall by 24 MiB when a process of 32 MiB has ended";
    x.until(what, async || match look().await {
        Ok(all) if freed(&all) => Ok(()),
        seen => Err(format!("{seen:?}")),
    })
    .await
}
