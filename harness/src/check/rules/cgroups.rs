//! Rules of where control groups are: below the one that the client names, and named as the runtime says.

use std::path::{Path, PathBuf};

use cri::v1;

use crate::check::cgroup;
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, ensure};
use crate::check::rule::sources::KUBELET;
use crate::check::rule::{Rule, Severity};
use crate::pod::Pod;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-LIM-013",
        severity: Severity::Must,
        says: "The cgroups of a container are below the cgroup parent of its pod, which a kubelet limits and removes.",
        source: KUBELET,
        tags: &["kubelet", "resources"],
        calls: &["RunPodSandbox", "CreateContainer"],
        faults: &["RunPodSandbox request drop config.linux.cgroup_parent"],
        body: |x| Box::pin(cgroup_is_below_parent(x)),
    },
    Rule {
        id: "CRI-RTM-010",
        severity: Severity::Must,
        says: "Cgroups are made by the driver that RuntimeConfig names: a container's is a scope with systemd, and none otherwise.",
        source: KUBELET,
        tags: &["kubelet", "start", "resources"],
        calls: &["RuntimeConfig", "CreateContainer"],
        faults: &["RuntimeConfig set linux.cgroup_driver \"SYSTEMD\""],
        body: |x| Box::pin(cgroup_is_of_driver(x)),
    },
];

/// The control groups of a running container.
async fn cgroups(x: &Context, pod: &Pod) -> Verdict<Vec<PathBuf>> {
    x.needs_limits()?;
    let id = x.running(pod).await?;
    let mut all = cgroup::of(&id);
    // CRI-O's monitor of a container has one of its own, elsewhere.
    let monitor = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().contains("conmon")
    };
    all.retain(|path| !monitor(path));
    match all.is_empty() {
        false => Ok(all),
        true => Err(Outcome::Skipped(
            "no control group of this machine has the container's id in its name".to_owned(),
        )),
    }
}

async fn cgroup_is_below_parent(x: &Context) -> Verdict {
    if x.shared.cgroup.is_none() {
        return Err(Outcome::Unsupported(
            "RuntimeConfig does not say how cgroup parents are named".to_owned(),
        ));
    }
    let pod = x.pod().await?;
    let linux = pod.config.linux.clone().unwrap_or_default();
    let parent = Path::new(&linux.cgroup_parent);
    let parent = parent.file_name().unwrap_or_default().to_string_lossy();
    let all = cgroups(x, &pod).await?;
    let below = all.iter().all(|path| {
        let mut names = path.iter();
        names.any(|name| name == &*parent)
    });
    ensure(
        below,
        "the control groups of a container",
        &format!("below {parent}"),
        &all,
    )
}

async fn cgroup_is_of_driver(x: &Context) -> Verdict {
    let request = v1::RuntimeConfigRequest {};
    let answer = x.client.runtime.clone().runtime_config(request).await?;
    let driver = answer.into_inner().linux.unwrap_or_default();
    let driver = driver.cgroup_driver();
    let pod = x.pod().await?;
    let all = cgroups(x, &pod).await?;
    let scope = |path: &PathBuf| path.extension().is_some_and(|name| name == "scope");
    let right = match driver {
        v1::CgroupDriver::Systemd => all.iter().any(scope),
        v1::CgroupDriver::Cgroupfs => !all.iter().any(scope),
    };
    ensure(
        right,
        "the control groups of a container",
        &format!("those of the driver {}", driver.as_str_name()),
        &all,
    )
}
