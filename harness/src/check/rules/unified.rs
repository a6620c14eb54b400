//! Rules of limits that are written to a cgroup as they are: unified ones, and those of huge pages.

use cri::v1;

use super::limits::{of_cgroup, with};
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, equal};
use crate::check::rule::sources::{API, KUBELET};
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-LIM-011",
        severity: Severity::Should,
        says: "A unified resource is written to the file of its name in the container's cgroup.",
        source: KUBELET,
        tags: &["kubelet", "resources"],
        calls: &["CreateContainer", "ExecSync"],
        faults: &[
            "CreateContainer request drop config.linux.resources.unified",
            "CreateContainer request drop config.linux.resources",
        ],
        body: |x| Box::pin(unified_resource_is_written(x)),
    },
    Rule {
        id: "CRI-LIM-012",
        severity: Severity::Should,
        says: "The limit of a size of huge pages is the one of the container's cgroup.",
        source: API,
        tags: &["kubelet", "resources"],
        calls: &["CreateContainer", "ExecSync"],
        faults: &[
            "CreateContainer request drop config.linux.resources.hugepage_limits",
            "CreateContainer request drop config.linux.resources",
        ],
        body: |x| Box::pin(limit_of_huge_pages_is_set(x)),
    },
];

/// Skips the rule where a container has no such file in its cgroup.
async fn needs_file(x: &Context, unified: &str, legacy: &str) -> Verdict {
    x.needs_limits()?;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    match of_cgroup(x, &id, unified, legacy).await? {
        Some(_) => Ok(()),
        None => Err(Outcome::Skipped(format!(
            "containers of this machine have no {unified} in their cgroup"
        ))),
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
        hugepage_limits: vec![v1::HugepageLimit {
            page_size: "2MB".to_owned(),
            limit,
        }],
        ..Default::default()
    };
    let pod = x.pod().await?;
    let id = pod.start(with(x.forever("c"), resources)).await?;
    let seen = of_cgroup(x, &id, unified, legacy).await?;
    equal(
        "the limit of huge pages of 2 MB",
        &seen,
        &Some(limit.to_string()),
    )
}
