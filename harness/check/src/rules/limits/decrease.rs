//! Rules of memory limits: one that a container exceeds already when it is set, and one of memory and swap together.

use crate::prelude::*;
use crate::rules::limits::{MIB, memory_limit, of_cgroup, with};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-LIM-019": "A memory limit below what a container uses is refused and changes nothing, or is in the container's status.",
        CRIO, tags ["kubelet", "resources", "resize"], calls [UpdateContainerResources, ContainerStatus],
        limit_below_usage_is_refused_or_told given [limits], faults [
            "UpdateContainerResources swallow",
            "ContainerStatus set status.resources.linux.memory_limit_in_bytes 67108864",
        ];
    Should "CRI-LIM-020": "A limit of memory and swap together is that of the container's cgroup, which takes what is beyond the memory limit in swap, for a new container and for a running one.",
        API, tags ["kubelet", "resources"], calls [CreateContainer, UpdateContainerResources],
        swap_is_limited given [limits], faults [
            "CreateContainer request drop config.linux.resources.memory_swap_limit_in_bytes",
            "CreateContainer request set config.linux.resources.memory_swap_limit_in_bytes 67108864",
            "UpdateContainerResources request drop linux.memory_swap_limit_in_bytes",
            "UpdateContainerResources request set linux.memory_swap_limit_in_bytes 83886080",
        ];
};

/// A limit of memory, and of memory and swap together.
pub(crate) fn memory(limit: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        memory_limit_in_bytes: limit,
        memory_swap_limit_in_bytes: limit,
        ..Default::default()
    }
}

async fn limit_below_usage_is_refused_or_told(x: &Context) -> Verdict {
    let (before, below) = (256 * MIB, 8 * MIB);
    let pod = x.pod().await?;
    let text = "v=0123456789abcdef; while [ ${#v} -lt 33554432 ]; do v=$v$v; done; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = x.start_ready(&pod, with(x.script("c", text), memory(before))).await?;
    let told = async || {
        let status = x.client.container(&id).await?;
        let linux = status.resources.and_then(|resources| resources.linux);
        Verdict::Ok(linux.unwrap_or_default().memory_limit_in_bytes)
    };
    let what = "the memory limit in ContainerStatus";
    if x.client.update(&id, memory(below)).await.is_ok() {
        // What the kernel then does to the container is its own choice.
        return equal(what, &told().await?, &below);
    }
    equal(&format!("{what} after a refused update"), &told().await?, &before)?;
    let limit = memory_limit(x, &id).await?;
    let what = "the limit of the cgroup after a refused update";
    equal(what, &limit, &before.to_string())?;
    x.container_is(&id, ContainerState::ContainerRunning).await
}

async fn swap_is_limited(x: &Context) -> Verdict {
    let both = |limit| v1::LinuxContainerResources {
        memory_swap_limit_in_bytes: limit,
        ..memory(32 * MIB)
    };
    let pod = x.pod().await?;
    let id = pod.start(with(x.forever("c"), both(48 * MIB))).await?;
    // Cgroup v1 counts both together, v2 the swap alone.
    for (file, expected) in
        [("memory.swap.max", 16 * MIB), ("memory/memory.memsw.limit_in_bytes", 48 * MIB)]
    {
        if let Some(limit) = of_cgroup(x, &id, file, "none").await? {
            equal(file, &limit, &expected.to_string())?;
            x.client.update(&id, both(72 * MIB)).await?;
            let limit = of_cgroup(x, &id, file, "none").await?.unwrap_or_default();
            return equal(file, &limit, &(expected + 24 * MIB).to_string());
        }
    }
    skipped("the container sees no limit of swap below /sys/fs/cgroup")
}
