//! Rules of extreme limits and ids.

use crate::prelude::*;
use crate::rules::limits::{cpu_limit, memory_limit, of_cgroup, with};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-LIM-030": "Memory limits over 4 GiB, CPU shares of 2 and 262144, and quotas of 16 and 0.2 CPUs are applied, both by CreateContainer and by UpdateContainerResources.",
        KUBELET, tags ["kubelet", "resources", "resize"], calls [CreateContainer, UpdateContainerResources, ContainerStatus],
        extremes_are_set given [limits], faults [
            // The limits truncated to 32 bits.
            "CreateContainer request set config.linux.resources.memory_limit_in_bytes 1073741824",
            "UpdateContainerResources request set linux.memory_limit_in_bytes 2147483648",
            "ContainerStatus set status.resources.linux.memory_limit_in_bytes 1073741824",
            "CreateContainer request set config.linux.resources.cpu_shares 1024",
            "CreateContainer request set config.linux.resources.cpu_quota 100000",
            "UpdateContainerResources request set linux.cpu_shares 10000",
            "UpdateContainerResources request set linux.cpu_quota 100000",
            "ContainerStatus set status.resources.linux.cpu_shares 2",
        ];
    Must "CRI-CFG-032": "User, group and supplemental group ids above 65535 are applied; some clusters assign such ids to each Kubernetes namespace.",
        KUBELET, tags ["kubelet", "user"], calls [CreateContainer],
        high_ids_are_set given [users], faults [
            // The ids truncated to 16 bits.
            "CreateContainer request set config.linux.security_context.run_as_user.value \"37888\"",
            "CreateContainer request set config.linux.security_context.run_as_group.value \"37889\"",
            "CreateContainer request set config.linux.security_context.supplemental_groups [\"37890\"]",
        ];
};

const GIB: i64 = 1 << 30;

fn resources(gib: i64, cpu_shares: i64, cpu_quota: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        memory_limit_in_bytes: gib * GIB,
        cpu_period: 100_000,
        cpu_quota,
        cpu_shares,
        ..Default::default()
    }
}

async fn extremes_are_set(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let (first, second) = (resources(5, 2, 1_600_000), resources(6, 262_144, 20_000));
    let id = x.start_ready(&pod, with(x.forever("c"), first.clone())).await?;
    // Shares, and their weight in cgroup v2 by the formulas of all runtimes.
    are_set(x, &id, &first, ["2", "1"]).await?;
    x.client.update(&id, second.clone()).await?;
    are_set(x, &id, &second, ["262144", "10000"]).await
}

async fn are_set(
    x: &Context,
    id: &str,
    expected: &v1::LinuxContainerResources,
    shares: [&str; 2],
) -> Verdict {
    let limit = memory_limit(x, id).await?;
    equal("the memory limit", &limit, &expected.memory_limit_in_bytes.to_string())?;
    let both = cpu_limit(x, id).await?;
    equal("quota and period", &both, &format!("{} 100000", expected.cpu_quota))?;
    let seen = of_cgroup(x, id, "cpu.weight", "cpu/cpu.shares").await?;
    let is_one = seen.as_deref().is_some_and(|seen| shares.contains(&seen));
    ensure(is_one, "shares or weight", &shares.join(" or "), &seen)?;
    let reported = x.client.container(id).await?.resources.unwrap_or_default();
    let reported = reported.linux.unwrap_or_default();
    equal(
        "memory limit, quota and shares in ContainerStatus",
        &(reported.memory_limit_in_bytes, reported.cpu_quota, reported.cpu_shares),
        &(expected.memory_limit_in_bytes, expected.cpu_quota, expected.cpu_shares),
    )
}

async fn high_ids_are_set(x: &Context) -> Verdict {
    let ids = x.output(x.script("c", "cat /proc/self/uid_map")).await?;
    let last = ids.split_whitespace().nth(2).and_then(|count| count.parse::<u32>().ok());
    if last.is_none_or(|count| count < 2_000_000_003) {
        return skipped("containers of this runtime cannot have such high ids");
    }
    let mut config = x.script("c", "id -u; id -g; id -G");
    let security = fixture::security(&mut config);
    security.run_as_user = Some(v1::Int64Value { value: 2_000_000_000 });
    security.run_as_group = Some(v1::Int64Value { value: 2_000_000_001 });
    security.supplemental_groups = vec![2_000_000_002];
    let expected = "2000000000\n2000000001\n2000000001 2000000002\n";
    x.prints(config, "user, group and groups of the process", expected).await
}
