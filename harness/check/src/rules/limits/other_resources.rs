//! Rules of resources other than memory and CPU time, which must be reported and updated, and of device permissions.

use std::path::Path;

use crate::prelude::*;
use crate::rules::limits::{cpu_limit, of_cgroup, with};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-LIM-014": "ContainerStatus reports the cpuset_cpus, cpuset_mems and oom_score_adj set at creation.",
        API, tags ["resources", "echo"], calls [CreateContainer, ContainerStatus],
        other_resources_are_echoed given [limits], faults [
            "ContainerStatus drop status.resources.linux.cpuset_cpus",
            "ContainerStatus drop status.resources.linux.cpuset_mems",
            "CreateContainer request drop config.linux.resources.cpuset_mems",
            "ContainerStatus set status.resources.linux.oom_score_adj 5",
            "CreateContainer request drop config.linux.resources.cpuset_cpus",
        ];
    Must "CRI-LIM-015": "UpdateContainerResources changes the CPU period, shares and cpuset of a running container, and ContainerStatus reports the new values.",
        KUBELET, tags ["kubelet", "resources", "resize"], calls [UpdateContainerResources, ContainerStatus, ExecSync],
        other_resources_are_updated given [limits], faults [
            "UpdateContainerResources request drop linux.cpu_period",
            "UpdateContainerResources request drop linux.cpu_shares",
            "UpdateContainerResources request drop linux.cpuset_cpus",
        ];
    Must "CRI-LIM-021": "A CPU quota of -1 means no limit, both in CreateContainer and in UpdateContainerResources; the kubelet sets this quota for containers with exclusive CPUs.",
        KUBELET, tags ["kubelet", "resources", "resize"], calls [CreateContainer, UpdateContainerResources],
        quota_is_lifted given [limits], faults [
            "CreateContainer request set config.linux.resources.cpu_quota 100000",
            "UpdateContainerResources request drop linux.cpu_quota",
            "UpdateContainerResources answer INVALID_ARGUMENT",
            "CreateContainer answer INVALID_ARGUMENT",
        ];
    Should "CRI-SEC-011": "A host device with permission r can be opened only for reading, and has the same device number as on the host.",
        KUBELET, tags ["device", "resources"], calls [CreateContainer],
        device_is_opened_as_given given [limits], faults [
            "CreateContainer request set config.devices.permissions \"rwm\"",
            "CreateContainer request set config.devices.host_path \"/dev/null\"",
            "CreateContainer request drop config.devices",
        ];
};

/// The first CPU that this process may run on.
fn first_cpu() -> Option<String> {
    first_of("Cpus_allowed_list:")
}

/// The first number of a list in `/proc/self/status`.
fn first_of(name: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix(name))?;
    let first: String = list.trim().chars().take_while(char::is_ascii_digit).collect();
    (!first.is_empty()).then_some(first)
}

async fn echoed(x: &Context, id: &str) -> Verdict<v1::LinuxContainerResources> {
    let resources = x.client.container(id).await?.resources.unwrap_or_default();
    present(resources.linux, "resources.linux in ContainerStatus", "to be set", "nothing")
}

async fn other_resources_are_echoed(x: &Context) -> Verdict {
    let resources = v1::LinuxContainerResources {
        cpu_shares: 512,
        cpuset_cpus: first_cpu().unwrap_or_default(),
        cpuset_mems: first_of("Mems_allowed_list:").unwrap_or_default(),
        oom_score_adj: 700,
        ..Default::default()
    };
    let pod = x.pod().await?;
    let id = pod.create(with(x.forever("c"), resources.clone())).await?;
    let seen = echoed(x, &id).await?;
    equal("cpuset_cpus in ContainerStatus", &seen.cpuset_cpus, &resources.cpuset_cpus)?;
    equal("cpuset_mems in ContainerStatus", &seen.cpuset_mems, &resources.cpuset_mems)?;
    equal("oom_score_adj in ContainerStatus", &seen.oom_score_adj, &700)
}

async fn other_resources_are_updated(x: &Context) -> Verdict {
    let resources = v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 2048,
        ..Default::default()
    };
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, with(x.forever("c"), resources)).await?;
    let files = ("cpu.weight", "cpu/cpu.shares");
    let before = of_cgroup(x, &id, files.0, files.1).await?;
    let cpu = first_cpu().unwrap_or_default();
    let other = v1::LinuxContainerResources {
        cpu_period: 50_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        cpuset_cpus: cpu.clone(),
        ..Default::default()
    };
    x.client.update(&id, other).await?;
    equal("quota and period", cpu_limit(x, &id).await?.as_str(), "50000 50000")?;
    let after = of_cgroup(x, &id, files.0, files.1).await?;
    if after == before {
        return failed("shares or weight", "the value of 512 shares", format!("{after:?}"));
    }
    let status = x.client.sh(&id, "cat /proc/1/status").await?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    equal("Cpus_allowed_list", &list.map(str::trim), &Some(cpu.as_str()))?;
    let seen = echoed(x, &id).await?;
    equal(
        "period, quota, shares and CPUs in ContainerStatus",
        &(seen.cpu_period, seen.cpu_quota, seen.cpu_shares, seen.cpuset_cpus.as_str()),
        &(50_000, 50_000, 512, cpu.as_str()),
    )
}

async fn quota_is_lifted(x: &Context) -> Verdict {
    let with_quota = |cpu_quota| v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota,
        cpu_shares: 1024,
        ..Default::default()
    };
    let pod = x.pod().await?;
    let free = pod.start(with(x.forever("c"), with_quota(-1))).await?;
    let limited = pod.start(with(x.forever("d"), with_quota(50_000))).await?;
    x.client.update(&limited, with_quota(-1)).await?;
    for (what, id) in [
        ("quota and period of a container created with -1", free),
        ("quota and period after UpdateContainerResources with -1", limited),
    ] {
        let seen = cpu_limit(x, &id).await?;
        // From cgroup v1 or v2.
        let lifted = ["-1 100000", "max 100000"].contains(&seen.as_str());
        ensure(lifted, what, "-1 or max, and 100000", seen)?;
    }
    Ok(())
}

/// Devices that no container has by default, and that have no effect when they are opened.
const DEVICES: [&str; 2] = ["/dev/loop-control", "/dev/fuse"];

async fn device_is_opened_as_given(x: &Context) -> Verdict {
    if !rustix::process::geteuid().is_root() {
        return skipped("a runtime without root cannot restrict the use of devices");
    }
    let Some(device) = DEVICES.iter().find(|path| Path::new(path).exists()) else {
        return skipped("this machine has none of the devices that the rule uses");
    };
    let script = "perl -e 'my @s = stat q(/dev/checked); print qq($s[6]\\n);
        print open(F, q(<), q(/dev/checked)) ? qq(read\\n) : qq(not read\\n);
        print open(F, q(>), q(/dev/checked)) ? qq(written\\n) : qq(not written\\n)'";
    let mut config = x.script("c", script);
    config.devices.push(v1::Device {
        container_path: "/dev/checked".to_owned(),
        host_path: (*device).to_owned(),
        permissions: "r".to_owned(),
    });
    let output = x.output(config).await?;
    let number = rustix::fs::stat(*device).map_or(0, |stat| stat.st_rdev);
    let what = "the device number, and whether it is read and written";
    equal(what, output.as_str(), &format!("{number}\nread\nnot written\n"))
}
