//! Rules of limits that are written to the cgroup unchanged: unified resources and huge pages.

use crate::prelude::*;
use crate::rules::limits::{of_cgroup, with};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-LIM-011": "A unified resource is written to the file of the same name in the container's cgroup.",
        KUBELET, tags ["kubelet", "resources"], calls [CreateContainer, ExecSync],
        unified_resource_is_written, faults [
            "CreateContainer request drop config.linux.resources.unified",
            "CreateContainer request drop config.linux.resources",
        ];
    Should "CRI-LIM-012": "A huge page limit is set in the container's cgroup.",
        API, tags ["kubelet", "resources"], calls [CreateContainer, ExecSync],
        limit_of_huge_pages_is_set, faults [
            "CreateContainer request drop config.linux.resources.hugepage_limits",
            "CreateContainer request drop config.linux.resources",
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

async fn unified_resource_is_written(x: &Context) -> Verdict {
    needs_file(x, "memory.high", "no-such-file").await?;
    let limit = (48 << 20).to_string();
    let resources = v1::LinuxContainerResources {
        unified: [("memory.high".to_owned(), limit.clone())].into(),
        ..Default::default()
    };
    let pod = x.pod().await?;
    let id = pod.start(with(x.forever("c"), resources)).await?;
    let seen = of_cgroup(x, &id, "memory.high", "no-such-file").await?;
    equal("memory.high", &seen, &Some(limit))
}

async fn limit_of_huge_pages_is_set(x: &Context) -> Verdict {
    let (unified, legacy) = ("hugetlb.2MB.max", "hugetlb/hugetlb.2MB.limit_in_bytes");
    needs_file(x, unified, legacy).await?;
    let limit = 4 << 20;
    let resources = v1::LinuxContainerResources {
        hugepage_limits: vec![v1::HugepageLimit { page_size: "2MB".to_owned(), limit }],
        ..Default::default()
    };
    let pod = x.pod().await?;
    let id = pod.start(with(x.forever("c"), resources)).await?;
    let seen = of_cgroup(x, &id, unified, legacy).await?;
    equal("the limit of 2 MB huge pages", &seen, &Some(limit.to_string()))
}
