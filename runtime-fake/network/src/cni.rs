//! Pod networks set up by plugins of the Container Network Interface, versions 0.3.0 to 1.1.0.
//!
//! The first usable configuration file of a directory, in lexical order, defines the network; it is read again
//! for each pod. The attachment is saved in the sandbox's directory (`attached`) before the first plugin runs, so
//! that the same plugins can always undo it: for this daemon or a later one, after the configuration has changed,
//! and after the pod's namespace has ended.
//!
//! `conf` ◆ and `answer` ◆ parse configurations and results, `exec` runs one plugin. All calls block.

mod answer;
mod attached;
mod conf;
mod exec;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod pod;

use std::{
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Map, Value, json};

pub use answer::{CniResult, Dns};
use attached::{Attached, KnownNetns};
use conf::{NetworkList, Plugin, Version};
use exec::PluginCall;
pub use exec::PluginError;
pub use pod::{CniPod, CniRequest, annotations_fit};

use crate::links;
use crate::{NetError, POD_INTERFACE, PodNetns};

/// Timeout of all commands but STATUS: some plugins wait for a DHCP lease.
const LONG: Duration = Duration::from_secs(60);
/// Timeout of STATUS.
const SHORT: Duration = Duration::from_secs(5);
/// The specification's error code "try again later".
const TRY_AGAIN: u64 = 11;

/// The directories of configurations and plugins.
#[derive(Debug, Clone)]
pub struct CniConfig {
    /// The directory of configurations.
    pub conf_dir: PathBuf,
    /// Directories of plugins, in search order.
    pub bin_dirs: Vec<PathBuf>,
}

/// Why a CNI network failed.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// There is no usable configuration.
    #[error("no CNI network is configured: {reason}")]
    NotConfigured {
        /// The reason.
        reason: String,
    },
    /// A plugin failed.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The plugins returned no address.
    #[error(
        "the CNI network {network} gave the pod no address: does its configuration have an ipam part?"
    )]
    NoAddress {
        /// The network's name.
        network: String,
    },
    /// The pod's keeper ended during ADD.
    #[error("the pod's keeper ended while the CNI network {network} was being set up")]
    PodEnded {
        /// The network's name.
        network: String,
    },
    /// The plugins reported an interface that does not exist.
    #[error(
        "the CNI network {network} created no interface {POD_INTERFACE}, which its plugins say that they made"
    )]
    NoInterface {
        /// The network's name.
        network: String,
    },
    /// The pod's interfaces could not be queried.
    #[error("failed to list the pod's interfaces")]
    Interfaces(#[source] NetError),
    /// The result of a plugin is unusable.
    #[error("the CNI network {network} cannot be used: {problem}")]
    Answer {
        /// The network's name.
        network: String,
        /// The reason.
        problem: String,
    },
    /// ADD failed, and so did the DEL that undoes it.
    #[error("{add}; failed to undo it: {undo}")]
    Undo {
        /// Why ADD failed.
        add: String,
        /// Why DEL failed.
        undo: String,
    },
    /// A file operation failed.
    #[error("failed to {what}")]
    Io {
        /// Completes "failed to".
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Attaches pods with CNI plugins.
#[derive(Debug)]
pub struct Cni {
    config: CniConfig,
    /// The network namespace that plugins run in; `None` is the daemon's own.
    namespace: Option<OwnedFd>,
}

impl Cni {
    /// Attaches no pods. Pods attached earlier are still detached, with the plugins that attached them.
    pub fn without_configuration(namespace: Option<OwnedFd>) -> Self {
        let config = CniConfig { conf_dir: PathBuf::new(), bin_dirs: Vec::new() };
        Self { config, namespace }
    }

    /// Attaches pods with the first usable configuration of the directory.
    pub fn new(config: CniConfig, namespace: Option<OwnedFd>) -> Self {
        Self { config, namespace }
    }

    /// The network namespace that plugins run in; `None` is the daemon's own.
    pub fn namespace(&self) -> Option<BorrowedFd<'_>> {
        self.namespace.as_ref().map(|fd| fd.as_fd())
    }

    /// Attaches a pod (ADD). On failure it runs DEL for the plugins that ran; if that succeeds, nothing is left.
    pub fn add(&self, pod: &CniPod, netns: &PodNetns) -> Result<CniResult, CniError> {
        let list = self.list()?;
        let path = netns.path();
        let mut attached = Attached {
            network: list.source.clone(),
            bin_dirs: self.config.bin_dirs.clone(),
            arguments: pod.arguments(),
            runtime: pod.runtime(),
            begun: list.plugins.len(),
            result: None,
            detached: false,
            netns: Some(KnownNetns { path: path.clone(), identity: netns.identity() }),
        };
        attached.save(&pod.directory)?;
        let added = self.add_all(pod, &path, &list, &mut attached);
        let added = added.and_then(|given| {
            verify_attachment(netns, &list, &attached)?;
            Ok(given)
        });
        match added {
            Ok(given) => Ok(given),
            Err(error) => match self.del_all(&pod.id, Some(&path), &list, &attached) {
                Ok(()) => {
                    attached.detached = true;
                    attached.save(&pod.directory)?;
                    Err(error)
                }
                Err(undo) => {
                    Err(CniError::Undo { add: crate::chain(&error), undo: crate::chain(&undo) })
                }
            },
        }
    }

    fn add_all(
        &self,
        pod: &CniPod,
        netns: &str,
        list: &NetworkList,
        attached: &mut Attached,
    ) -> Result<CniResult, CniError> {
        let mut previous: Option<Value> = None;
        for (index, plugin) in list.plugins.iter().enumerate() {
            let input = list.input(plugin, previous.as_ref(), &attached.runtime, Map::new());
            let variables = pod_variables(&pod.id, Some(netns), &attached.arguments);
            let answer = self.run("ADD", &attached.bin_dirs, list, plugin, variables, &input);
            // A plugin that failed may have done half of its work; the plugins after it have not run.
            if let Err(error) = &answer {
                attached.begun = index + usize::from(error.has_run());
                attached.save(&pod.directory)?;
            }
            previous = Some(answer?);
            attached.result.clone_from(&previous);
        }
        attached.save(&pod.directory)?;
        let given = answer::read(previous.as_ref().unwrap_or(&Value::Null))
            .map_err(|problem| CniError::Answer { network: list.name.clone(), problem })?;
        if given.addresses.is_empty() {
            return Err(CniError::NoAddress { network: list.name.clone() });
        }
        Ok(given)
    }

    /// Detaches a pod (DEL); idempotent. `netns` is `None` when the pod's namespace has ended. `connected`: whether the pod was
    /// attached, in case no attachment is recorded.
    pub fn del(
        &self,
        pod: &CniPod,
        netns: Option<&PodNetns>,
        connected: bool,
    ) -> Result<(), CniError> {
        let mut attached = match Attached::load(&pod.directory)? {
            Some(attached) if attached.detached => return Ok(()),
            Some(attached) => attached,
            None if !connected => return Ok(()),
            None => {
                let Ok(list) = self.list() else {
                    tracing::warn!(sandbox = pod.id, "pod has no CNI record: skipped DEL");
                    return Ok(());
                };
                Attached {
                    begun: list.plugins.len(),
                    network: list.source,
                    bin_dirs: self.config.bin_dirs.clone(),
                    arguments: pod.arguments(),
                    runtime: pod.runtime(),
                    result: None,
                    detached: false,
                    netns: None,
                }
            }
        };
        let list = NetworkList::read(attached.network.clone())
            .map_err(|error| CniError::NotConfigured { reason: error.to_string() })?;
        let path = attached.same(netns).map(PodNetns::path);
        self.del_all(&pod.id, path.as_deref(), &list, &attached)?;
        attached.detached = true;
        match attached.save(&pod.directory) {
            // A concurrent removal of the pod was first.
            Err(CniError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            saved => saved,
        }
    }

    fn del_all(
        &self,
        id: &str,
        netns: Option<&str>,
        list: &NetworkList,
        attached: &Attached,
    ) -> Result<(), CniError> {
        // DEL receives the result of ADD since 0.4.0.
        let previous = attached.result_at(netns).filter(|_| list.version >= Version::CHECK);
        for plugin in list.plugins.iter().take(attached.begun).rev() {
            let input = list.input(plugin, previous.as_ref(), &attached.runtime, Map::new());
            let variables = pod_variables(id, netns, &attached.arguments);
            self.run("DEL", &attached.bin_dirs, list, plugin, variables, &input)?;
        }
        Ok(())
    }

    /// Checks with the plugins that a pod is still attached (CHECK).
    pub fn check(&self, pod: &CniPod, netns: &PodNetns) -> Result<(), CniError> {
        let Some(attached) = Attached::load(&pod.directory)?.filter(|known| !known.detached) else {
            return Ok(());
        };
        let Ok(list) = NetworkList::read(attached.network.clone()) else {
            return Ok(());
        };
        let another = attached.same(Some(netns)).is_none();
        if list.version < Version::CHECK || list.disable_check || another {
            return Ok(());
        }
        let path = netns.path();
        let result = attached.result_at(Some(&path));
        for plugin in &list.plugins {
            let input = list.input(plugin, result.as_ref(), &attached.runtime, Map::new());
            let variables = pod_variables(&pod.id, Some(&path), &attached.arguments);
            self.run("CHECK", &attached.bin_dirs, &list, plugin, variables, &input)?;
        }
        Ok(())
    }

    /// Checks with the plugins that a pod could be attached now (STATUS).
    pub fn status(&self) -> Result<(), CniError> {
        let list = self.list()?;
        if list.version < Version::STATUS {
            return Ok(());
        }
        let own = &self.config.bin_dirs;
        for plugin in &list.plugins {
            let input = list.input(plugin, None, &Map::new(), Map::new());
            self.run("STATUS", own, &list, plugin, Vec::new(), &input)?;
        }
        Ok(())
    }

    /// Makes the plugins release every attachment except the attachments of the sandboxes in `valid` (GC).
    pub fn gc(&self, valid: &[String]) -> Result<(), CniError> {
        let Ok(list) = self.list() else {
            return Ok(());
        };
        if list.version < Version::STATUS || list.disable_gc {
            return Ok(());
        }
        let attachments: Vec<Value> =
            valid.iter().map(|id| json!({"containerID": id, "ifname": POD_INTERFACE})).collect();
        let extra = Map::from_iter([("cni.dev/valid-attachments".to_owned(), json!(attachments))]);
        let own = &self.config.bin_dirs;
        for plugin in &list.plugins {
            let input = list.input(plugin, None, &Map::new(), extra.clone());
            self.run("GC", own, &list, plugin, Vec::new(), &input)?;
        }
        Ok(())
    }

    fn run(
        &self,
        command: &'static str,
        bin_dirs: &[PathBuf],
        list: &NetworkList,
        plugin: &Plugin,
        variables: Vec<(&'static str, String)>,
        input: &Value,
    ) -> Result<Value, CniError> {
        let ask = PluginCall {
            command,
            plugin: &plugin.kind,
            network: &list.name,
            bin_dirs,
            variables,
            input,
            timeout: if command == "STATUS" { SHORT } else { LONG },
        };
        let result = links::within(self.namespace(), || exec::run(&ask)).map_err(|source| {
            CniError::Io { what: "enter the network namespace of the CNI plugins", source }
        })?;
        match result {
            Err(PluginError::Failed { code, .. }) if command == "GC" && code == 4 => {
                // An older plugin may not support the command.
                Ok(Value::Null)
            }
            result => Ok(result?),
        }
    }

    /// The network that new pods are attached to.
    fn list(&self) -> Result<NetworkList, CniError> {
        let directory = &self.config.conf_dir;
        let mut unusable = None;
        for file in configurations(directory).map_err(|error| CniError::NotConfigured {
            reason: format!("failed to read {}: {error}", directory.display()),
        })? {
            let read = fs::read(&file).map_err(|error| error.to_string());
            let parsed =
                read.and_then(|text| NetworkList::parse(&text).map_err(|error| error.to_string()));
            match parsed {
                Ok(list) => return Ok(list),
                Err(error) => {
                    unusable.get_or_insert(format!("{} cannot be used: {error}", file.display()));
                }
            }
        }
        Err(CniError::NotConfigured {
            reason: unusable.unwrap_or_else(|| {
                format!("there is no *.conflist, *.conf or *.json in {}", directory.display())
            }),
        })
    }
}

/// Checks that the keeper still runs and that the pod has the interface that the plugins reported.
fn verify_attachment(
    netns: &PodNetns,
    list: &NetworkList,
    attached: &Attached,
) -> Result<(), CniError> {
    let network = || list.name.clone();
    let ended = netns
        .has_ended()
        .map_err(|source| CniError::Io { what: "watch the pod's keeper", source })?;
    if ended {
        return Err(CniError::PodEnded { network: network() });
    }
    let claimed = attached
        .result
        .as_ref()
        .is_some_and(|result| answer::claims_interface(result, POD_INTERFACE));
    let there = !claimed || netns.has_interface(POD_INTERFACE).map_err(CniError::Interfaces)?;
    there.then_some(()).ok_or_else(|| CniError::NoInterface { network: network() })
}

impl CniError {
    /// Whether the plugin ran at all.
    fn has_run(&self) -> bool {
        !matches!(self, Self::Plugin(PluginError::Missing { .. }))
    }

    /// Whether the same call may succeed later.
    pub fn try_again(&self) -> bool {
        matches!(self, Self::Plugin(PluginError::Failed { code, .. }) if *code == TRY_AGAIN)
    }
}

/// Whether plugins attached a sandbox, even if this daemon uses another network.
pub fn connected(directory: &Path) -> bool {
    Attached::is_there(directory)
}

/// The candidate configuration files, in lexical order.
fn configurations(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.retain(|file| {
        let extension = file.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("conflist" | "conf" | "json")) && file.is_file()
    });
    files.sort();
    Ok(files)
}

fn pod_variables(id: &str, netns: Option<&str>, arguments: &str) -> Vec<(&'static str, String)> {
    vec![
        ("CNI_CONTAINERID", id.to_owned()),
        ("CNI_NETNS", netns.unwrap_or_default().to_owned()),
        ("CNI_IFNAME", POD_INTERFACE.to_owned()),
        ("CNI_ARGS", arguments.to_owned()),
    ]
}
