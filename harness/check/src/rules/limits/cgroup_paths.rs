//! Rules of cgroup paths: below the client's cgroup parent, and named by the runtime's driver.

use std::path::{Path, PathBuf};

use crate::cgroup;
use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-LIM-013": "A container's cgroups are below its pod's cgroup_parent, the cgroup that the kubelet limits and removes.",
        KUBELET, tags ["kubelet", "resources"], calls [RunPodSandbox, CreateContainer],
        cgroup_is_below_parent, faults ["RunPodSandbox request drop config.linux.cgroup_parent"];
    Must "CRI-RTM-010": "A container's cgroup is a systemd scope if and only if RuntimeConfig reports the cgroup driver SYSTEMD.",
        KUBELET, tags ["kubelet", "start", "resources"], calls [RuntimeConfig, CreateContainer],
        cgroup_is_of_driver, faults ["RuntimeConfig set linux.cgroup_driver \"SYSTEMD\""];
    Should "CRI-LIM-016": "After RemoveContainer no cgroup of the container remains, and after RemovePodSandbox no cgroup of the pod remains.",
        KUBELET, tags ["kubelet", "leaks", "resources"], calls [RemoveContainer, RemovePodSandbox],
        cgroups_are_removed given [pod], faults ["RemoveContainer swallow", "RemoveContainer hang"];
    Must "CRI-LIM-017": "ExecSync commands run in their container's cgroups, so the container's limits apply to them.",
        KUBELET, tags ["kubelet", "probe", "resources"], calls [ExecSync],
        commands_are_in_cgroups_of_container given [limits, container], faults [
            "ExecSync if request.timeout == 30 request set cmd [\"/bin/sh\", \"-c\", \"echo 0::/of; echo 1:memory:/of; echo; echo 0::/other; echo 1:memory:/other\"]",
            "ExecSync set stdout \"MDo6L2EKCjA6Oi9iCg==\"",
        ];
};

/// CRI-O's container monitor has its own cgroup, elsewhere.
fn is_of_monitor(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().contains("conmon")
}

/// The cgroups of a running container.
async fn cgroups(x: &Context, pod: &Pod) -> Verdict<Vec<PathBuf>> {
    x.needs_limits()?;
    let id = x.running(pod).await?;
    let mut all = cgroup::of(&id);
    all.retain(|path| !is_of_monitor(path));
    match all.is_empty() {
        false => Ok(all),
        true => skipped("no cgroup of this machine has the container's id in its name"),
    }
}

async fn cgroup_is_below_parent(x: &Context) -> Verdict {
    if x.shared.cgroup.is_none() {
        return unsupported("RuntimeConfig does not report the cgroup driver");
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
    ensure(below, "the cgroups of a container", &format!("below {parent}"), &all)
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
    let what = "the cgroups of a container";
    ensure(right, what, &format!("cgroups named by the driver {}", driver.as_str_name()), &all)
}

async fn cgroups_are_removed(x: &Context, pod: Pod) -> Verdict {
    let all = cgroups(x, &pod).await?;
    let containers = x
        .client
        .containers(v1::ContainerFilter { pod_sandbox_id: pod.id.clone(), ..Default::default() });
    for container in containers.await? {
        x.client.remove(&container.id).await?;
    }
    // With the systemd driver, systemd removes them.
    x.until("the cgroups of the container to be removed", async || {
        match all.iter().find(|path| path.exists()) {
            None => Ok(()),
            Some(path) => Err(path.clone()),
        }
    })
    .await?;
    x.client.remove_pod(&pod.id).await?;
    x.until("the cgroups of the sandbox to be removed", async || {
        let left = cgroup::of(&pod.id);
        match left.into_iter().find(|path| !is_of_monitor(path)) {
            None => Ok(()),
            Some(path) => Err(path),
        }
    })
    .await
}

async fn commands_are_in_cgroups_of_container(x: &Context, id: String) -> Verdict {
    let text = "cat /proc/1/cgroup; echo; cat /proc/self/cgroup";
    let text = x.client.sh(&id, text).await?;
    let (first, own) = text.split_once("\n\n").unwrap_or((&text, ""));
    for line in first.lines() {
        // A command may have its own cgroup within that of its container.
        let line = line.trim_end_matches('/');
        let within = own.lines().any(|own| {
            own.strip_prefix(line).is_some_and(|rest| {
                rest.is_empty() || (rest.starts_with('/') && !rest.starts_with("/.."))
            })
        });
        let what = "the cgroups of a command of ExecSync";
        ensure(within, what, &format!("{line:?}, the cgroup of process 1, or one below it"), own)?;
    }
    Ok(())
}
