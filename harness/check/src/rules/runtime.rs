//! Rules for Version, Status, RuntimeConfig and ImageFsInfo.

use compact::Set;

use crate::prelude::*;
use crate::rules::image::{add, pull};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-RTM-001": "Version reports the protocol version 0.1.0, the runtime's name and version, and the API version; otherwise the kubelet exits.",
        KUBELET, tags ["kubelet", "start"], calls [Version],
        version_is_complete, faults [
            "Version set version \"0.2.0\"",
            "Version drop runtime_name",
            "Version drop runtime_version",
            "Version drop runtime_api_version",
            "Version set runtime_api_version \"none\"",
            "Version set runtime_api_version \"v1alpha2\"",
            "Version set runtime_api_version \"v2\"",
        ];
    Must "CRI-RTM-002": "runtime_version in the Version response begins with three dot-separated numbers, so that the kubelet can parse it.",
        KUBELET, tags ["kubelet", "start"], calls [Version],
        runtime_version_is_semantic, faults [
            "Version set runtime_version \"devel\"",
            "Version set runtime_version \"v2\"",
        ];
    Must "CRI-RTM-003": "Status reports RuntimeReady and NetworkReady as true, each condition once, and RunPodSandbox succeeds.",
        CRITEST, tags ["kubelet", "start"], calls [Status, RunPodSandbox],
        status_has_conditions, faults [
            "Status drop status.conditions",
            "Status drop status",
            "Status set status.conditions [{\"type\": \"RuntimeReady\", \"status\": true}]",
            "Status drop status.conditions.status",
            "Status set status.conditions [{\"type\": \"RuntimeReady\", \"status\": true}, {\"type\": \"NetworkReady\", \"status\": true}, {\"type\": \"NetworkReady\"}]",
            "RunPodSandbox answer UNKNOWN \"network is not ready\"",
        ];
    Should "CRI-RTM-004": "Status lists the default runtime handler, whose name is empty, with its features, and lists no handler twice.",
        KUBELET, tags ["kubelet", "features"], calls [Status],
        status_lists_default_handler, faults [
            "Status drop runtime_handlers",
            "Status set runtime_handlers.name \"runc\"",
            "Status set runtime_handlers [{\"features\": {}}, {\"features\": {}}]",
            "Status drop runtime_handlers.features",
        ];
    May "CRI-RTM-005": "Status returns info if and only if verbose is set.",
        API, tags ["crictl"], calls [Status],
        info_is_for_verbose_status, faults ["Status request set verbose true", "Status request drop verbose"];
    Should "CRI-RTM-006": "RuntimeConfig reports the cgroup driver; otherwise the kubelet uses its own cgroupDriver setting, which may differ.",
        KUBELET, tags ["kubelet", "start"], calls [RuntimeConfig],
        runtime_config_names_cgroup_driver, faults [
            "RuntimeConfig drop linux",
            "RuntimeConfig answer UNAVAILABLE",
        ];
    Must "CRI-RTM-007": "ImageFsInfo reports an image filesystem with a timestamp, an existing mount point, and a usage within the filesystem's capacity; if used_bytes is missing, the kubelet crashes.",
        KUBELET, tags ["kubelet", "start", "statistics"], calls [ImageFsInfo],
        image_fs_info_is_complete, faults [
            "ImageFsInfo drop image_filesystems",
            "ImageFsInfo drop image_filesystems.timestamp",
            "ImageFsInfo drop image_filesystems.used_bytes",
            "ImageFsInfo set image_filesystems.fs_id.mountpoint \"/no/such/directory\"",
            "ImageFsInfo set image_filesystems.used_bytes.value \"18446744073709551615\"",
            "ImageFsInfo set image_filesystems.inodes_used.value \"18446744073709551615\"",
            "ImageFsInfo set container_filesystems [{\"timestamp\": \"5\", \"fs_id\": {\"mountpoint\": \"/none\"}}]",
        ];
    May "CRI-RTM-008": "PodSandboxStatus and ContainerStatus return info if and only if verbose is set.",
        API, tags ["crictl"], calls [PodSandboxStatus, ContainerStatus],
        info_is_for_verbose_statuses given [pod], faults [
            "ContainerStatus request set verbose true",
            "ContainerStatus drop info",
            "PodSandboxStatus request set verbose true",
            "PodSandboxStatus request drop verbose",
        ];
    Must "CRI-RTM-009": "Timestamps in ImageFsInfo are current and in nanoseconds.",
        KUBELET, tags ["kubelet", "statistics", "time"], calls [ImageFsInfo],
        image_fs_info_is_current, faults [
            "ImageFsInfo set image_filesystems.timestamp 1700000000",
            "ImageFsInfo set image_filesystems.timestamp 1500000000000000000",
            "ImageFsInfo set image_filesystems.timestamp 9000000000000000000",
            "ImageFsInfo set container_filesystems [{\"timestamp\": \"1700000000\"}]",
        ];
    Should "CRI-RTM-011": "ImageFsInfo reports used bytes and inodes after an image is pulled.",
        KUBELET, tags ["kubelet", "statistics"], calls [ImageFsInfo, PullImage],
        images_are_counted, faults [
            "ImageFsInfo set image_filesystems.used_bytes.value \"0\"",
            "ImageFsInfo set image_filesystems.inodes_used.value \"0\"",
            "ImageFsInfo drop image_filesystems.inodes_used",
        ];
    May "CRI-RTM-013": "ImageFsInfo also reports a container filesystem; otherwise a kubelet that connects to CRI-O's socket path has no image or container filesystem statistics.",
        KUBELET, tags ["kubelet", "statistics"], calls [ImageFsInfo],
        file_system_of_containers_is_reported, faults ["ImageFsInfo drop container_filesystems"];
    Must "CRI-RTM-014": "Version, Status, RuntimeConfig, ImageFsInfo and ListMetricDescriptors describe the runtime identically in every call, regardless of the arguments.",
        KUBELET, tags ["kubelet", "start", "agreement"], calls [Version, Status, RuntimeConfig, ImageFsInfo, RunPodSandbox],
        runtime_stays_the_same, faults [
            "Version after 1 set runtime_name \"other\"",
            "Version after 2 set runtime_version \"9.9.9\"",
            "Version if request.version == \"0.1.0\" set runtime_api_version \"v1alpha2\"",
            "Status after 1 drop runtime_handlers",
            "Status after 2 drop features",
            "Status if request.verbose == true set status.conditions.status false",
            "Status if request.verbose == false drop runtime_handlers",
            "RuntimeConfig after 1 drop linux",
            "RuntimeConfig after 2 answer UNIMPLEMENTED",
            "ImageFsInfo after 1 set image_filesystems.fs_id.mountpoint \"/\"",
            "ListMetricDescriptors after 1 drop descriptors",
        ];
};

async fn version_is_complete(x: &Context) -> Verdict {
    let version = x.client.version().await?;
    equal("version", version.version.as_str(), "0.1.0")?;
    ensure(!version.runtime_name.is_empty(), "runtime_name", "a name", &version)?;
    ensure(!version.runtime_version.is_empty(), "runtime_version", "a version", &version)?;
    let api = &version.runtime_api_version;
    let numbers = api.strip_prefix('v').unwrap_or(api);
    let is_stable = |numbers: &str| {
        let mut parts = numbers.split('.');
        parts.all(|part| part.parse::<u32>().is_ok())
    };
    // Some runtimes report the version of a component. The API's own version is v1: its package is runtime.v1.
    let contract = api == "v1" || (is_stable(numbers) && numbers.contains('.'));
    ensure(contract, "runtime_api_version", "v1, or a dotted version number", &version)
}

async fn runtime_version_is_semantic(x: &Context) -> Verdict {
    let version = x.client.version().await?.runtime_version;
    let numbers = version.strip_prefix('v').unwrap_or(&version);
    let numbers = numbers.split(['-', '+', '~']).next().unwrap_or_default();
    let parsed = numbers.split('.').filter(|part| part.parse::<u64>().is_ok()).count();
    ensure(parsed >= 3, "runtime_version", "three numbers, such as 1.2.3", version)
}

async fn status_has_conditions(x: &Context) -> Verdict {
    let status = x.client.status().await?.status.unwrap_or_default();
    for kind in ["RuntimeReady", "NetworkReady"] {
        let mut found = status.conditions.iter().filter(|condition| condition.r#type == kind);
        let (Some(condition), None) = (found.next(), found.next()) else {
            let seen = format!("{status:?}");
            return failed(format!("the condition {kind}"), "to be reported once", seen);
        };
        let has_cause = !condition.reason.is_empty() || !condition.message.is_empty();
        ensure(condition.status || has_cause, kind, "true, or a reason why not", condition)?;
        ensure(condition.status, kind, "true", condition)?;
    }
    // The pod needs the network of the condition NetworkReady.
    match x.pod().await {
        Err(Outcome::Refused { code, message }) => {
            let error = format!("{code:?}: {message}");
            failed("RunPodSandbox where both conditions are true", "success", error)
        }
        other => other.map(drop),
    }
}

async fn status_lists_default_handler(x: &Context) -> Verdict {
    let handlers = x.client.status().await?.runtime_handlers;
    let default = handlers.iter().find(|handler| handler.name.is_empty());
    let complete = default.is_some_and(|handler| handler.features.is_some());
    ensure(complete, "runtime_handlers", "a handler with the name \"\" and features", &handlers)?;
    let names: Set<&String> = handlers.iter().map(|handler| &handler.name).collect();
    ensure(names.len() == handlers.len(), "runtime_handlers", "each name once", &handlers)
}

/// A runtime's description of itself, without measurements. Lists are sorted by name, since runtimes return them in any order.
#[derive(Debug, PartialEq)]
struct RuntimeDescription {
    version: v1::VersionResponse,
    conditions: Vec<(String, bool)>,
    handlers: Vec<v1::RuntimeHandler>,
    features: Option<v1::RuntimeFeatures>,
    config: Result<v1::RuntimeConfigResponse, Code>,
    mount_points: Set<String>,
    descriptors: Result<Vec<v1::MetricDescriptor>, Code>,
}

async fn describe(x: &Context, verbose: bool, version: &str) -> Verdict<RuntimeDescription> {
    let mut runtime = x.client.runtime.clone();
    let request = v1::VersionRequest { version: version.to_owned() };
    let version = runtime.version(request).await?.into_inner();
    let mut status = runtime.status(v1::StatusRequest { verbose }).await?.into_inner();
    let conditions = status.status.unwrap_or_default().conditions.into_iter();
    let mut conditions: Vec<_> = conditions.map(|one| (one.r#type, one.status)).collect();
    conditions.sort();
    compact::sort_by(&mut status.runtime_handlers, |one, other| one.name.cmp(&other.name));
    let config = runtime.runtime_config(v1::RuntimeConfigRequest {}).await;
    let file_systems = x.client.image_fs_info().await?;
    let all = file_systems.image_filesystems.into_iter().chain(file_systems.container_filesystems);
    let mut descriptors = x.client.metric_descriptors().await.map_err(|status| status.code());
    if let Ok(descriptors) = &mut descriptors {
        compact::sort_by(descriptors, |one, other| one.name.cmp(&other.name));
    }
    Ok(RuntimeDescription {
        version,
        conditions,
        handlers: status.runtime_handlers,
        features: status.features,
        config: config.map(tonic::Response::into_inner).map_err(|status| status.code()),
        mount_points: all.map(|one| one.fs_id.unwrap_or_default().mountpoint).collect(),
        descriptors,
    })
}

async fn runtime_stays_the_same(x: &Context) -> Verdict {
    let first = describe(x, false, "").await?;
    // The kubelet requests version 0.1.0, and crictl v1.
    for (verbose, version) in [(true, "0.1.0"), (false, "v1")] {
        let again = describe(x, verbose, version).await?;
        let what = format!("the description with verbose {verbose} and version {version:?}");
        equal(&what, &again, &first)?;
    }
    drop(x.pod().await?);
    equal("the description after a pod was run", &describe(x, false, "").await?, &first)
}

async fn info_is_for_verbose_status(x: &Context) -> Verdict {
    let request = v1::StatusRequest { verbose: false };
    let brief = x.client.runtime.clone().status(request).await?.into_inner();
    ensure(brief.info.is_empty(), "info without verbose", "none", brief.info)?;
    let request = v1::StatusRequest { verbose: true };
    let long = x.client.runtime.clone().status(request).await?.into_inner();
    ensure(!long.info.is_empty(), "info with verbose", "some", long.info)
}

async fn runtime_config_names_cgroup_driver(x: &Context) -> Verdict {
    let request = v1::RuntimeConfigRequest::default();
    let config = x.client.runtime.clone().runtime_config(request).await?.into_inner();
    ensure(config.linux.is_some(), "linux", "a cgroup driver", config)
}

async fn file_system_of_containers_is_reported(x: &Context) -> Verdict {
    let answer = x.client.image_fs_info().await?;
    let is_reported = !answer.container_filesystems.is_empty();
    ensure(is_reported, "container_filesystems", "at least one", answer)
}

async fn image_fs_info_is_complete(x: &Context) -> Verdict {
    let answer = x.client.image_fs_info().await?;
    if answer.image_filesystems.is_empty() {
        return failed("image_filesystems", "at least one", format!("{answer:?}"));
    }
    // Older runtimes report no container filesystems.
    let containers = answer.container_filesystems.iter();
    for usage in answer.image_filesystems.iter().chain(containers) {
        usage_is_possible(usage)?;
    }
    Ok(())
}

/// Fails unless a filesystem exists and is at least as large as its reported usage.
fn usage_is_possible(usage: &v1::FilesystemUsage) -> Verdict {
    ensure(usage.timestamp > 0, "timestamp", "not 0", usage)?;
    let mountpoint = usage.fs_id.clone().unwrap_or_default().mountpoint;
    let path = std::path::Path::new(&mountpoint);
    let what = "the mount point of a filesystem";
    ensure(path.is_absolute() && path.exists(), what, "a path that exists", &mountpoint)?;
    let used = present(usage.used_bytes, "used_bytes", "to be set", format!("{usage:?}"))?;
    let Ok(whole) = rustix::fs::statvfs(path) else {
        return Ok(());
    };
    let size = whole.f_blocks.saturating_mul(whole.f_frsize);
    let holds = used.value <= size;
    ensure(holds, "used_bytes", &format!("{size} at most, the size of {mountpoint}"), used.value)?;
    let inodes = usage.inodes_used.map_or(0, |inodes| inodes.value);
    // Some filesystems do not report their number of inodes.
    let expected = format!("{} at most, the inodes of {mountpoint}", whole.f_files);
    ensure(whole.f_files == 0 || inodes <= whole.f_files, "inodes_used", &expected, inodes)
}

async fn info_is_for_verbose_statuses(x: &Context, pod: Pod) -> Verdict {
    let id = pod.create(x.forever("c")).await?;
    for verbose in [false, true] {
        let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose };
        let answer = x.client.runtime.clone().container_status(request).await?;
        let what = format!("whether ContainerStatus with verbose {verbose} has info");
        equal(&what, &!answer.into_inner().info.is_empty(), &verbose)?;
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose };
        let answer = x.client.runtime.clone().pod_sandbox_status(request).await?;
        let what = format!("whether PodSandboxStatus with verbose {verbose} has info");
        equal(&what, &!answer.into_inner().info.is_empty(), &verbose)?;
    }
    Ok(())
}

/// How far the timestamps of ImageFsInfo may be from now: runtimes measure every few seconds.
const MEASURED: i128 = 300_000_000_000;

async fn image_fs_info_is_current(x: &Context) -> Verdict {
    let answer = x.client.image_fs_info().await?;
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
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
    // Some runtimes measure every ten seconds, and some count only the metadata of images.
    x.until("used_bytes and inodes_used not to be 0", async || {
        let answer = x.client.image_fs_info().await;
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
