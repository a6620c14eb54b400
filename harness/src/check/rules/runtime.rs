//! Rules of Version, Status, RuntimeConfig and ImageFsInfo.

use cri::v1;

use super::image::{add, pull};
use crate::check::context::Context;
use crate::check::outcome::{Verdict, ensure, equal, failed};
use crate::check::rule::sources::{API, CRITEST, KUBELET};
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-RTM-001",
        severity: Severity::Must,
        says: "Version names the protocol version 0.1.0, the runtime, its version and its API version; a kubelet exits otherwise.",
        source: KUBELET,
        tags: &["kubelet", "start"],
        calls: &["Version"],
        faults: &[
            "Version set version \"0.2.0\"",
            "Version drop runtime_name",
            "Version drop runtime_version",
            "Version drop runtime_api_version",
            "Version set runtime_api_version \"none\"",
            "Version set runtime_api_version \"v1alpha2\"",
        ],
        body: |x| Box::pin(version_is_complete(x)),
    },
    Rule {
        id: "CRI-RTM-002",
        severity: Severity::Must,
        says: "The version of the runtime begins with three numbers, so that a kubelet can parse it.",
        source: KUBELET,
        tags: &["kubelet", "start"],
        calls: &["Version"],
        faults: &[
            "Version set runtime_version \"devel\"",
            "Version set runtime_version \"v2\"",
        ],
        body: |x| Box::pin(runtime_version_is_semantic(x)),
    },
    Rule {
        id: "CRI-RTM-003",
        severity: Severity::Must,
        says: "Status reports the conditions RuntimeReady and NetworkReady, and both are true where pods can run.",
        source: CRITEST,
        tags: &["kubelet", "start"],
        calls: &["Status"],
        faults: &[
            "Status drop status.conditions",
            "Status drop status",
            "Status set status.conditions [{\"type\": \"RuntimeReady\", \"status\": true}]",
            "Status drop status.conditions.status",
        ],
        body: |x| Box::pin(status_has_conditions(x)),
    },
    Rule {
        id: "CRI-RTM-004",
        severity: Severity::Should,
        says: "Status lists the default runtime handler, whose name is empty, with its features.",
        source: KUBELET,
        tags: &["kubelet", "features"],
        calls: &["Status"],
        faults: &[
            "Status drop runtime_handlers",
            "Status set runtime_handlers.name \"runc\"",
            "Status drop runtime_handlers.features",
        ],
        body: |x| Box::pin(status_lists_default_handler(x)),
    },
    Rule {
        id: "CRI-RTM-005",
        severity: Severity::May,
        says: "Status carries info when it is asked to be verbose, and only then.",
        source: API,
        tags: &["crictl"],
        calls: &["Status"],
        faults: &[
            "Status request set verbose true",
            "Status request drop verbose",
        ],
        body: |x| Box::pin(info_is_for_verbose_status(x)),
    },
    Rule {
        id: "CRI-RTM-006",
        severity: Severity::Should,
        says: "RuntimeConfig names the cgroup driver; without it a kubelet takes the default value for systemd.",
        source: KUBELET,
        tags: &["kubelet", "start"],
        calls: &["RuntimeConfig"],
        faults: &[
            "RuntimeConfig drop linux",
            "RuntimeConfig answer UNAVAILABLE",
        ],
        body: |x| Box::pin(runtime_config_names_cgroup_driver(x)),
    },
    Rule {
        id: "CRI-RTM-007",
        severity: Severity::Must,
        says: "ImageFsInfo reports an image file system with a time, a usage that it has room for, and a mount point that exists; a kubelet exits otherwise.",
        source: KUBELET,
        tags: &["kubelet", "start", "statistics"],
        calls: &["ImageFsInfo"],
        faults: &[
            "ImageFsInfo drop image_filesystems",
            "ImageFsInfo drop image_filesystems.timestamp",
            "ImageFsInfo drop image_filesystems.used_bytes",
            "ImageFsInfo set image_filesystems.fs_id.mountpoint \"/no/such/directory\"",
            "ImageFsInfo set image_filesystems.used_bytes.value \"18446744073709551615\"",
            "ImageFsInfo set image_filesystems.inodes_used.value \"18446744073709551615\"",
            "ImageFsInfo set container_filesystems [{\"timestamp\": \"5\", \"fs_id\": {\"mountpoint\": \"/none\"}}]",
        ],
        body: |x| Box::pin(image_fs_info_is_complete(x)),
    },
    Rule {
        id: "CRI-RTM-008",
        severity: Severity::May,
        says: "The statuses of sandboxes and containers carry info when they are asked to be verbose, and only then.",
        source: API,
        tags: &["crictl"],
        calls: &["PodSandboxStatus", "ContainerStatus"],
        faults: &[
            "ContainerStatus request set verbose true",
            "ContainerStatus drop info",
            "PodSandboxStatus request set verbose true",
            "PodSandboxStatus request drop verbose",
        ],
        body: |x| Box::pin(info_is_for_verbose_statuses(x)),
    },
    Rule {
        id: "CRI-RTM-009",
        severity: Severity::Must,
        says: "The time of ImageFsInfo is of now, in nanoseconds.",
        source: KUBELET,
        tags: &["kubelet", "statistics", "time"],
        calls: &["ImageFsInfo"],
        faults: &[
            "ImageFsInfo set image_filesystems.timestamp 1700000000",
            "ImageFsInfo set image_filesystems.timestamp 1500000000000000000",
            "ImageFsInfo set image_filesystems.timestamp 9000000000000000000",
            "ImageFsInfo set container_filesystems [{\"timestamp\": \"1700000000\"}]",
        ],
        body: |x| Box::pin(image_fs_info_is_of_now(x)),
    },
    Rule {
        id: "CRI-RTM-011",
        severity: Severity::Should,
        says: "ImageFsInfo counts bytes and inodes where an image was pulled.",
        source: KUBELET,
        tags: &["kubelet", "statistics"],
        calls: &["ImageFsInfo", "PullImage"],
        faults: &[
            "ImageFsInfo set image_filesystems.used_bytes.value \"0\"",
            "ImageFsInfo set image_filesystems.inodes_used.value \"0\"",
            "ImageFsInfo drop image_filesystems.inodes_used",
        ],
        body: |x| Box::pin(images_are_counted(x)),
    },
    Rule {
        id: "CRI-RTM-013",
        severity: Severity::May,
        says: "ImageFsInfo names the file system of containers too: a kubelet that is given the socket of CRI-O has no statistics of disks without it.",
        source: KUBELET,
        tags: &["kubelet", "statistics"],
        calls: &["ImageFsInfo"],
        faults: &["ImageFsInfo drop container_filesystems"],
        body: |x| Box::pin(file_system_of_containers_is_told(x)),
    },
];

async fn version_is_complete(x: &Context) -> Verdict {
    let version = x.client.version().await?;
    equal("version", version.version.as_str(), "0.1.0")?;
    ensure(
        !version.runtime_name.is_empty(),
        "runtime_name",
        "a name",
        &version,
    )?;
    ensure(
        !version.runtime_version.is_empty(),
        "runtime_version",
        "a version",
        &version,
    )?;
    let api = &version.runtime_api_version;
    let numbers = api.strip_prefix('v').unwrap_or(api);
    let is_stable = |numbers: &str| {
        let mut parts = numbers.split('.');
        parts.all(|part| part.parse::<u32>().is_ok())
    };
    ensure(
        is_stable(numbers),
        "runtime_api_version",
        "a stable version, such as v1",
        &version,
    )
}

async fn runtime_version_is_semantic(x: &Context) -> Verdict {
    let version = x.client.version().await?.runtime_version;
    let numbers = version.strip_prefix('v').unwrap_or(&version);
    let numbers = numbers.split(['-', '+', '~']).next().unwrap_or_default();
    let parsed = numbers
        .split('.')
        .filter(|part| part.parse::<u64>().is_ok())
        .count();
    ensure(
        parsed >= 3,
        "runtime_version",
        "three numbers, such as 1.2.3",
        version,
    )
}

async fn status_has_conditions(x: &Context) -> Verdict {
    let status = x.client.status().await?.status.unwrap_or_default();
    for kind in ["RuntimeReady", "NetworkReady"] {
        match status
            .conditions
            .iter()
            .find(|condition| condition.r#type == kind)
        {
            None => {
                return failed(
                    format!("the condition {kind}"),
                    "to be there",
                    format!("{status:?}"),
                );
            }
            Some(condition) => ensure(condition.status, kind, "true", condition)?,
        }
    }
    Ok(())
}

async fn status_lists_default_handler(x: &Context) -> Verdict {
    let handlers = x.client.status().await?.runtime_handlers;
    let default = handlers.iter().find(|handler| handler.name.is_empty());
    let complete = default.is_some_and(|handler| handler.features.is_some());
    ensure(
        complete,
        "runtime_handlers",
        "one with the name \"\" and features",
        handlers,
    )
}

async fn info_is_for_verbose_status(x: &Context) -> Verdict {
    let request = v1::StatusRequest { verbose: false };
    let brief = x.client.runtime.clone().status(request).await?.into_inner();
    ensure(
        brief.info.is_empty(),
        "info without verbose",
        "none",
        brief.info,
    )?;
    let request = v1::StatusRequest { verbose: true };
    let long = x.client.runtime.clone().status(request).await?.into_inner();
    ensure(
        !long.info.is_empty(),
        "info with verbose",
        "some",
        long.info,
    )
}

async fn runtime_config_names_cgroup_driver(x: &Context) -> Verdict {
    let request = v1::RuntimeConfigRequest::default();
    let config = x
        .client
        .runtime
        .clone()
        .runtime_config(request)
        .await?
        .into_inner();
    ensure(config.linux.is_some(), "linux", "a cgroup driver", config)
}

async fn image_fs_info(x: &Context) -> Result<v1::ImageFsInfoResponse, tonic::Status> {
    let request = v1::ImageFsInfoRequest {};
    let answer = x.client.images.clone().image_fs_info(request).await?;
    Ok(answer.into_inner())
}

async fn file_system_of_containers_is_told(x: &Context) -> Verdict {
    let answer = image_fs_info(x).await?;
    let told = !answer.container_filesystems.is_empty();
    ensure(told, "container_filesystems", "one at least", answer)
}

async fn image_fs_info_is_complete(x: &Context) -> Verdict {
    let answer = image_fs_info(x).await?;
    if answer.image_filesystems.is_empty() {
        return failed("image_filesystems", "one at least", format!("{answer:?}"));
    }
    // Runtimes of an earlier contract have no file systems of containers.
    let containers = answer.container_filesystems.iter();
    for usage in answer.image_filesystems.iter().chain(containers) {
        usage_is_possible(usage)?;
    }
    Ok(())
}

/// Fails unless a file system exists, and has as much as is told to be used of it.
fn usage_is_possible(usage: &v1::FilesystemUsage) -> Verdict {
    ensure(usage.timestamp > 0, "timestamp", "not 0", usage)?;
    let mountpoint = usage.fs_id.clone().unwrap_or_default().mountpoint;
    let path = std::path::Path::new(&mountpoint);
    ensure(
        path.is_absolute() && path.exists(),
        "the mount point of a file system",
        "a path that exists",
        &mountpoint,
    )?;
    let Some(used) = usage.used_bytes else {
        return failed("used_bytes", "to be set", format!("{usage:?}"));
    };
    let Ok(whole) = rustix::fs::statvfs(path) else {
        return Ok(());
    };
    let size = whole.f_blocks.saturating_mul(whole.f_frsize);
    ensure(
        used.value <= size,
        "used_bytes",
        &format!("{size} at most, the size of {mountpoint}"),
        used.value,
    )?;
    let inodes = usage.inodes_used.map_or(0, |inodes| inodes.value);
    // Some file systems do not tell how many they have.
    ensure(
        whole.f_files == 0 || inodes <= whole.f_files,
        "inodes_used",
        &format!("{} at most, the inodes of {mountpoint}", whole.f_files),
        inodes,
    )
}

async fn info_is_for_verbose_statuses(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = pod.create(x.forever("c")).await?;
    for verbose in [false, true] {
        let request = v1::ContainerStatusRequest {
            container_id: id.clone(),
            verbose,
        };
        let answer = x.client.runtime.clone().container_status(request).await?;
        let what = format!("whether ContainerStatus with verbose {verbose} has info");
        equal(&what, &!answer.into_inner().info.is_empty(), &verbose)?;
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: pod.id.clone(),
            verbose,
        };
        let answer = x.client.runtime.clone().pod_sandbox_status(request).await?;
        let what = format!("whether PodSandboxStatus with verbose {verbose} has info");
        equal(&what, &!answer.into_inner().info.is_empty(), &verbose)?;
    }
    Ok(())
}

/// How far the clock of ImageFsInfo may be from now: runtimes measure each few seconds.
const MEASURED: i128 = 300_000_000_000;

async fn image_fs_info_is_of_now(x: &Context) -> Verdict {
    let answer = image_fs_info(x).await?;
    let since = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default();
    let now = i128::try_from(since.as_nanos()).unwrap_or(i128::MAX);
    let containers = answer.container_filesystems.into_iter();
    for usage in answer.image_filesystems.into_iter().chain(containers) {
        let near = (now - i128::from(usage.timestamp)).abs() < MEASURED;
        ensure(near, "timestamp", &format!("near {now}"), usage)?;
    }
    Ok(())
}

async fn images_are_counted(x: &Context) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    pull(x, &name).await?;
    // Some runtimes measure every ten seconds, and some count what describes images alone.
    x.until("used_bytes and inodes_used not to be 0", async || {
        let answer = image_fs_info(x).await;
        let all = answer.map_err(|status| status.to_string())?;
        let all = all.image_filesystems;
        let sum = |of: fn(&v1::FilesystemUsage) -> Option<v1::UInt64Value>| {
            let values = all.iter().filter_map(of);
            values.map(|value| value.value).sum::<u64>()
        };
        match sum(|one| one.used_bytes) > 0 && sum(|one| one.inodes_used) > 0 {
            true => Ok(()),
            false => Err(format!("{all:?}")),
        }
    })
    .await
}
