//! Rules for namespaces: which containers share them, identified by the kernel's names in `/proc/self/ns`.

pub(crate) mod user;

use cri::v1::NamespaceOption;

use crate::prelude::*;

/// A fault that sets a namespace mode of every sandbox of a rule.
macro_rules! sandbox_mode {
    ($field:literal, $mode:literal) => {
        concat!(
            "RunPodSandbox request set config.linux.security_context.namespace_options.",
            $field,
            " \"",
            $mode,
            "\""
        )
    };
}

/// A fault that sets a namespace mode of every container of a rule.
macro_rules! container_mode {
    ($field:literal, $mode:literal) => {
        concat!(
            "CreateContainer request set config.linux.security_context.namespace_options.",
            $field,
            " \"",
            $mode,
            "\""
        )
    };
}
pub(crate) use {container_mode, sandbox_mode};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-NSP-001": "Containers of a pod share its network namespace, which differs from the network namespaces of other pods and of the host.",
        KUBELET, tags ["kubelet", "namespaces", "network"], calls [RunPodSandbox, CreateContainer],
        network_is_of_pod, faults [sandbox_mode!("network", "NODE")];
    Must "CRI-NSP-002": "Host-network pods share one network namespace.",
        KUBELET, tags ["kubelet", "namespaces", "network"], calls [RunPodSandbox, CreateContainer],
        network_is_of_host, faults [sandbox_mode!("network", "POD")];
    Must "CRI-NSP-003": "Containers of a pod share its IPC namespace, which differs from the IPC namespaces of other pods.",
        CRITEST, tags ["kubelet", "namespaces"], calls [RunPodSandbox, CreateContainer],
        ipc_is_of_pod, faults [sandbox_mode!("ipc", "NODE")];
    Must "CRI-NSP-004": "Containers of a pod share its hostname and its UTS namespace, which differs from the UTS namespaces of other pods.",
        KUBELET, tags ["kubelet", "namespaces"], calls [RunPodSandbox, CreateContainer],
        host_name_is_of_pod, faults [sandbox_mode!("network", "NODE")];
    Must "CRI-NSP-005": "By default, each container has its own PID namespace, in which its command is process 1.",
        KUBELET, tags ["kubelet", "namespaces", "process"], calls [CreateContainer],
        processes_are_of_container, faults [container_mode!("pid", "NODE")];
    Must "CRI-NSP-006": "Containers of hostPID pods share one PID namespace, and other containers are not in this namespace.",
        CRITEST, tags ["kubelet", "namespaces", "process"], calls [RunPodSandbox, CreateContainer],
        processes_are_of_host, faults [container_mode!("pid", "CONTAINER")];
    Must "CRI-NSP-024": "Containers of hostIPC pods share one IPC namespace, and other pods are not in this namespace.",
        CRITEST, tags ["kubelet", "namespaces"], calls [RunPodSandbox, CreateContainer],
        ipc_is_of_host, faults [sandbox_mode!("ipc", "POD")];
    Should "CRI-NSP-025": "Containers of hostIPC pods have the host's /dev/shm, and containers of other pods do not.",
        CONTAINERD, tags ["kubelet", "namespaces"], calls [RunPodSandbox, CreateContainer],
        shared_memory_is_of_host, faults [sandbox_mode!("ipc", "POD"), sandbox_mode!("ipc", "NODE")];
    Must "CRI-NSP-007": "All containers of a pod with a shared PID namespace are in this namespace, and containers of other pods are not.",
        KUBELET, tags ["kubelet", "namespaces", "process"], calls [RunPodSandbox, CreateContainer],
        processes_are_of_pod, faults [container_mode!("pid", "CONTAINER"), container_mode!("pid", "NODE")];
    Must "CRI-NSP-008": "A container whose PID namespace mode is TARGET joins the target container's PID namespace, as ephemeral debug containers do.",
        CRIO, tags ["kubelet", "namespaces", "process"], calls [CreateContainer],
        processes_are_of_target, faults [
            "CreateContainer after 1 request set config.linux.security_context.namespace_options.pid \"CONTAINER\"",
        ];
    Must "CRI-NSP-009": "An ExecSync command runs in the namespaces of its container.",
        KUBELET, tags ["kubelet", "namespaces", "exec"], calls [ExecSync],
        commands_are_in_namespaces_of_container given [namespaces, pod], faults [
            "ExecSync set stdout \"bm9uZQo=\"",
            "ExecSync drop stdout",
        ];
    Must "CRI-NSP-010": "PodSandboxStatus reports the namespace modes of a pod that uses the host's network, IPC and PID namespaces.",
        KUBELET, tags ["kubelet", "namespaces", "echo"], calls [RunPodSandbox, PodSandboxStatus],
        modes_are_echoed, faults [
            "PodSandboxStatus set status.linux.namespaces.options.network \"POD\"",
            "PodSandboxStatus set status.linux.namespaces.options.ipc \"POD\"",
            "PodSandboxStatus drop status.linux",
        ];
    Must "CRI-NSP-011": "Containers of a pod share one /dev/shm, which other pods do not share.",
        KUBELET, tags ["kubelet", "namespaces", "files"], calls [CreateContainer, ExecSync],
        shared_memory_is_of_pod given [namespaces], faults [
            "CreateContainer request set config.mounts [{\"container_path\": \"/dev/shm\", \"host_path\": \"/usr\", \"readonly\": true}]",
            "ExecSync drop stdout",
        ];
    Should "CRI-NSP-012": "A container has the pod's hostname in HOSTNAME and in /etc/hostname.",
        CONTAINERD, tags ["namespaces", "files"], calls [RunPodSandbox, CreateContainer],
        host_name_is_reported given [namespaces], faults [
            "RunPodSandbox request set config.hostname \"other\"",
            "CreateContainer request set config.envs [{\"key\": \"HOSTNAME\", \"value\": \"eA==\"}]",
        ];
};

/// Runs a pod with changed namespace options, which its containers inherit.
pub(crate) async fn pod(x: &Context, change: fn(&mut NamespaceOption)) -> Verdict<Pod> {
    x.needs_namespaces()?;
    let mut config = x.sandbox();
    let options = fixture::pod_namespaces(&mut config);
    change(options);
    if options.network() == NamespaceMode::Node {
        // A host-network pod has the host's hostname.
        config.hostname.clear();
    }
    x.pod_of(config).await
}

pub(crate) fn container(
    x: &Context,
    pod: &Pod,
    name: &str,
    change: fn(&mut NamespaceOption),
) -> v1::ContainerConfig {
    let mut config = x.forever(name);
    let mut of_pod = pod.config.clone();
    let options = fixture::pod_namespaces(&mut of_pod);
    change(options);
    fixture::security(&mut config).namespace_options = Some(options.clone());
    config
}

/// The kernel's name of a namespace of a container's commands, such as `net:[4026531840]`.
pub(crate) async fn name_of(x: &Context, id: &str, kind: &str) -> Verdict<String> {
    let text = x.client.sh(id, &format!("ls -l /proc/self/ns/{kind}")).await?;
    match text.trim().rsplit_once(" -> ") {
        Some((_, name)) => Ok(name.to_owned()),
        None => failed("/proc/self/ns", "a name", text),
    }
}

/// The namespace names of two containers of one pod and of a container of another pod, both with these options.
async fn three(x: &Context, kind: &str, change: fn(&mut NamespaceOption)) -> Verdict<[String; 3]> {
    let (here, there) = (pod(x, change).await?, pod(x, change).await?);
    let mut names = Vec::new();
    for (pod, name) in [(&here, "c"), (&here, "d"), (&there, "c")] {
        let id = pod.start(container(x, pod, name, |_| {})).await?;
        names.push(name_of(x, &id, kind).await?);
    }
    names
        .try_into()
        .or_else(|names: Vec<String>| failed("the namespaces", "three", format!("{names:?}")))
}

fn shared(what: &str, [first, second, _]: &[String; 3]) -> Verdict {
    equal(&format!("{what} of two containers of a pod"), second, first)
}

fn apart(what: &str, [first, _, other]: &[String; 3]) -> Verdict {
    let differ = first != other;
    ensure(differ, &format!("{what} of two pods"), "to differ", (first, other))
}

async fn network_is_of_pod(x: &Context) -> Verdict {
    let names = three(x, "net", |_| {}).await?;
    shared("the network namespace", &names)?;
    apart("the network namespaces", &names)?;
    let [of_host, ..] =
        three(x, "net", |options| options.network = NamespaceMode::Node.into()).await?;
    let [of_pod, ..] = names;
    ensure(of_host != of_pod, "the network namespace of a pod", "not the host's", of_host)
}

async fn network_is_of_host(x: &Context) -> Verdict {
    let node = |options: &mut NamespaceOption| options.network = NamespaceMode::Node.into();
    let [first, second, other] = three(x, "net", node).await?;
    equal("the network namespace of two containers of a pod", &second, &first)?;
    equal("the network namespace of two pods", &other, &first)
}

async fn ipc_is_of_pod(x: &Context) -> Verdict {
    let names = three(x, "ipc", |_| {}).await?;
    shared("the IPC namespace", &names)?;
    apart("the IPC namespaces", &names)
}

async fn host_name_is_of_pod(x: &Context) -> Verdict {
    let names = three(x, "uts", |_| {}).await?;
    shared("the UTS namespace", &names)?;
    apart("the UTS namespaces", &names)?;
    let mut config = x.sandbox();
    config.hostname = "another-name".to_owned();
    let pod = x.pod_of(config).await?;
    for name in ["c", "d"] {
        let id = pod.start(x.forever(name)).await?;
        let text = x.client.sh(&id, "hostname").await?;
        equal("the host name", text.trim(), "another-name")?;
    }
    Ok(())
}

async fn processes_are_of_container(x: &Context) -> Verdict {
    let names = three(x, "pid", |_| {}).await?;
    let [first, second, other] = &names;
    let what = "the PID namespaces of containers";
    ensure(first != second && first != other, what, "to differ", &names)?;
    let text = x.output(x.script("c", "echo $$; cat /proc/1/cmdline | tr '\\0' ' '")).await?;
    let own = text.starts_with("1\n") && text.contains("echo $$");
    ensure(own, "process 1", "the command of the container", text)
}

async fn processes_are_of_host(x: &Context) -> Verdict {
    let node = |options: &mut NamespaceOption| options.pid = NamespaceMode::Node.into();
    let [first, second, other] = three(x, "pid", node).await?;
    equal("the PID namespace of two containers", &second, &first)?;
    equal("the PID namespace of two pods", &other, &first)?;
    let [own, ..] = three(x, "pid", |_| {}).await?;
    ensure(own != first, "the PID namespace of another container", "to differ", own)
}

async fn ipc_is_of_host(x: &Context) -> Verdict {
    let node = |options: &mut NamespaceOption| options.ipc = NamespaceMode::Node.into();
    let [first, second, other] = three(x, "ipc", node).await?;
    equal("the IPC namespace of two containers", &second, &first)?;
    equal("the IPC namespace of two pods", &other, &first)?;
    let [own, ..] = three(x, "ipc", |_| {}).await?;
    ensure(own != first, "the IPC namespace of another pod", "to differ", own)
}

/// The device number of a container's /dev/shm, such as 0:23.
async fn shared_memory(x: &Context, change: fn(&mut NamespaceOption)) -> Verdict<String> {
    let pod = pod(x, change).await?;
    let id = pod.start(container(x, &pod, "c", |_| {})).await?;
    let mounts = x.client.sh(&id, "cat /proc/self/mountinfo").await?;
    let lines = mounts.lines().map(|line| line.split(' '));
    let mut places = lines.filter_map(|mut line| Some((line.nth(2)?, line.nth(1)?)));
    // A later mount covers an earlier one.
    match places.rfind(|(_, place)| *place == "/dev/shm") {
        Some((device, _)) => Ok(device.to_owned()),
        None => failed("/dev/shm", "a mount", mounts),
    }
}

async fn shared_memory_is_of_host(x: &Context) -> Verdict {
    let node = |options: &mut NamespaceOption| options.ipc = NamespaceMode::Node.into();
    let Ok(host) = rustix::fs::stat("/dev/shm") else {
        return skipped("this machine has no /dev/shm");
    };
    let (major, minor) = (rustix::fs::major(host.st_dev), rustix::fs::minor(host.st_dev));
    let host = format!("{major}:{minor}");
    let of_node = shared_memory(x, node).await?;
    equal("the device at /dev/shm of a hostIPC pod", &of_node, &host)?;
    let own = shared_memory(x, |_| {}).await?;
    ensure(own != host, "the device at /dev/shm of another pod", "to differ", own)
}

async fn processes_are_of_pod(x: &Context) -> Verdict {
    let names = three(x, "pid", |options| options.pid = NamespaceMode::Pod.into()).await?;
    shared("the PID namespace", &names)?;
    apart("the PID namespaces", &names)
}

async fn processes_are_of_target(x: &Context) -> Verdict {
    let pod = pod(x, |_| {}).await?;
    let target = pod.start(container(x, &pod, "c", |_| {})).await?;
    let mut config = container(x, &pod, "d", |options| options.pid = NamespaceMode::Target.into());
    let options = &mut fixture::security(&mut config).namespace_options;
    options.get_or_insert_default().target_id.clone_from(&target);
    let id = pod.start(config).await?;
    let name = name_of(x, &id, "pid").await?;
    let of_target = name_of(x, &target, "pid").await?;
    equal("the PID namespace", &name, &of_target)
}

async fn commands_are_in_namespaces_of_container(x: &Context, pod: Pod) -> Verdict {
    let script = "ls -l /proc/self/ns/; echo end; while :; do sleep 1000; done";
    let id = pod.start(x.script("c", script)).await?;
    x.logged(&pod, "end").await?;
    let names = |text: &str| -> Vec<String> {
        let names = text.lines().filter_map(|line| line.rsplit_once(" -> "));
        let names = names.map(|(_, name)| name.trim().to_owned());
        // A command may have a cgroup of its own.
        names.filter(|name| !name.starts_with("cgroup:")).collect()
    };
    let lines = x.lines(&pod).into_iter().map(|line| line.text + "\n");
    let of_container = names(&lines.collect::<String>());
    let of_command = names(&x.client.sh(&id, "ls -l /proc/self/ns/").await?);
    ensure(of_container.len() >= 5, "/proc/self/ns", "names", &of_container)?;
    equal("the namespaces of the command", &of_command, &of_container)
}

async fn modes_are_echoed(x: &Context) -> Verdict {
    let pod = pod(x, |options| {
        options.network = NamespaceMode::Node.into();
        options.ipc = NamespaceMode::Node.into();
        options.pid = NamespaceMode::Node.into();
    })
    .await?;
    let status = x.pod_status(&pod.id).await?;
    let options = status.linux.and_then(|linux| linux.namespaces?.options);
    let options = options.unwrap_or_default();
    let seen = (options.network(), options.ipc(), options.pid());
    let node = NamespaceMode::Node;
    equal("network, IPC and PID modes", &seen, &(node, node, node))
}

async fn shared_memory_is_of_pod(x: &Context) -> Verdict {
    let (here, there) = (x.pod().await?, x.pod().await?);
    let writer = here.start(x.forever("c")).await?;
    let reader = here.start(x.forever("d")).await?;
    let other = there.start(x.forever("c")).await?;
    let written = x.client.sh(&writer, "echo shared >/dev/shm/crib-check && echo written").await?;
    equal("the output of the writing container", written.as_str(), "written\n")?;
    let look = "cat /dev/shm/crib-check 2>/dev/null || echo nothing";
    let seen = x.client.sh(&reader, look).await?;
    equal("the file in another container of the pod", seen.as_str(), "shared\n")?;
    let seen = x.client.sh(&other, look).await?;
    equal("the file in another pod", seen.as_str(), "nothing\n")
}

async fn host_name_is_reported(x: &Context) -> Verdict {
    let output = x.output(x.script("c", "echo $HOSTNAME; cat /etc/hostname")).await?;
    equal("HOSTNAME and /etc/hostname", output.as_str(), "checked\nchecked\n")
}
