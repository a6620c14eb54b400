//! Rules of a container's memory and CPU limits, as its cgroup shows them, and of limit updates.

pub(crate) mod cgroup_paths;
pub(crate) mod decrease;
pub(crate) mod extremes;
pub(crate) mod other_resources;
pub(crate) mod unified;

use crate::prelude::*;

pub(crate) const MIB: i64 = 1 << 20;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-LIM-001": "A container's memory limit is set in its cgroup.",
        KUBELET, tags ["kubelet", "resources"], calls [CreateContainer, ExecSync],
        memory_limit_is_set, faults [
            "CreateContainer request drop config.linux.resources",
            "CreateContainer request set config.linux.resources.memory_limit_in_bytes 268435456",
        ];
    Must "CRI-LIM-002": "A container's CPU quota, period and shares are set in its cgroup.",
        KUBELET, tags ["kubelet", "resources"], calls [CreateContainer, ExecSync],
        cpu_limits_are_set, faults [
            "CreateContainer request drop config.linux.resources.cpu_quota",
            "CreateContainer request set config.linux.resources.cpu_period 50000",
            "CreateContainer request drop config.linux.resources.cpu_shares",
        ];
    Must "CRI-LIM-003": "ContainerStatus reports the limits set at creation; to resize a pod, the kubelet compares the reported limits with the pod's limits.",
        KUBELET, tags ["kubelet", "resources", "echo"], calls [ContainerStatus],
        status_has_limits, faults [
            "ContainerStatus drop status.resources",
            "ContainerStatus drop status.resources.linux.cpu_quota",
            "ContainerStatus drop status.resources.linux.memory_limit_in_bytes",
            "ContainerStatus set status.resources.linux.cpu_shares 2",
        ];
    Must "CRI-LIM-004": "oom_score_adj applies unchanged to the container's process and to ExecSync commands (tested with two values).",
        KUBELET, tags ["kubelet", "resources", "process"], calls [CreateContainer, ExecSync],
        oom_score_is_set, faults [
            "CreateContainer request drop config.linux.resources",
            "CreateContainer request set config.linux.resources.oom_score_adj 900",
            "CreateContainer request set config.linux.resources.oom_score_adj 700",
        ];
    Must "CRI-LIM-005": "UpdateContainerResources immediately changes the cgroup and the status of a running container.",
        KUBELET, tags ["kubelet", "resources", "resize"], calls [UpdateContainerResources, ContainerStatus, ExecSync],
        update_changes_running_container, faults [
            "UpdateContainerResources swallow",
            "UpdateContainerResources request drop linux.memory_limit_in_bytes",
            "UpdateContainerResources request drop linux.cpu_quota",
            "ContainerStatus stale",
            "ContainerStatus set status.resources.linux.memory_limit_in_bytes 67108864",
        ];
    Should "CRI-LIM-006": "UpdateContainerResources of a created container takes effect when the container starts.",
        CONTAINERD, tags ["resources", "resize"], calls [UpdateContainerResources, StartContainer, ContainerStatus],
        update_changes_created_container given [limits, pod], faults [
            "UpdateContainerResources swallow",
            "UpdateContainerResources request drop linux.memory_limit_in_bytes",
        ];
    Must "CRI-LIM-007": "UpdateContainerResources does not change limits that the request omits.",
        KUBELET, tags ["kubelet", "resources", "resize"], calls [UpdateContainerResources, ContainerStatus],
        update_leaves_the_rest, faults [
            "UpdateContainerResources swallow",
            "UpdateContainerResources request set linux.memory_limit_in_bytes 268435456",
            "ContainerStatus drop status.resources.linux.memory_limit_in_bytes",
        ];
    Should "CRI-LIM-008": "A container runs only on the CPUs in cpuset_cpus.",
        KUBELET, tags ["kubelet", "resources"], calls [CreateContainer],
        cpus_are_set given [limits], faults ["CreateContainer request drop config.linux.resources.cpuset_cpus"];
    Must "CRI-LIM-009": "An OOM kill in one container does not end the pod or its other containers.",
        CRITEST, tags ["kubelet", "resources", "exit"], calls [ContainerStatus, PodSandboxStatus],
        memory_kill_is_of_one_container given [limits, pod], faults [
            "CreateContainer request drop config.linux.resources",
            "ContainerStatus set status.reason \"Error\"",
            "PodSandboxStatus set status.state \"SANDBOX_NOTREADY\"",
        ];
    Must "CRI-LIM-010": "ContainerStats reports memory and CPU usage, and CPU time increases while the container works.",
        KUBELET, tags ["kubelet", "resources", "statistics"], calls [ContainerStats],
        usage_is_counted given [limits, pod], faults [
            "ContainerStats set stats.cpu.usage_core_nano_seconds.value \"1\"",
            "ContainerStats drop stats.cpu.usage_core_nano_seconds",
            "ContainerStats drop stats.memory",
            "ContainerStats set stats.memory.working_set_bytes.value \"0\"",
            "ContainerStats set stats.cpu.timestamp 1",
        ];
};

fn some() -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        memory_limit_in_bytes: 64 * MIB,
        cpu_period: 100_000,
        cpu_quota: 150_000,
        cpu_shares: 2048,
        ..Default::default()
    }
}

pub(crate) fn with(
    mut config: v1::ContainerConfig,
    resources: v1::LinuxContainerResources,
) -> v1::ContainerConfig {
    config.linux.get_or_insert_default().resources = Some(resources);
    config
}

/// A configuration with limits of memory and CPU time.
pub(crate) fn some_limits(config: v1::ContainerConfig) -> v1::ContainerConfig {
    with(config, some())
}

async fn limited(x: &Context) -> Verdict<(Pod, String)> {
    x.needs_limits()?;
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, some_limits(x.forever("c"))).await?;
    Ok((pod, id))
}

/// A file of the container's cgroup, by its name in cgroup v2 or in v1.
pub(crate) async fn of_cgroup(
    x: &Context,
    id: &str,
    unified: &str,
    legacy: &str,
) -> Verdict<Option<String>> {
    let script = format!(
        "cat /sys/fs/cgroup/{unified} 2>/dev/null || cat /sys/fs/cgroup/{legacy} 2>/dev/null || echo none"
    );
    let text = x.client.sh(id, &script).await?;
    Ok((text.trim() != "none").then(|| text.trim().to_owned()))
}

fn unseen<T>() -> Verdict<T> {
    skipped("the container does not see its cgroup below /sys/fs/cgroup")
}

pub(crate) async fn memory_limit(x: &Context, id: &str) -> Verdict<String> {
    match of_cgroup(x, id, "memory.max", "memory/memory.limit_in_bytes").await? {
        Some(limit) => Ok(limit),
        None => unseen(),
    }
}

/// CPU quota and period, from the files of cgroup v2 or v1.
pub(crate) async fn cpu_limit(x: &Context, id: &str) -> Verdict<String> {
    if let Some(both) = of_cgroup(x, id, "cpu.max", "cpu/no-such-file").await? {
        return Ok(both);
    }
    let quota = of_cgroup(x, id, "cpu/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_quota_us").await?;
    let period = of_cgroup(x, id, "cpu/cpu.cfs_period_us", "cpu,cpuacct/cpu.cfs_period_us").await?;
    match (quota, period) {
        (Some(quota), Some(period)) => Ok(format!("{quota} {period}")),
        _ => unseen(),
    }
}

async fn memory_limit_is_set(x: &Context) -> Verdict {
    let (_pod, id) = limited(x).await?;
    let limit = memory_limit(x, &id).await?;
    equal("the memory limit", &limit, &(64 * MIB).to_string())
}

async fn cpu_limits_are_set(x: &Context) -> Verdict {
    let (_pod, id) = limited(x).await?;
    let both = cpu_limit(x, &id).await?;
    equal("quota and period", both.as_str(), "150000 100000")?;
    let shares = of_cgroup(x, &id, "cpu.weight", "cpu/cpu.shares").await?;
    let Some(shares) = shares else {
        return unseen();
    };
    // Runtimes have two formulas for the weight of cgroup v2; either result is above the default.
    let default = if shares.len() > 3 { 1024 } else { 100 };
    let set = shares
        .parse::<u64>()
        .is_ok_and(|shares| shares == 2048 || (shares != default && shares != 1024 && shares > 39));
    ensure(set, "shares or weight", "the value of 2048 shares", shares)
}

type Numbers = (i64, i64, i64, i64);

async fn limits_in_status(x: &Context, id: &str) -> Verdict<Option<Numbers>> {
    let status = x.client.container(id).await?;
    let linux = status.resources.and_then(|resources| resources.linux);
    Ok(linux.map(|linux| {
        (linux.memory_limit_in_bytes, linux.cpu_period, linux.cpu_quota, linux.cpu_shares)
    }))
}

async fn status_has_limits(x: &Context) -> Verdict {
    let (_pod, id) = limited(x).await?;
    let what = "memory limit, period, quota and shares in ContainerStatus";
    equal(what, &limits_in_status(x, &id).await?, &Some((64 * MIB, 100_000, 150_000, 2048)))
}

async fn oom_score_is_set(x: &Context) -> Verdict {
    for score in [700, 850] {
        let resources = v1::LinuxContainerResources { oom_score_adj: score, ..Default::default() };
        let script = "cat /proc/self/oom_score_adj";
        let expected = format!("{score}\n");
        let what = "/proc/self/oom_score_adj";
        x.prints(with(x.script("c", script), resources.clone()), what, &expected).await?;
        let pod = x.pod().await?;
        let id = x.start_ready(&pod, with(x.forever("c"), resources)).await?;
        let seen = x.client.sh(&id, script).await?;
        equal("/proc/self/oom_score_adj of a command", seen.as_str(), expected.as_str())?;
    }
    Ok(())
}

async fn update_changes_running_container(x: &Context) -> Verdict {
    let (_pod, id) = limited(x).await?;
    // A runtime that keeps returning its first status fails here.
    limits_in_status(x, &id).await?;
    let wider = v1::LinuxContainerResources {
        memory_limit_in_bytes: 128 * MIB,
        cpu_quota: 180_000,
        ..some()
    };
    x.client.update(&id, wider).await?;
    let limit = memory_limit(x, &id).await?;
    equal("the memory limit", &limit, &(128 * MIB).to_string())?;
    let both = cpu_limit(x, &id).await?;
    equal("quota and period", both.as_str(), "180000 100000")?;
    let what = "memory limit, period, quota and shares in ContainerStatus";
    equal(what, &limits_in_status(x, &id).await?, &Some((128 * MIB, 100_000, 180_000, 2048)))
}

async fn update_changes_created_container(x: &Context, pod: Pod) -> Verdict {
    let id = pod.create(with(x.forever("c"), some())).await?;
    let wider = v1::LinuxContainerResources { memory_limit_in_bytes: 128 * MIB, ..some() };
    x.client.update(&id, wider).await?;
    x.client.start(&id).await?;
    x.logged(&pod, "ready").await?;
    let limit = memory_limit(x, &id).await?;
    equal("the memory limit", &limit, &(128 * MIB).to_string())?;
    let memory = limits_in_status(x, &id).await?.map(|limits| limits.0);
    equal("memory limit in ContainerStatus", &memory, &Some(128 * MIB))
}

async fn update_leaves_the_rest(x: &Context) -> Verdict {
    let (_pod, id) = limited(x).await?;
    let shares = v1::LinuxContainerResources { cpu_shares: 1500, ..Default::default() };
    x.client.update(&id, shares).await?;
    let limit = memory_limit(x, &id).await?;
    equal("the memory limit", &limit, &(64 * MIB).to_string())?;
    let both = cpu_limit(x, &id).await?;
    equal("quota and period", both.as_str(), "150000 100000")?;
    let what = "memory limit, period, quota and shares in ContainerStatus";
    equal(what, &limits_in_status(x, &id).await?, &Some((64 * MIB, 100_000, 150_000, 1500)))
}

async fn cpus_are_set(x: &Context) -> Verdict {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = |text: &str| {
        let mut lines = text.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.map(|list| list.trim().to_owned()).unwrap_or_default()
    };
    let all = list(&status);
    let first: String = all.chars().take_while(char::is_ascii_digit).collect();
    if all == first {
        return skipped(format!("this machine has one CPU: {all}"));
    }
    let resources =
        v1::LinuxContainerResources { cpuset_cpus: first.clone(), ..Default::default() };
    let config = with(x.script("c", "cat /proc/self/status"), resources);
    let inside = list(&x.output(config).await?);
    equal("Cpus_allowed_list", &inside, &first)
}

async fn memory_kill_is_of_one_container(x: &Context, pod: Pod) -> Verdict {
    let beside = pod.start(x.forever("d")).await?;
    let text = "v=0123456789abcdef; while [ ${#v} -lt 268435456 ]; do v=$v$v; done";
    let resources = v1::LinuxContainerResources {
        memory_limit_in_bytes: 32 * MIB,
        memory_swap_limit_in_bytes: 32 * MIB,
        ..Default::default()
    };
    let id = pod.start(with(x.script("c", text), resources)).await?;
    let status = x.exited(&id).await?;
    let seen = (status.exit_code, status.reason.as_str());
    equal("exit code and reason", &seen, &(137, "OOMKilled"))?;
    x.container_is(&beside, ContainerState::ContainerRunning).await?;
    x.pod_is(&pod.id, PodSandboxState::SandboxReady).await
}

async fn stats(x: &Context, id: &str) -> Verdict<(v1::CpuUsage, v1::MemoryUsage)> {
    let request = v1::ContainerStatsRequest { container_id: id.to_owned() };
    let answer = x.client.runtime.clone().container_stats(request).await?;
    let stats = answer.into_inner().stats.unwrap_or_default();
    match (stats.cpu, stats.memory) {
        (Some(cpu), Some(memory)) => Ok((cpu, memory)),
        _ => failed("ContainerStats", "cpu and memory", "not both"),
    }
}

async fn usage_is_counted(x: &Context, pod: Pod) -> Verdict {
    let before = crate::rules::sandbox::echo::now() - 60_000_000_000;
    let busy = x.script("c", "echo ready; while :; do :; done");
    let id = x.start_ready(&pod, busy).await?;
    let used = |cpu: &v1::CpuUsage| cpu.usage_core_nano_seconds.map_or(0, |used| used.value);
    let first = x
        .until("CPU time in ContainerStats", async || {
            let (cpu, memory) = stats(x, &id).await.map_err(|outcome| format!("{outcome:?}"))?;
            match used(&cpu) {
                0 => Err(format!("{cpu:?}")),
                _ => Ok((cpu, memory)),
            }
        })
        .await?;
    let what = "the timestamp of cpu";
    ensure(first.0.timestamp > before, what, "the current time in nanoseconds", first.0)?;
    let working = first.1.working_set_bytes.map_or(0, |bytes| bytes.value);
    ensure(working > 0, "working_set_bytes", "not 0", first.1)?;
    x.until("CPU time to grow by 50 ms", async || {
        let (cpu, _) = stats(x, &id).await.map_err(|outcome| format!("{outcome:?}"))?;
        match used(&cpu) >= used(&first.0) + 50_000_000 && cpu.timestamp > first.0.timestamp {
            true => Ok(()),
            false => Err(format!("{cpu:?} after {:?}", first.0)),
        }
    })
    .await
}

pub(crate) const OOM_KILLS: &[Rule] = rules! {
    Must "CRI-LIM-018": "All containers that are OOM-killed concurrently, in one pod or in several, are reported as OOMKilled.",
        CONTAINERD, tags ["kubelet", "resources", "exit", "concurrency"], calls [ContainerStatus],
        kills_at_once_are_all_reported given [limits], faults [
            "ContainerStatus if response status.metadata.name = \"d\" set status.reason \"Error\"",
            "ContainerStatus if response status.metadata.name = \"c\" set status.exit_code 1",
        ];
};

async fn kills_at_once_are_all_reported(x: &Context) -> Verdict {
    let pods = [x.pod().await?, x.pod().await?];
    let text = "v=0123456789abcdef; while [ ${#v} -lt 268435456 ]; do v=$v$v; done";
    let resources = v1::LinuxContainerResources {
        memory_limit_in_bytes: 24 * MIB,
        memory_swap_limit_in_bytes: 24 * MIB,
        ..Default::default()
    };
    let [first, second] = &pods;
    let start = |pod: &'_ Pod, name| {
        let pod = pod.clone();
        let config = with(x.script(name, text), resources.clone());
        async move { pod.start(config).await }
    };
    let (a, b, c, d) = tokio::try_join!(
        start(first, "c"),
        start(first, "d"),
        start(second, "c"),
        start(second, "d")
    )?;
    for id in [a, b, c, d] {
        let status = x.exited(&id).await?;
        let seen = (status.exit_code, status.reason.as_str());
        let name = status.metadata.unwrap_or_default().name;
        let what = format!("exit code and reason of container {name}");
        equal(&what, &seen, &(137, "OOMKilled"))?;
    }
    Ok(())
}
