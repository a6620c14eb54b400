//! Rules of memory limits: one that a container exceeds already when it is set, and one of memory and swap together.

use cri::v1;
use cri::v1::ContainerState;

use super::limits::{MIB, memory_limit, of_cgroup, update, with};
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, equal};
use crate::check::rule::sources::{API, CRIO};
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-LIM-019",
        severity: Severity::Must,
        says: "A memory limit below what a container uses is refused and changes nothing, or is in the container's status.",
        source: CRIO,
        tags: &["kubelet", "resources", "resize"],
        calls: &["UpdateContainerResources", "ContainerStatus"],
        faults: &[
            "UpdateContainerResources swallow",
            "ContainerStatus set status.resources.linux.memory_limit_in_bytes 67108864",
        ],
        body: |x| Box::pin(limit_below_usage_is_refused_or_told(x)),
    },
    Rule {
        id: "CRI-LIM-020",
        severity: Severity::Should,
        says: "A limit of memory and swap together is that of the container's cgroup, which takes what is beyond the memory limit in swap.",
        source: API,
        tags: &["kubelet", "resources"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request drop config.linux.resources.memory_swap_limit_in_bytes",
            "CreateContainer request set config.linux.resources.memory_swap_limit_in_bytes 67108864",
        ],
        body: |x| Box::pin(swap_is_limited(x)),
    },
];

/// A limit of memory, and of memory and swap together.
pub(super) fn memory(limit: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        memory_limit_in_bytes: limit,
        memory_swap_limit_in_bytes: limit,
        ..Default::default()
    }
}

async fn limit_below_usage_is_refused_or_told(x: &Context) -> Verdict {
    x.needs_limits()?;
    let (before, below) = (256 * MIB, 8 * MIB);
    let pod = x.pod().await?;
    let text = "v=0123456789abcdef; while [ ${#v} -lt 33554432 ]; do v=$v$v; done; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = pod.start(with(x.script("c", text), memory(before))).await?;
    x.logged(&pod, "ready").await?;
    let told = async || {
        let status = x.client.container(&id).await?;
        let linux = status.resources.and_then(|resources| resources.linux);
        Verdict::Ok(linux.unwrap_or_default().memory_limit_in_bytes)
    };
    let what = "the memory limit in ContainerStatus";
    if update(x, &id, memory(below)).await.is_ok() {
        // What the kernel then does to the container is its own choice.
        return equal(what, &told().await?, &below);
    }
    equal(
        &format!("{what} after a refused update"),
        &told().await?,
        &before,
    )?;
    let limit = memory_limit(x, &id).await?;
    let what = "the limit of the cgroup after a refused update";
    equal(what, &limit, &before.to_string())?;
    x.container_is(&id, ContainerState::ContainerRunning).await
}

async fn swap_is_limited(x: &Context) -> Verdict {
    x.needs_limits()?;
    let resources = v1::LinuxContainerResources {
        memory_swap_limit_in_bytes: 48 * MIB,
        ..memory(32 * MIB)
    };
    let pod = x.pod().await?;
    let id = pod.start(with(x.forever("c"), resources)).await?;
    // Cgroup v1 counts both together, v2 the swap alone.
    for (file, expected) in [
        ("memory.swap.max", 16 * MIB),
        ("memory/memory.memsw.limit_in_bytes", 48 * MIB),
    ] {
        if let Some(limit) = of_cgroup(x, &id, file, "none").await? {
            return equal(file, &limit, &expected.to_string());
        }
    }
    Err(Outcome::Skipped(
        "the container sees no limit of swap below /sys/fs/cgroup".to_owned(),
    ))
}
