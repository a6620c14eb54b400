//! Rules of memory limits: a limit below the current usage, and a limit of memory plus swap.

use crate::prelude::*;
use crate::rules::limits::{MIB, memory_limit, of_cgroup, with};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-LIM-019": "If UpdateContainerResources requests a memory limit below the current usage, the call either fails and changes nothing, or succeeds and ContainerStatus reports the new limit.",
        CRIO, tags ["kubelet", "resources", "resize"], calls [UpdateContainerResources, ContainerStatus],
        limit_below_usage_is_refused_or_reported given [limits], faults [
            "UpdateContainerResources swallow",
            "ContainerStatus set status.resources.linux.memory_limit_in_bytes 67108864",
        ];
    Should "CRI-LIM-020": "memory_swap_limit_in_bytes sets the cgroup's limit of memory plus swap, both in CreateContainer and in UpdateContainerResources.",
        API, tags ["kubelet", "resources"], calls [CreateContainer, UpdateContainerResources],
        swap_is_limited given [limits], faults [
            "CreateContainer request drop config.linux.resources.memory_swap_limit_in_bytes",
            "CreateContainer request set config.linux.resources.memory_swap_limit_in_bytes 67108864",
            "UpdateContainerResources request drop linux.memory_swap_limit_in_bytes",
            "UpdateContainerResources request set linux.memory_swap_limit_in_bytes 83886080",
        ];
};

/// The same limit of memory, and of memory plus swap.
pub(crate) fn memory(limit: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        memory_limit_in_bytes: limit,
        memory_swap_limit_in_bytes: limit,
        ..Default::default()
    }
}

async fn limit_below_usage_is_refused_or_reported(x: &Context) -> Verdict {
    let (before, below) = (256 * MIB, 8 * MIB);
    let pod = x.pod().await?;
    let text = "v=0123456789abcdef; while [ ${#v} -lt 33554432 ]; do v=$v$v; done; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = x.start_ready(&pod, with(x.script("c", text), memory(before))).await?;
    let reported_limit = async || {
        let status = x.client.container(&id).await?;
        let linux = status.resources.and_then(|resources| resources.linux);
        Verdict::Ok(linux.unwrap_or_default().memory_limit_in_bytes)
    };
    let what = "the memory limit in ContainerStatus";
    if x.client.update(&id, memory(below)).await.is_ok() {
        // The kernel may then reclaim memory or kill the container.
        return equal(what, &reported_limit().await?, &below);
    }
    equal(&format!("{what} after a refused update"), &reported_limit().await?, &before)?;
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
    // Cgroup v1 counts memory plus swap, and v2 only swap.
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
    skipped("the container sees no swap limit below /sys/fs/cgroup")
}
