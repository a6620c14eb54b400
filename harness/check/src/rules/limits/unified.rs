//! Rules of limits that are written to the cgroup unchanged: unified resources and huge pages.

use crate::prelude::*;
use crate::rules::limits::{of_cgroup, with};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-LIM-011": "Each entry of the field unified is written unchanged to the cgroup file with the entry's name (tested with two values per file).",
        KUBELET, tags ["kubelet", "resources"], calls [CreateContainer, ExecSync],
        unified_resources_are_written, faults [
            "CreateContainer request drop config.linux.resources.unified",
            "CreateContainer request drop config.linux.resources",
            "CreateContainer after 1 request drop config.linux.resources.unified",
        ];
    Should "CRI-LIM-012": "The container's cgroup has exactly the huge page limit that CreateContainer requests (tested with two values); page sizes that CreateContainer omits keep the default limit.",
        API, tags ["kubelet", "resources"], calls [CreateContainer, ExecSync],
        limit_of_huge_pages_is_set, faults [
            "CreateContainer request drop config.linux.resources.hugepage_limits",
            "CreateContainer request drop config.linux.resources",
            "CreateContainer request set config.linux.resources.hugepage_limits.limit \"2097152\"",
        ];
};

/// Skips the rule if a container has no such file in its cgroup.
async fn needs_file(x: &Context, unified: &str, legacy: &str) -> Verdict {
    x.needs_limits()?;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    match of_cgroup(x, &id, unified, legacy).await? {
        Some(_) => Ok(()),
        None => skipped(format!("containers of this machine have no {unified} in their cgroup")),
    }
}

async fn unified_resources_are_written(x: &Context) -> Verdict {
    needs_file(x, "memory.high", "no-such-file").await?;
    let pod = x.pod().await?;
    for (name, high, low) in [("c", 48 << 20, 4 << 20), ("d", 80 << 20, 12 << 20)] {
        let wanted = [("memory.high", high), ("memory.low", low)];
        let unified = wanted.map(|(file, value)| (file.to_owned(), value.to_string()));
        let resources =
            v1::LinuxContainerResources { unified: unified.into(), ..Default::default() };
        let id = pod.start(with(x.forever(name), resources)).await?;
        for (file, value) in wanted {
            let seen = of_cgroup(x, &id, file, "no-such-file").await?;
            equal(file, &seen, &Some(value.to_string()))?;
        }
    }
    Ok(())
}

async fn limit_of_huge_pages_is_set(x: &Context) -> Verdict {
    let (unified, legacy) = ("hugetlb.2MB.max", "hugetlb/hugetlb.2MB.limit_in_bytes");
    needs_file(x, unified, legacy).await?;
    let other = ("hugetlb.1GB.max", "hugetlb/hugetlb.1GB.limit_in_bytes");
    let pod = x.pod().await?;
    let free = pod.start(x.forever("free")).await?;
    let unlimited = of_cgroup(x, &free, other.0, other.1).await?;
    for (name, limit) in [("c", 4_u64 << 20), ("d", 10 << 20)] {
        let resources = v1::LinuxContainerResources {
            hugepage_limits: vec![v1::HugepageLimit { page_size: "2MB".to_owned(), limit }],
            ..Default::default()
        };
        let id = pod.start(with(x.forever(name), resources)).await?;
        let seen = of_cgroup(x, &id, unified, legacy).await?;
        equal("the limit of 2 MB huge pages", &seen, &Some(limit.to_string()))?;
        let seen = of_cgroup(x, &id, other.0, other.1).await?;
        equal("the limit of 1 GB huge pages, which the request does not name", &seen, &unlimited)?;
    }
    Ok(())
}
