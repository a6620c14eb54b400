//! Rules of concurrent OOM kills.

use crate::prelude::*;
use crate::rules::limits::{MIB, with};

pub(crate) const RULES: &[Rule] = rules! {
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
