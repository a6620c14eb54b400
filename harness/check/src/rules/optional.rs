//! Rules for calls and statistics that not every runtime supports, and for large messages.

pub(crate) mod large_messages;

use crate::prelude::*;
use crate::rules::content::image;
use crate::rules::sandbox::UNKNOWN;
use crate::rules::statistics::without_cgroup_parent;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-OPT-001": "UpdateRuntimeConfig with an empty configuration succeeds.",
        API, tags ["network"], calls [UpdateRuntimeConfig, Version],
        empty_configuration_is_taken, faults [
            "UpdateRuntimeConfig answer INTERNAL",
            "Version answer INTERNAL",
        ];
    Should "CRI-OPT-002": "UpdatePodSandboxResources of a sandbox succeeds, and of an unknown sandbox returns NOT_FOUND.",
        KUBELET, tags ["kubelet", "resize", "codes"], calls [UpdatePodSandboxResources, PodSandboxStatus],
        resources_of_pod_are_noted given [pod], faults [
            "UpdatePodSandboxResources answer INTERNAL",
            "UpdatePodSandboxResources swallow",
            "UpdatePodSandboxResources recode NOT_FOUND INTERNAL",
        ];
    Should "CRI-OPT-003": "PodSandboxStatus reports an annotation of 1 MB byte for byte, unless RunPodSandbox refuses the annotation.",
        KUBELET, tags ["limits", "echo"], calls [RunPodSandbox],
        long_annotation_is_echoed, faults [
            "PodSandboxStatus set status.annotations.long \"x\"",
            "PodSandboxStatus drop status.annotations",
        ];
    Should "CRI-OPT-004": "ExecSync returns an output of 4 MiB in full.",
        KUBELET, tags ["limits", "exec"], calls [ExecSync],
        long_output_is_carried given [container], faults ["ExecSync set stdout \"eHg=\"", "ExecSync answer RESOURCE_EXHAUSTED"];
    Should "CRI-OPT-005": "ContainerStats reports the bytes, the inodes and the filesystem of a container's writable layer, with the time of measurement.",
        KUBELET, tags ["kubelet", "statistics", "files"], calls [ContainerStats],
        writable_layer_is_counted given [namespaces], faults [
            "ContainerStats drop stats.writable_layer",
            "ContainerStats set stats.writable_layer.used_bytes.value \"1\"",
            "ContainerStats drop stats.writable_layer.timestamp",
            "ContainerStats drop stats.writable_layer.inodes_used",
            "ContainerStats set stats.writable_layer.fs_id.mountpoint \"/none\"",
        ];
    Should "CRI-OPT-006": "PodSandboxStats reports CPU time, memory and process count of the pod, with the time of measurement.",
        KUBELET, tags ["kubelet", "statistics", "resources"], calls [PodSandboxStats],
        pod_is_counted given [limits, pod], faults [
            "PodSandboxStats drop stats.linux.cpu",
            "PodSandboxStats drop stats.linux.memory",
            "PodSandboxStats set stats.linux.process.process_count.value \"0\"",
            "PodSandboxStats set stats.linux.process.process_count.value \"1\"",
            "PodSandboxStats set stats.linux.process.process_count.value \"40\"",
            "PodSandboxStats drop stats.linux.cpu.timestamp",
        ];
    Must "CRI-OPT-007": "ListContainerStats reports CPU time and memory of each running container, with the time of measurement.",
        KUBELET, tags ["kubelet", "statistics", "resources"], calls [ListContainerStats],
        listed_containers_are_counted given [limits, pod, container], faults [
            "ListContainerStats drop stats.cpu",
            "ListContainerStats drop stats.memory",
            "ListContainerStats set stats.memory.working_set_bytes.value \"0\"",
            "ListContainerStats drop stats.cpu.timestamp",
        ];
    Should "CRI-OPT-008": "CheckpointContainer writes an archive and leaves the container running.",
        KUBELET, tags ["checkpoint"], calls [CheckpointContainer, ContainerStatus],
        checkpoint_is_written given [namespaces], faults [
            "CheckpointContainer swallow",
            "ContainerStatus set status.state \"CONTAINER_EXITED\"",
        ];
    Should "CRI-OPT-009": "ListContainers returns all containers of a pod with 40 containers.",
        KUBELET, tags ["limits", "agreement"], calls [CreateContainer, ListContainers],
        many_containers_are_listed given [pod], faults [
            "ListContainers set containers [{\"id\": \"x\"}]",
            "CreateContainer after 30 swallow",
        ];
};

async fn empty_configuration_is_taken(x: &Context) -> Verdict {
    // A pod CIDR would affect other users of the runtime.
    let request =
        v1::UpdateRuntimeConfigRequest { runtime_config: Some(v1::RuntimeConfig::default()) };
    let mut runtime = x.client.runtime.clone();
    runtime.update_runtime_config(request).await?;
    Ok(x.client.version().await.map(drop)?)
}

async fn resources_of_pod_are_noted(x: &Context, pod: Pod) -> Verdict {
    let request = |id: &str| v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: id.to_owned(),
        overhead: None,
        resources: Some(v1::LinuxContainerResources { cpu_shares: 512, ..Default::default() }),
    };
    let mut runtime = x.client.runtime.clone();
    runtime.update_pod_sandbox_resources(request(&pod.id)).await?;
    x.pod_is(&pod.id, PodSandboxState::SandboxReady).await?;
    let unknown = runtime.update_pod_sandbox_resources(request(UNKNOWN)).await;
    let what = "UpdatePodSandboxResources of an unknown sandbox";
    refused_with(what, unknown, Code::NotFound)
}

async fn long_annotation_is_echoed(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    let long: String = "0123456789abcdef".repeat(1 << 16);
    config.annotations.insert("long".to_owned(), long.clone());
    drop(std::fs::create_dir_all(&config.log_directory));
    let id = match x.client.run_pod(config).await {
        Ok(id) => id,
        Err(status) if status.code() == Code::Unavailable => return Err(status.into()),
        Err(status) => {
            return diverges(format!(
                "RunPodSandbox refuses it: {:?}: {}",
                status.code(),
                status.message()
            ));
        }
    };
    let annotations = x.pod_status(&id).await?.annotations;
    let seen = annotations.get("long");
    ensure(seen == Some(&long), "an annotation of 1 MB", "echoed whole", seen.map(String::len))?;
    x.client.stop_pod(&id).await?;
    Ok(x.client.remove_pod(&id).await?)
}

async fn long_output_is_carried(x: &Context, id: String) -> Verdict {
    const LENGTH: usize = 4 << 20;
    let script = format!("head -c {LENGTH} /dev/zero");
    let answer = x.client.exec(&id, ["/bin/sh", "-c", &script], 60).await?;
    equal("the length of the output", &answer.stdout.len(), &LENGTH)?;
    equal("the exit code", &answer.exit_code, &0)
}

async fn stats(x: &Context, id: &str) -> Result<v1::ContainerStats, String> {
    let request = v1::ContainerStatsRequest { container_id: id.to_owned() };
    let answer = x.client.runtime.clone().container_stats(request).await;
    let answer = answer.map_err(|status| status.to_string())?;
    Ok(answer.into_inner().stats.unwrap_or_default())
}

async fn writable_layer_is_counted(x: &Context) -> Verdict {
    const WRITTEN: u64 = 1 << 20;
    let image = image(x, "1", |image| image).await?;
    let pod = x.pod().await?;
    let text = format!(
        "n=0; while [ $n -lt 64 ]; do n=$((n + 1)); printf %{}s x; done >/written; echo ready; sleep 1000",
        WRITTEN / 64
    );
    let mut config = x.script("c", &text);
    image.clone_into(&mut config.image.get_or_insert_default().image);
    let id = x.start_ready(&pod, config).await?;
    // Some runtimes count every ten seconds.
    x.until("the writable layer to have 1 MiB", async || {
        let layer = stats(x, &id).await?.writable_layer;
        let Some(layer) = layer else {
            return Err("no writable_layer".to_owned());
        };
        let used = layer.used_bytes.map_or(0, |bytes| bytes.value);
        let mountpoint = layer.fs_id.clone().unwrap_or_default().mountpoint;
        let exists = std::path::Path::new(&mountpoint).exists();
        let inodes = layer.inodes_used.map_or(0, |inodes| inodes.value);
        let times =
            crate::rules::sandbox::echo::of_now("the time of writable_layer", layer.timestamp)
                .is_ok();
        match used >= WRITTEN && exists && inodes > 0 && times {
            true => Ok(()),
            false => Err(format!("{layer:?}")),
        }
    })
    .await
}

fn counted(cpu: Option<&v1::CpuUsage>, memory: Option<&v1::MemoryUsage>) -> bool {
    let cpu = cpu.is_some_and(|cpu| {
        cpu.timestamp > 0 && cpu.usage_core_nano_seconds.is_some_and(|used| used.value > 0)
    });
    let memory = memory.is_some_and(|memory| {
        memory.timestamp > 0 && memory.working_set_bytes.is_some_and(|bytes| bytes.value > 0)
    });
    cpu && memory
}

async fn pod_is_counted(x: &Context, pod: Pod) -> Verdict {
    // The shell's child is running when the shell prints `ready`.
    let script = x.script("c", "sleep 1000 & echo ready; wait");
    pod.start(script).await?;
    x.logged(&pod, "ready").await?;
    let request = v1::PodSandboxStatsRequest { pod_sandbox_id: pod.id.clone() };
    let answer = x.client.runtime.clone().pod_sandbox_stats(request).await;
    let answer = without_cgroup_parent(answer)?.into_inner();
    let linux = answer.stats.unwrap_or_default().linux.unwrap_or_default();
    let expected = "numbers above 0, with timestamps";
    let holds = counted(linux.cpu.as_ref(), linux.memory.as_ref());
    ensure(holds, "cpu and memory of the pod", expected, (&linux.cpu, &linux.memory))?;
    let processes = linux.process.as_ref().and_then(|process| process.process_count);
    ensure(
        // The container runs a shell and its child.
        processes.is_some_and(|count| (2..10).contains(&count.value)),
        "process_count",
        "2, the processes of one container",
        linux.process,
    )
}

async fn listed_containers_are_counted(x: &Context, pod: Pod, id: String) -> Verdict {
    let request = v1::ListContainerStatsRequest {
        filter: Some(v1::ContainerStatsFilter {
            pod_sandbox_id: pod.id.clone(),
            ..Default::default()
        }),
    };
    let answer = x.client.runtime.clone().list_container_stats(request).await?;
    let all = answer.into_inner().stats;
    let ours = |one: &&v1::ContainerStats| one.attributes.as_ref().is_some_and(|a| a.id == id);
    let Some(stats) = all.iter().find(ours) else {
        return failed("the container in ListContainerStats", "to be listed", "missing");
    };
    let holds = counted(stats.cpu.as_ref(), stats.memory.as_ref());
    ensure(holds, "cpu and memory in ListContainerStats", "numbers above 0, with timestamps", stats)
}

async fn checkpoint_is_written(x: &Context) -> Verdict {
    let image = image(x, "1", |image| image).await?;
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    image.clone_into(&mut config.image.get_or_insert_default().image);
    let id = x.start_ready(&pod, config).await?;
    let archive = x.shared.directory.join(x.unique("checkpoint.tar"));
    let request = v1::CheckpointContainerRequest {
        container_id: id.clone(),
        location: archive.display().to_string(),
        timeout: 60,
    };
    match x.client.runtime.clone().checkpoint_container(request).await {
        Ok(_) => {}
        Err(status) if status.code() == Code::Unimplemented => return Err(status.into()),
        // Checkpoints depend on the kernel and on criu.
        Err(status) => return Err(Outcome::Skipped(status.message().to_owned())),
    }
    let size = std::fs::metadata(&archive).map_or(0, |file| file.len());
    ensure(size > 0, "the checkpoint archive", "not empty", size)?;
    x.container_is(&id, ContainerState::ContainerRunning).await
}

async fn many_containers_are_listed(x: &Context, pod: Pod) -> Verdict {
    let mut expected = Vec::new();
    for number in 0..40 {
        expected.push(pod.create(x.forever(&format!("c{number}"))).await?);
    }
    let filter = v1::ContainerFilter { pod_sandbox_id: pod.id.clone(), ..Default::default() };
    let all = x.client.containers(filter).await?.into_iter();
    let mut seen: Vec<String> = all.map(|one| one.id).collect();
    seen.sort();
    expected.sort();
    equal("the containers of the sandbox", &seen, &expected)
}
