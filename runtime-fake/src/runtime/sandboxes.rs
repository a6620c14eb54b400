//! Operations on pod sandboxes: run, stop, remove.

use std::{
    fs,
    net::IpAddr,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::{Arc, LazyLock},
    time::Duration,
};

use cri::v1::PodSandboxConfig;
use file_tree::private;
use jiff::Timestamp;
use keeper::contract::open_files;
use keeper::contract::plan::{ForwardPlan, IdMappings, IsolationMode, PodPlan, of_network};
use keeper::contract::protocol::Call;
use keeper::kernel::failure::FailureKind;
use network::{PodNetns, cni::CniResult};
use tokio::sync::oneshot;

use super::{AttachedSandbox, Error, Runtime, blocking, cleanup, io, pods::Pod, ports};
use crate::{
    config::Unprivileged,
    id::SandboxId,
    keepers, launch, resolv,
    sandbox::{Sandbox, SandboxEvent, SandboxState, selinux_options},
    store::{Change, State, StateError},
};

/// Timeout for a keeper to end when the daemon is stopping: after that it is killed.
const QUICK_STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The groups of this user namespace (user_namespaces(7)).
static GROUPS: LazyLock<String> =
    LazyLock::new(|| fs::read_to_string("/proc/self/gid_map").unwrap_or_default());
/// Timeout for the last event of an ended keeper to reach the store.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

impl Runtime {
    /// Creates a sandbox with everything it needs; on failure everything created is removed.
    ///
    /// A repeated call returns the existing sandbox if it has not been used yet, because the client may not have
    /// received the first response.
    pub(crate) async fn run_sandbox(
        &self,
        config: PodSandboxConfig,
        runtime_handler: String,
    ) -> Result<SandboxId, Error> {
        self.config.handlers.get(&runtime_handler)?;
        let id = SandboxId::random();
        let directory = self.sandbox_dir(&id);
        let Unprivileged { ports, ping } = self.config.unprivileged;
        let mut plan = launch::pod(
            &config,
            self.config.isolation.mode(),
            directory.clone(),
            self.config.ephemeral,
            launch::Allowed::new(ports, ping, &GROUPS),
        )?;
        let parent = config.linux.as_ref().map_or("", |l| &l.cgroup_parent);
        let cgroup = self.cgroups.pod(parent, id.as_str())?;
        let in_class = launch::qos_class(&config)?.is_some();
        let limits = launch::pod_limits(&config)?;
        plan.cgroup = self.cgroups.pod_plan(cgroup.as_ref(), &limits, in_class)?;
        plan.open_files = open_files::of_containers();
        // Hold the lock until the record exists, so that no two pods get the same level.
        let labels_guard = self.modules.label_lock.lock().await;
        let labels = {
            let state = self.store.state();
            let others = state.sandboxes.values().filter_map(|s| s.labels.as_ref());
            self.modules.pod(selinux_options(&config), others)?
        };
        let labelled = self.modules.labels(selinux_options(&config));
        plan.mount_label = labels.as_ref().filter(|_| labelled).map(|labels| labels.files.clone());
        let sandbox = Sandbox {
            labels,
            cgroup,
            id: id.clone(),
            config,
            runtime_handler,
            state: SandboxState::Creating,
            created_at: Timestamp::now(),
            addresses: Vec::new(),
            unknown_reason: None,
        };
        // Create the directory first: the record is written into it.
        for directory in [&directory, &directory.join("containers")] {
            private::make(directory).map_err(|error| {
                io("make the sandbox's directory")(std::io::Error::other(error))
            })?;
        }
        let change = Change::AddSandbox(Box::new(sandbox.clone()));
        let added = self.store.apply(change).await;
        drop(labels_guard);
        if let Err(refused) = added {
            self.discard(&directory);
            return self.same_sandbox(refused).await;
        }
        match self.set_up(&sandbox, plan).await {
            Ok(addresses) => {
                self.store
                    .apply(Change::Sandbox(id.clone(), SandboxEvent::Ready(addresses)))
                    .await?;
                Ok(id)
            }
            Err(error) => {
                let change = match self.tear_down(&id).await {
                    Ok(()) => Change::RemoveSandbox(id),
                    // Cleanup failed: the sandbox stays visible as NotReady, so that a client can remove it, as in
                    // containerd.
                    Err(other) => {
                        tracing::warn!(
                            sandbox = id.short(),
                            error = crate::chain(&other),
                            "failed to clean up failed sandbox: it stays NotReady until removed"
                        );
                        Change::Sandbox(id, SandboxEvent::Stopped)
                    }
                };
                self.store.apply(change).await?;
                Err(error)
            }
        }
    }

    /// The existing sandbox of a repeated request with the same configuration, once it is ready.
    async fn same_sandbox(&self, refused: StateError) -> Result<SandboxId, Error> {
        if let StateError::NameTaken { id, same: true, .. } = &refused {
            let made = |state: &State| {
                let found = state.sandboxes.values().find(|s| s.id.as_str() == id)?;
                Some((found.id.clone(), found.state))
            };
            self.store
                .wait(|state| !matches!(made(state), Some((_, SandboxState::Creating))))
                .await?;
            if let Some((id, SandboxState::Ready)) = made(&self.store.state()) {
                return Ok(id);
            }
        }
        Err(refused.into())
    }

    async fn set_up(&self, sandbox: &Sandbox, mut plan: PodPlan) -> Result<Vec<IpAddr>, Error> {
        // Bind ports first, so that a port in use fails the call before any work.
        let claimed = ports::claim(&plan.host_ports, &sandbox.id, &self.store.state())?;
        self.set_class_weight(sandbox).await?;
        let mut held = self.network.hold(&sandbox.id)?;
        let network_sysctls = plan.sysctl.iter().any(|(name, _)| of_network(name));
        let directory = plan.directory.clone();
        let dns = match plan.own_network {
            true => self.dns().await,
            false => None,
        };
        write_files(&plan, &sandbox.config, dns).map_err(io("write the sandbox's files"))?;
        // A pod's user namespace owns its network namespace, so its keeper creates both.
        let early =
            self.network.connects_early() && plan.own_network && plan.user_namespace.is_none();
        let wants_address = plan.own_network || plan.isolation == IsolationMode::Process;
        let (pod, given) = if early {
            let (tell, netns) = oneshot::channel();
            let keeper = async {
                let pod = self.pods.spawn(&sandbox.id, &directory, &self.store).await?;
                let Ok(netns) = netns.await else { return Ok(pod) };
                held.insert(0, netns);
                plan.network_given = true;
                pod.keeper.set_up(plan, held).await?;
                Ok::<_, Error>(pod)
            };
            // Wait for both, so that cleanup does not start while either is still being created.
            let (given, pod) = tokio::join!(self.connect_early(sandbox, tell), keeper);
            (pod?, given?)
        } else {
            let pod = self.pods.spawn(&sandbox.id, &directory, &self.store).await?;
            pod.keeper.set_up(plan, held).await?;
            if !wants_address {
                return Ok(Vec::new());
            }
            let opened = keepers::pod_netns(&directory);
            let network = opened.map_err(io("open the pod's network namespace"))?;
            let given = self.connect(sandbox, network).await?;
            (pod, given)
        };
        if let (None, Some(dns)) = (&sandbox.config.dns_config, &given.dns) {
            let text = resolv::conf(&dns.servers, &dns.searches, &dns.options);
            write(&directory.join("resolv.conf"), &text, None)
                .map_err(io("write the sandbox's resolv.conf"))?;
        }
        let addresses = given.addresses;
        if network_sysctls || !claimed.sockets.is_empty() {
            let forward = (!claimed.sockets.is_empty())
                .then(|| ForwardPlan { sockets: claimed.forwards, addresses: addresses.clone() });
            pod.keeper.connected(forward, claimed.sockets).await?;
        }
        Ok(addresses)
    }

    /// The address of the DNS server of the pods' egress, which is started if it does not run.
    async fn dns(&self) -> Option<IpAddr> {
        let network = self.network.clone();
        blocking(move || network.egress_mode(true)).await?.dns()
    }

    /// Makes the pod's network namespace, sends its descriptor to `tell` immediately, and attaches it.
    async fn connect_early(
        &self,
        sandbox: &Sandbox,
        tell: oneshot::Sender<OwnedFd>,
    ) -> Result<CniResult, Error> {
        let (network, target) = (self.network.clone(), self.for_network(sandbox));
        let connected = blocking(move || {
            let make = || {
                let netns = network.make_netns()?;
                Ok((netns.as_fd().try_clone_to_owned()?, netns))
            };
            let (copy, netns) = make().map_err(io("make the pod's network namespace"))?;
            // The receiver is dropped if the keeper could not be started.
            let _ = tell.send(copy);
            network.attach(&target, Some(&netns))
        })
        .await;
        let network = self.network.clone();
        tasks::spawn_blocking(move || network.prepare());
        connected
    }

    async fn connect(
        &self,
        sandbox: &Sandbox,
        namespace: Option<PodNetns>,
    ) -> Result<CniResult, Error> {
        let (network, target) = (self.network.clone(), self.for_network(sandbox));
        blocking(move || network.attach(&target, namespace.as_ref())).await
    }

    /// Stops every container and tears down the pod's namespaces and network. Stopping a stopped or missing sandbox
    /// is not an error (CRI v1, StopPodSandbox).
    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<(), Error> {
        let found = self.store.state().sandbox_if_there(id)?.cloned();
        let Some(id) = found.map(|s| s.id.clone()) else {
            return Ok(());
        };
        self.tear_down(&id).await
    }

    /// A sandbox in the form that the network needs.
    pub(crate) fn for_network(&self, sandbox: &Sandbox) -> AttachedSandbox {
        AttachedSandbox {
            sandbox: sandbox.clone(),
            directory: self.sandbox_dir(&sandbox.id),
            ports: launch::host_ports(&sandbox.config.port_mappings).unwrap_or_default(),
        }
    }

    async fn tear_down(&self, id: &SandboxId) -> Result<(), Error> {
        let pod = self.pods.get(id);
        let _turn = match &pod {
            Some(pod) => Some(pod.removal_lock.lock().await),
            None => None,
        };
        let Some(sandbox) = self.store.state().sandboxes.get(id).cloned() else {
            // A concurrent call has removed it.
            return Ok(());
        };
        // Detaching needs the record, and the processes in the sandbox must end first.
        let namespace = if self.network.needs_namespace(&self.sandbox_dir(id)) {
            keepers::pod_netns(&self.sandbox_dir(id))
                .map_err(io("open the pod's network namespace"))?
        } else {
            None
        };
        let ended = match &pod {
            Some(pod) => self.end_keeper(pod).await,
            None => false,
        };
        if !ended {
            // The keeper hangs, or is not connected to this daemon.
            let directory = self.sandbox_dir(id);
            blocking({
                let directory = directory.clone();
                move || keepers::kill(&directory)
            })
            .await
            .map_err(io("kill the pod's keeper"))?;
            cleanup::mark_lost(id, &directory, &self.store).await;
        }
        cleanup::destroy_cgroups(id, &self.store).await;
        // The keeper's events and its exit must be in the store before the response to the client.
        let ended = |state: &State| state.containers_of(id).all(|c| c.ended() || !c.visible());
        match tokio::time::timeout(EXIT_TIMEOUT, self.store.wait(ended)).await {
            Ok(waited) => waited?,
            Err(_) => {
                return Err(Error::Timeout {
                    what: format!("the containers of pod sandbox {}", id.short()),
                    seconds: EXIT_TIMEOUT.as_secs(),
                });
            }
        }
        let (network, target) = (self.network.clone(), self.for_network(&sandbox));
        blocking(move || network.detach(&target, namespace.as_ref())).await?;
        let stopped = Change::Sandbox(id.clone(), SandboxEvent::Stopped);
        match self.store.apply(stopped).await {
            Ok(()) => self.set_class_weight(&sandbox).await,
            // A concurrent call has removed it.
            Err(StateError::NoSandbox(_)) => Ok(()),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Removes a sandbox with its containers, stopping it first if it runs. Removing a missing sandbox is not an
    /// error.
    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<(), Error> {
        let found = self.store.state().sandbox_if_there(id)?.cloned();
        let Some(id) = found.map(|s| s.id.clone()) else {
            return Ok(());
        };
        self.tear_down(&id).await?;
        let containers: Vec<_> =
            self.store.state().containers_of(&id).map(|c| c.id.clone()).collect();
        let unreadable = self
            .store
            .state()
            .sandboxes
            .get(&id)
            .is_some_and(|s| s.cgroup.is_none() && s.unknown_reason.is_some());
        self.store.apply(Change::RemoveSandbox(id)).await?;
        if unreadable {
            // Its unreadable record did not name its cgroup: remove the cgroups that belong to no pod.
            let (cgroups, state) = (self.cgroups.clone(), self.store.state());
            blocking(move || {
                cgroups.sweep(|id| state.sandboxes.keys().any(|known| known.as_str() == id));
            })
            .await;
        }
        for container in containers {
            self.release_image(&container).await;
        }
        Ok(())
    }

    /// Sends Shutdown to the keeper, and returns whether it confirmed.
    async fn end_keeper(&self, pod: &Arc<Pod>) -> bool {
        let haste = async {
            self.stopping.cancelled().await;
            tokio::time::sleep(QUICK_STOP_TIMEOUT).await;
        };
        // Cancel-safe: the answer is not needed.
        let answer = tokio::select! {
            answer = pod.keeper.call(Call::Shutdown) => answer,
            () = haste => {
                tracing::warn!("keeper does not answer: killing it with its pod");
                return false;
            }
        };
        match answer {
            Ok(_) => true,
            Err(failure) if failure.kind == FailureKind::Silent => {
                tracing::warn!("keeper does not answer: killing it with its pod");
                false
            }
            Err(failure) => {
                tracing::debug!(%failure, "keeper exited before shutdown request");
                false
            }
        }
    }
}

/// Writes the files that every container of the pod gets in `/etc`, unless its client mounts its own.
fn write_files(
    plan: &PodPlan,
    config: &PodSandboxConfig,
    dns: Option<IpAddr>,
) -> std::io::Result<()> {
    let directory = &plan.directory;
    // In a pod with its own user namespace, root is another user of the host.
    let owner = plan.user_namespace.as_ref().map(IdMappings::root);
    if plan.own_ipc {
        private::make(&directory.join("shm")).map_err(std::io::Error::other)?;
    }
    for volume in &plan.memory_volumes {
        private::make(&volume.at).map_err(std::io::Error::other)?;
    }
    let host = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (hostname, hosts) = if plan.hostname.is_empty() {
        (host("/etc/hostname"), host("/etc/hosts"))
    } else {
        (
            format!("{}\n", plan.hostname),
            format!(
                "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{}\n",
                plan.hostname
            ),
        )
    };
    let resolv = match &config.dns_config {
        Some(dns) => resolv::conf(&dns.servers, &dns.searches, &dns.options),
        None => host("/etc/resolv.conf"),
    };
    let resolv = match dns {
        Some(dns) => resolv::for_pod(&resolv, &host("/etc/resolv.conf"), dns),
        None => resolv,
    };
    write(&directory.join("hostname"), &hostname, owner)?;
    write(&directory.join("hosts"), &hosts, owner)?;
    write(&directory.join("resolv.conf"), &resolv, owner)
}

fn write(path: &Path, text: &str, owner: Option<(u32, u32)>) -> std::io::Result<()> {
    fs::write(path, text)?;
    match owner {
        Some((uid, gid)) => match std::os::unix::fs::chown(path, Some(uid), Some(gid)) {
            // The ids are not mapped in this runtime's user namespace: the keeper reports a better error.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
            given => given,
        },
        None => Ok(()),
    }
}
