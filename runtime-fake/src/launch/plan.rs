//! ◆ Makes a keeper's plans from the configurations of the client and the image. Pure.

use std::{
    collections::BTreeMap,
    num::NonZeroU64,
    path::{Path, PathBuf},
};

use cri::v1::{
    ContainerConfig, LinuxContainerSecurityContext, NamespaceMode, NamespaceOption,
    PodSandboxConfig, Signal,
};
use keeper::contract::plan::{
    Confinement, DevicePlan, ExecPlan, IdMappings, IsolationMode, LaunchPlan, Pids, PodPlan,
    ProcessPlan, RootPlan, UserIds,
};

use super::ImageDefaults;
use super::behave::Behaviour;
use super::{
    Invalid, capability, devices, invalid, memory, mounts, paths, ports, seccomp, security, signal,
    strings, sub_paths, sysctl, userns,
};

/// The default stop signal, unless the image or the client names another one.
const SIGTERM: i32 = 15;

/// The default `TERM` of a process with a terminal, unless the image or the client sets it (as in containerd).
const DEFAULT_TERM: &str = "TERM=xterm";

/// The runtime's inputs to the plan of a container.
#[derive(Debug)]
pub(crate) struct ContainerInputs<'a> {
    pub(crate) isolation: IsolationMode,
    pub(crate) directory: PathBuf,
    pub(crate) sandbox_directory: &'a Path,
    pub(crate) root: RootPlan,
    pub(crate) image: &'a ImageDefaults,
    /// Its script, if it has one.
    pub(crate) behaviour: Option<&'a Behaviour>,
    /// The images that mounts name, by the name in the request.
    pub(crate) volumes: BTreeMap<String, RootPlan>,
    /// The container whose process namespace is joined, if there is one with the requested ID.
    pub(crate) target: Option<String>,
    /// The host devices requested by path.
    pub(crate) devices: Vec<DevicePlan>,
    /// Limit on the bytes of its log.
    pub(crate) log_max: Option<NonZeroU64>,
}

/// The namespaces of a sandbox; by default they are the pod's own.
fn namespaces(config: &PodSandboxConfig) -> NamespaceOption {
    let context = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    context.and_then(|c| c.namespace_options.clone()).unwrap_or_default()
}

/// The id mappings of a pod that has a user namespace.
pub(crate) fn user_namespace(
    config: &PodSandboxConfig,
    isolation: IsolationMode,
) -> Result<Option<IdMappings>, Invalid> {
    userns::pod(&namespaces(config), isolation)
}

/// Plans the environment of a pod.
pub(crate) fn pod(
    config: &PodSandboxConfig,
    isolation: IsolationMode,
    directory: PathBuf,
    ephemeral: bool,
    allowed: sysctl::Allowed,
) -> Result<PodPlan, Invalid> {
    let Some(metadata) = &config.metadata else {
        return invalid("the sandbox has no metadata: name, namespace and uid are needed");
    };
    for (field, value) in
        [("name", &metadata.name), ("namespace", &metadata.namespace), ("uid", &metadata.uid)]
    {
        if value.is_empty() {
            return invalid(format!("metadata.{field} of the sandbox is empty"));
        }
    }
    strings::check_pod(config)?;
    paths::path("log_directory", &config.log_directory)?;
    let requested = namespaces(config);
    let own = |mode: i32| mode != NamespaceMode::Node as i32 && isolation != IsolationMode::Process;
    for (field, mode) in [("network", requested.network), ("ipc", requested.ipc)] {
        if mode != NamespaceMode::Pod as i32 && mode != NamespaceMode::Node as i32 {
            return invalid(format!(
                "namespace_options.{field} of a sandbox is POD or NODE, not {mode}"
            ));
        }
    }
    if !matches!(
        NamespaceMode::try_from(requested.pid),
        Ok(NamespaceMode::Pod | NamespaceMode::Container | NamespaceMode::Node)
    ) {
        return invalid(format!(
            "namespace_options.pid of a sandbox is POD, CONTAINER or NODE, not {}",
            requested.pid
        ));
    }
    let linux = config.linux.as_ref();
    let sysctls: BTreeMap<String, String> =
        linux.map(|l| l.sysctls.clone().into_iter().collect()).unwrap_or_default();
    for name in sysctls.keys() {
        sysctl::check(name, own(requested.network), own(requested.ipc))?;
    }
    let hostname = if own(requested.network) {
        hostname(config)?
    } else if isolation != IsolationMode::Process && !config.hostname.is_empty() {
        // The hostname belongs to the UTS namespace, which is the host's here (as in containerd; a kubelet sets none).
        return invalid(format!(
            "the hostname {:?} cannot be set in the host's network namespace: leave it out",
            config.hostname
        ));
    } else {
        String::new()
    };
    let memory_volumes = memory::volumes(config, isolation, &directory)?;
    let user_namespace = userns::pod(&requested, isolation)?;
    let default_sysctl = if own(requested.network) {
        sysctl::defaults(allowed, user_namespace.as_ref(), &sysctls)
    } else {
        Vec::new()
    };
    let sysctl = sysctl::writes(allowed, user_namespace.as_ref(), sysctls)?;
    Ok(PodPlan {
        isolation,
        directory,
        ephemeral,
        hostname,
        own_network: own(requested.network),
        network_given: false,
        own_ipc: own(requested.ipc),
        user_namespace,
        shared_pids: requested.pid == NamespaceMode::Pod as i32
            && isolation != IsolationMode::Process,
        sysctl,
        default_sysctl,
        // In the host's network a pod's ports are the host's already (as in containerd and CRI-O).
        host_ports: if requested.network == NamespaceMode::Node as i32 {
            Vec::new()
        } else {
            let ports = ports::host_ports(&config.port_mappings)?.into_iter();
            // Without network namespaces a program that listens on the same port uses the host's already.
            ports
                .filter(|port| {
                    isolation != IsolationMode::Process || port.host_port != port.pod_port
                })
                .collect()
        },
        cgroup: None,
        mount_label: None,
        open_files: None,
        memory_volumes,
    })
}

fn hostname(config: &PodSandboxConfig) -> Result<String, Invalid> {
    let name = &config.hostname;
    if name.is_empty() {
        return Ok(strings::hostname_of(config.metadata.as_ref().map_or("", |m| &m.name)));
    }
    if name.len() > 64 {
        return invalid(format!("hostname {name:?} is not one: at most 64 bytes"));
    }
    Ok(name.chars().take(63).collect())
}

/// Plans the set-up of a container.
pub(crate) fn container(
    config: &ContainerConfig,
    sandbox: &PodSandboxConfig,
    inputs: ContainerInputs<'_>,
) -> Result<LaunchPlan, Invalid> {
    match &config.metadata {
        None => return invalid("the container has no metadata: a name is needed"),
        Some(metadata) if metadata.name.is_empty() => {
            return invalid("metadata.name of the container is empty");
        }
        Some(_) => {}
    }
    let default_context = LinuxContainerSecurityContext::default();
    let context =
        config.linux.as_ref().and_then(|l| l.security_context.as_ref()).unwrap_or(&default_context);
    strings::check_container(config)?;
    security::check(context)?;
    paths::check(config, context)?;
    let pod = namespaces(sandbox);
    if let Some(own) = &context.namespace_options {
        userns::check_container(own, &pod)?;
    }
    let requested = context.namespace_options.clone().unwrap_or(pod.clone());
    let in_pod = |mode: i32| mode != NamespaceMode::Node as i32;
    let mut mounts = if inputs.isolation == IsolationMode::Process {
        mounts::without_namespace(&config.mounts)?
    } else {
        mounts::with_namespace(config, &inputs)?
    };
    sub_paths::redirect(&mut mounts, config, inputs.isolation)?;
    let of_pod = memory::volumes(sandbox, inputs.isolation, inputs.sandbox_directory)?;
    memory::redirect(&mut mounts, &of_pod);
    if inputs.isolation == IsolationMode::Process {
        check_without_namespaces(context, &inputs.root)?;
    }
    let (masked, read_only) = security::protected_paths(config);
    let oom = config.linux.as_ref().and_then(|l| l.resources.as_ref()).map(|r| r.oom_score_adj);
    Ok(LaunchPlan {
        isolation: inputs.isolation,
        process: process(config, context, inputs.image, &inputs.directory, inputs.behaviour)?,
        directory: inputs.directory,
        root: inputs.root,
        ids: userns::pod(&pod, inputs.isolation)?,
        readonly_root: context.readonly_rootfs,
        mounts,
        devices: devices::for_isolation(inputs.isolation, inputs.devices)?,
        masked_paths: masked,
        readonly_paths: read_only,
        pids: match NamespaceMode::try_from(requested.pid) {
            Ok(NamespaceMode::Container) => Pids::Own,
            Ok(NamespaceMode::Node) => Pids::Host,
            Ok(NamespaceMode::Pod) if pod.pid == NamespaceMode::Pod as i32 => Pids::Pod,
            Ok(NamespaceMode::Pod) => {
                return invalid(
                    "namespace_options.pid is POD, but the sandbox was made without a shared process namespace",
                );
            }
            Ok(NamespaceMode::Target) => target(inputs.target)?,
            Err(_) => {
                return invalid(format!(
                    "namespace_options.pid is POD, CONTAINER, NODE or TARGET, not {}",
                    requested.pid
                ));
            }
        },
        host_ipc: !in_pod(pod.ipc),
        host_network: !in_pod(pod.network),
        privileged: context.privileged,
        log: paths::log(&sandbox.log_directory, &config.log_path, inputs.log_max)?,
        terminal: config.tty,
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        oom_score_adj: oom.and_then(|adj| i32::try_from(adj.clamp(-1000, 1000)).ok()),
        cgroup: None,
        restore: None,
    })
}

fn target(found: Option<String>) -> Result<Pids, Invalid> {
    match found {
        Some(container) => Ok(Pids::Target { container }),
        None => invalid(
            "namespace_options.pid is TARGET without a target_id: name the container whose processes are to be seen",
        ),
    }
}

/// Rejects requests that need a mount namespace.
fn check_without_namespaces(
    context: &LinuxContainerSecurityContext,
    root: &RootPlan,
) -> Result<(), Invalid> {
    if !matches!(root, RootPlan::Host) {
        return invalid(
            "only crib.local/host can run without a mount namespace: isolation is `process` on this box",
        );
    }
    if context.readonly_rootfs {
        return invalid(
            "readonly_rootfs needs a mount namespace: isolation is `process` on this box",
        );
    }
    Ok(())
}

fn process(
    config: &ContainerConfig,
    context: &LinuxContainerSecurityContext,
    image: &ImageDefaults,
    directory: &Path,
    behaviour: Option<&Behaviour>,
) -> Result<ProcessPlan, Invalid> {
    // A command replaces the image's arguments too (CRI v1, ContainerConfig.command).
    let (command, args) = if config.command.is_empty() {
        (&image.entrypoint, if config.args.is_empty() { &image.cmd } else { &config.args })
    } else {
        (&config.command, &config.args)
    };
    let argv: Vec<String> = command.iter().chain(args).cloned().collect();
    let act = behaviour.and_then(|behaviour| behaviour.act(argv.is_empty()));
    if argv.is_empty() && act.is_none() {
        return invalid("no command: neither the container nor its image says what to run");
    }
    let mut env = Vec::new();
    if config.tty {
        env.push(DEFAULT_TERM.to_owned());
    }
    env.extend(image.env.iter().cloned());
    for pair in &config.envs {
        let value = std::str::from_utf8(&pair.value)
            .map_err(|_| Invalid(format!("envs: the value of {:?} is not UTF-8", pair.key)))?;
        if pair.key.is_empty() || pair.key.contains(['=', '\0']) || value.contains('\0') {
            return invalid(format!("envs: key {:?} cannot be that of a variable", pair.key));
        }
        env.push(format!("{}={value}", pair.key));
    }
    let default_capabilities = cri::v1::Capability::default();
    let capabilities = context.capabilities.as_ref().unwrap_or(&default_capabilities);
    let (granted, ambient) = capability::granted(capabilities, context.privileged)?;
    Ok(ProcessPlan {
        args: argv,
        env,
        cwd: if config.working_dir.is_empty() {
            image.working_dir.clone()
        } else {
            config.working_dir.clone()
        },
        user: security::user(context, image)?,
        capabilities: granted,
        ambient,
        no_new_privileges: context.no_new_privs,
        seccomp: seccomp::kept(context, directory)?,
        confinement: Confinement::default(),
        act,
    })
}

/// Plans an exec, with the environment of its container, whose directory is `directory`.
pub(crate) fn exec(
    config: &ContainerConfig,
    image: &ImageDefaults,
    directory: &Path,
    confinement: &Confinement,
    user: UserIds,
    argv: Vec<String>,
    tty: bool,
) -> Result<ExecPlan, Invalid> {
    if argv.is_empty() {
        return invalid("no command to run in the container");
    }
    let default_context = LinuxContainerSecurityContext::default();
    let context =
        config.linux.as_ref().and_then(|l| l.security_context.as_ref()).unwrap_or(&default_context);
    let config = ContainerConfig { command: argv, args: Vec::new(), tty, ..config.clone() };
    let mut process = process(&config, context, image, directory, None)?;
    process.confinement = confinement.clone();
    Ok(ExecPlan { process, user, terminal: tty })
}

/// The stop signal of a container: the client's, else the image's, else SIGTERM.
pub(crate) fn stop_signal(config: &ContainerConfig, image: &ImageDefaults) -> Result<i32, Invalid> {
    match Signal::try_from(config.stop_signal) {
        Ok(Signal::RuntimeDefault) => {
            image.stop_signal.as_deref().map_or(Ok(SIGTERM), signal::number)
        }
        Ok(signal) => signal::number(signal.as_str_name()),
        Err(_) => invalid(format!("stop_signal {} is unknown", config.stop_signal)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
