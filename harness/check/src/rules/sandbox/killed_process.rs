//! Rules for sandboxes whose process is killed by another process than the runtime.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SBX-022": "A sandbox whose pause process is killed is reported as not ready, so that the kubelet replaces the sandbox, and can still be stopped and removed.",
        CONTAINERD, tags ["kubelet", "state", "signal"], calls [PodSandboxStatus, ListPodSandbox, StopPodSandbox, RemovePodSandbox],
        killed_sandbox_is_not_ready given [namespaces, pod], faults [
            "PodSandboxStatus set status.state \"SANDBOX_READY\"",
            "ListPodSandbox set items.state \"SANDBOX_READY\"",
            "StopPodSandbox answer INTERNAL",
            "RemovePodSandbox answer INTERNAL",
        ];
};

async fn killed_sandbox_is_not_ready(x: &Context, pod: Pod) -> Verdict {
    let process = process_of(x, &pod).await?;
    kill(process, Signal::SIGKILL)
        .map_err(|error| skipped(format!("process {process} cannot be killed: {error}")))?;
    x.until("the sandbox to be SANDBOX_NOTREADY", async || match x.pod_status(&pod.id).await {
        Ok(status) if status.state() == PodSandboxState::SandboxReady => Err(status),
        status => Ok(status),
    })
    .await??;
    x.pod_is(&pod.id, PodSandboxState::SandboxNotready).await?;
    x.client.stop_pod(&pod.id).await?;
    x.pod_is(&pod.id, PodSandboxState::SandboxNotready).await?;
    x.client.remove_pod(&pod.id).await?;
    x.until("the sandbox to disappear from the list", async || match x.listed_pod(&pod.id).await {
        Ok(Some(listed)) => Err(listed),
        result => Ok(result),
    })
    .await?
    .map(drop)
}

/// The process in `.info.pid`, if it certainly belongs to this pod: no other process may be killed.
async fn process_of(x: &Context, pod: &Pod) -> Verdict<Pid> {
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: true };
    let mut runtime = x.client.runtime.clone();
    let answer = runtime.pod_sandbox_status(request).await?.into_inner();
    let info = answer.info.get("info").map(String::as_str);
    let info: serde_json::Value =
        serde_json::from_str(info.unwrap_or_default()).unwrap_or_default();
    let number = info["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let Some(number) = number.filter(|pid| *pid > 1) else {
        let why = "PodSandboxStatus with verbose has no pid in its info";
        return Err(skipped(why.to_owned()));
    };
    let network = x.script("c", "readlink /proc/self/ns/net");
    let of_pod = x.output_in(pod, network).await?;
    let own = fs::read_link("/proc/self/ns/net").ok();
    let of_process = fs::read_link(format!("/proc/{number}/ns/net"));
    match of_process {
        // Without namespaces, any process may be in the network namespace of this one.
        Ok(link) if link == Path::new(of_pod.trim()) && own.as_ref() != Some(&link) => {
            Ok(Pid::from_raw(number))
        }
        Ok(_) => Err(skipped(format!("process {number} is not in the pod's own network"))),
        Err(error) => Err(skipped(format!("process {number} cannot be seen here: {error}"))),
    }
}

fn skipped(why: String) -> Outcome {
    Outcome::Skipped(why)
}
