//! The cgroups of pods and of their QoS classes, on a node whose agent manages them: a pod's is created before its sandbox and
//! removed at the pod's end, after its processes were killed. `pod_spec::spec::cgroup::values` ◆ decides the values.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm: container_manager_linux.go, node_container_manager_linux.go,
//! qos_container_manager_linux.go, pod_container_manager_linux.go.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::pod::{Pod, PodUid};
use api::qos::QosClass;
use compact::Set;
use tokio::sync::watch;

use crate::clock::{Clock, after};
use crate::config::{AdmissionConfig, CgroupConfig, Config};
use crate::decide::resize::actuated::PodLimits;
use crate::machine::cgroups::{CgroupValues, ControlGroups};
use crate::node::Node;
use crate::pod_spec::spec::cgroup::values::{of_classes, of_pod, of_resources, uid_of, unreserved};
use crate::pod_spec::spec::cgroup::{class_path, paths_of, pod_path, root_path};
use crate::reporting::events::{EventRecorder, EventType};
use crate::reporting::measures::Measures;
use crate::reporting::report::Reports;
use tasks::blocking;

/// The period in which the weights of classes are updated (periodicQOSCgroupUpdateInterval), and failed limits are retried.
const PERIOD: Duration = Duration::from_secs(60);

/// The cgroups of pods that this agent manages. Clones share them.
#[derive(Clone)]
pub(crate) struct PodCgroups(Arc<Inner>);

impl fmt::Debug for PodCgroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PodCgroups").field(&self.0.classes).finish()
    }
}

struct Inner {
    groups: Arc<dyn ControlGroups>,
    node: Node,
    config: CgroupConfig,
    /// The paths of the classes' cgroups: Guaranteed, which is the cgroup of all pods, Burstable and BestEffort.
    classes: [String; 3],
    pods: watch::Receiver<Arc<[Pod]>>,
    reports: watch::Receiver<Arc<Reports>>,
    /// The pods from which the classes' weights were last computed.
    weighted: Mutex<Option<Arc<[Pod]>>>,
    /// The cgroups of unknown pods that could not be removed; the log has a warning about each.
    stuck: Mutex<Set<String>>,
    measures: Measures,
}

/// The pods of a node.
pub(crate) struct Pods {
    /// The pods of all sources.
    pub(crate) pods: watch::Receiver<Arc<[Pod]>>,
    /// Their reports.
    pub(crate) reports: watch::Receiver<Arc<Reports>>,
}

impl PodCgroups {
    /// Creates the cgroups of all pods and of their classes, or finds those of an earlier agent. `None`: they are not configured,
    /// or the machine does not allow the agent to create them; then a warning is logged, and the runtime creates those of pods.
    pub(crate) fn start(
        groups: Option<Arc<dyn ControlGroups>>,
        config: &Config,
        node: &Node,
        Pods { pods, reports }: Pods,
        measures: Measures,
    ) -> Option<Self> {
        let (groups, config) = (groups?, &config.cgroups);
        let class = |class| class_path(node, class);
        let classes = [
            class(QosClass::Guaranteed)?,
            class(QosClass::Burstable)?,
            class(QosClass::BestEffort)?,
        ];
        let none = CgroupValues::default();
        for path in &classes {
            if let Err(error) = groups.make(path, &none) {
                tracing::warn!(
                    %error,
                    "failed to create pod cgroups, leaving them to the runtime: run the agent as root with a writable /sys/fs/cgroup, \
                     and with systemd for the systemd driver, or set cgroupsPerQOS: false"
                );
                return None;
            }
        }
        let missing_controllers = groups.missing_controllers();
        if !missing_controllers.is_empty() {
            let missing_controllers = missing_controllers.join("; ");
            tracing::warn!(
                missing_controllers,
                "cgroup controllers are missing; pods are not limited by them"
            );
        }
        let inner = Inner {
            groups,
            node: node.clone(),
            config: config.clone(),
            classes,
            pods,
            reports,
            weighted: Mutex::new(None),
            stuck: Mutex::default(),
            measures,
        };
        Some(Self(Arc::new(inner)))
    }

    /// Maintains the limits of all pods, of reserved resources, and of the classes. Never returns.
    pub(crate) async fn run(
        self,
        clock: Arc<dyn Clock>,
        events: EventRecorder,
        enforced: Vec<Enforced>,
    ) {
        let mut open = enforced;
        loop {
            self.enforce(&mut open, &events).await;
            self.update_weights(WeightUpdate::Always).await;
            clock.sleep_until(after(clock.now(), PERIOD)).await;
        }
    }

    /// Sets limits that are not set yet, and keeps the failed ones in `open`.
    async fn enforce(&self, open: &mut Vec<Enforced>, events: &EventRecorder) {
        let node = &self.0.node.name;
        for mut enforced in std::mem::take(open) {
            let (inner, wanted) = (Arc::clone(&self.0), enforced.clone());
            let set = blocking(move || {
                inner.groups.set(&wanted.path, &wanted.values)?;
                // Resources without a controller are not limited.
                let missing_controllers = inner.groups.missing_controllers();
                if missing_controllers.is_empty() {
                    Ok(())
                } else {
                    Err(io::Error::other(missing_controllers.join("; ")))
                }
            });
            let set = set.await;
            match set {
                Ok(()) => {
                    let message = enforced.done.clone();
                    events.record_node(node, EventType::Normal, "NodeAllocatableEnforced", message);
                }
                Err(error) => {
                    let message = format!("{}: {error}", enforced.failed);
                    if !std::mem::replace(&mut enforced.is_reported, true) {
                        tracing::warn!(path = enforced.path, %error, "failed to limit cgroup; will retry every minute");
                    }
                    let reason = "FailedNodeAllocatableEnforcement";
                    events.record_node(node, EventType::Warning, reason, message);
                    open.push(enforced);
                }
            }
        }
    }

    /// Sets the weights and limits of the classes from the active pods.
    async fn update_weights(&self, when: WeightUpdate) {
        let inner = Arc::clone(&self.0);
        blocking(move || inner.update_weights(when)).await;
    }

    /// Creates the cgroup of a pod before its sandbox, or re-creates that of a pod with a sandbox. `quota`: whether its CPU quota
    /// is enforced.
    pub(crate) async fn ensure(&self, pod: &Pod, has_sandbox: bool, quota: bool) -> io::Result<()> {
        let Some(path) = pod_path(pod, &self.0.node) else {
            return Ok(());
        };
        let (inner, pod) = (Arc::clone(&self.0), pod.clone());
        blocking(move || {
            // A killed agent may have created the cgroup without values; once there is a sandbox, the values were set.
            if has_sandbox && inner.groups.exists(&path) {
                return Ok(());
            }
            inner.update_weights(WeightUpdate::NewPods);
            let node = Node { cpu_quota: quota, ..inner.node.clone() };
            let values = of_pod(&pod, &node, inner.config.pod_pids_limit);
            inner.groups.make(&path, &values)
        })
        .await
    }

    /// Sets the limits of a resized pod.
    pub(crate) async fn set(&self, pod: &Pod, limits: PodLimits) -> io::Result<()> {
        let Some(path) = pod_path(pod, &self.0.node) else {
            return Ok(());
        };
        let values = CgroupValues {
            cpu_shares: (limits.cpu_shares > 0).then_some(limits.cpu_shares),
            cpu_quota: (limits.cpu_period > 0).then_some((limits.cpu_quota, limits.cpu_period)),
            memory: limits.memory,
            ..CgroupValues::default()
        };
        let inner = Arc::clone(&self.0);
        blocking(move || inner.groups.set(&path, &values)).await
    }

    /// Kills the processes in the cgroup of a pod, and removes it. Fails as long as killed processes exist.
    pub(crate) async fn destroy(&self, uid: &PodUid) -> io::Result<()> {
        let (inner, uid) = (Arc::clone(&self.0), uid.clone());
        blocking(move || {
            inner.destroy(&uid)?;
            inner.update_weights(WeightUpdate::NewPods);
            Ok(())
        })
        .await
    }

    /// Removes the cgroups of unknown pods, unless other agents may have pods there. Returns whether all are removed: killed
    /// processes need time to end.
    pub(crate) async fn remove_orphans(
        &self,
        is_known: impl Fn(&str) -> bool + Send + 'static,
    ) -> bool {
        let inner = Arc::clone(&self.0);
        if inner.config.shares_root {
            return true;
        }
        blocking(move || inner.remove_orphans(&is_known)).await
    }

    /// Removes the cgroups of the classes, and of all pods, if there is no pod.
    pub(crate) fn remove_empty(&self) {
        let [all, burstable, best_effort] = &self.0.classes;
        let has_pods = |class: &String| {
            let names = self.0.groups.children(class).unwrap_or_default();
            names.iter().any(|name| uid_of(name).is_some())
        };
        if self.0.classes.iter().any(has_pods) {
            return;
        }
        for path in [best_effort, burstable, all] {
            self.0.groups.remove_empty(path);
        }
        if self.0.config.owns_root {
            self.0.groups.remove_empty(&root_path(self.0.config.driver, &self.0.config.root));
        }
    }
}

/// When the weights of classes are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WeightUpdate {
    Always,
    /// Only if the sources' pods have changed since the last update: many pods may start at the same time.
    NewPods,
}

impl Inner {
    fn update_weights(&self, when: WeightUpdate) {
        let pods = Arc::clone(&self.pods.borrow());
        let mut weighted = self.weighted.lock().unwrap_or_else(PoisonError::into_inner);
        let are_known = weighted.as_ref().is_some_and(|known| Arc::ptr_eq(known, &pods));
        if when == WeightUpdate::NewPods && are_known {
            return;
        }
        let classes = {
            let reports = self.reports.borrow();
            let ended = |pod: &&Pod| reports.get(pod.uid()).is_some_and(|report| report.finished);
            let active = pods.iter().filter(|pod| !ended(pod));
            of_classes(active, &self.node, self.config.qos_reserved_memory)
        };
        if let Some(kept) = classes.protected_memory {
            self.measures.set_protected_memory(kept);
        }
        let [all, burstable, best_effort] = &self.classes;
        let all_values = [
            (all, classes.guaranteed),
            (burstable, classes.burstable),
            (best_effort, classes.best_effort),
        ];
        let mut failed = false;
        for (path, values) in all_values.into_iter().filter(|(_, values)| !values.is_empty()) {
            if let Err(error) = self.set_class(path, values) {
                tracing::warn!(path, %error, "failed to update cgroup of QoS class; will retry");
                failed = true;
            }
        }
        *weighted = (!failed).then_some(pods);
    }

    /// Sets values of a class. If it uses more memory than its limit, its usage becomes the limit (retrySetMemoryReserve).
    fn set_class(&self, path: &str, mut values: CgroupValues) -> io::Result<()> {
        let usage = values.memory.and_then(|_| self.groups.memory_usage(path));
        if let (Some(limit), Some(usage)) = (values.memory, usage) {
            values.memory = Some(limit.max(usage));
        }
        match self.groups.set(path, &values) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.groups.make(path, &values)
            }
            set => set,
        }
    }

    fn destroy(&self, uid: &PodUid) -> io::Result<()> {
        for path in paths_of(uid, &self.node) {
            match self.groups.destroy(&path) {
                // The path is invalid, so the cgroup was not created either.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                destroyed => destroyed?,
            }
        }
        Ok(())
    }

    fn remove_orphans(&self, is_known: &dyn Fn(&str) -> bool) -> bool {
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all_removed = true;
        for class in &self.classes {
            let names = match self.groups.children(class) {
                Ok(names) => names,
                Err(error) => {
                    tracing::warn!(%error, "failed to list cgroups of unknown pods");
                    continue;
                }
            };
            for name in names.iter().filter(|name| uid_of(name).is_some_and(|uid| !is_known(&uid)))
            {
                let path = format!("{class}/{name}");
                let is_logged = stuck.contains(path.as_str());
                if !is_logged {
                    tracing::info!(path, "removing cgroup of an unknown pod");
                }
                match self.groups.destroy(&path) {
                    Ok(()) => {
                        stuck.remove(path.as_str());
                    }
                    Err(error) => {
                        all_removed = false;
                        if is_logged {
                            tracing::debug!(path, %error, "failed to remove cgroup of an unknown pod again");
                        } else {
                            tracing::warn!(path, %error, "failed to remove cgroup of an unknown pod; will retry");
                            stuck.insert(path);
                        }
                    }
                }
            }
        }
        all_removed
    }
}

/// A limit that is set once, and the messages of its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Enforced {
    path: String,
    values: CgroupValues,
    done: String,
    failed: String,
    /// Whether a failure was logged.
    is_reported: bool,
}

/// ◆ The limits of all pods, and of reserved resources, as far as they are enforced. `capacity` has the number of processes as
/// `pid`.
pub(crate) fn enforced(
    config: &CgroupConfig,
    rules: &AdmissionConfig,
    node: &Node,
    capacity: &BTreeMap<String, String>,
) -> Vec<Enforced> {
    let Some(path) = class_path(node, QosClass::Guaranteed) else {
        return Vec::new();
    };
    let enforcement = &config.enforced;
    let reserved = [&rules.system_reserved, &rules.kube_reserved];
    // Set even without enforcement, because a new cgroup has few shares.
    let list = match enforcement.pods {
        true => unreserved(capacity, &reserved),
        false => capacity.clone(),
    };
    let mut all = vec![Enforced {
        values: of_resources(&list, node, false),
        done: "Updated Node Allocatable limit across pods".to_owned(),
        failed: format!("Failed to update Node Allocatable Limits {path:?}"),
        path,
        is_reported: false,
    }];
    let named = [
        ("system", "System", &enforcement.system_reserved, &rules.system_reserved),
        ("kube", "Kube", &enforcement.kube_reserved, &rules.kube_reserved),
    ];
    for (name, title, cgroup, list) in named {
        if let Some(cgroup) = cgroup {
            let kind = if cgroup.compressible { " Compressible" } else { "" };
            let path = &cgroup.path;
            all.push(Enforced {
                values: of_resources(list, node, cgroup.compressible),
                done: format!("Updated limits on {name} reserved cgroup {path}"),
                failed: format!(
                    "Failed to enforce {title} Reserved{kind} Cgroup Limits on {path:?}"
                ),
                path: path.clone(),
                is_reported: false,
            });
        }
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::config::{NodeAllocatable, ReservedCgroup};

    fn list(amounts: &[(&str, &str)]) -> BTreeMap<String, String> {
        amounts.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect()
    }

    fn named(path: &str, compressible: bool) -> Option<ReservedCgroup> {
        Some(ReservedCgroup { path: path.to_owned(), compressible })
    }

    /// Path, shares, memory and the message of a failure, for each limit.
    #[rstest]
    #[case::of_pods(
        NodeAllocatable::default(),
        &["/kubepods 2048 Some(900) Failed to update Node Allocatable Limits \"/kubepods\""]
    )]
    #[case::none(
        NodeAllocatable { pods: false, ..NodeAllocatable::default() },
        &["/kubepods 4096 Some(1000) Failed to update Node Allocatable Limits \"/kubepods\""]
    )]
    #[case::reserved(
        NodeAllocatable { pods: true, system_reserved: named("/s", false), kube_reserved: named("/k", true) },
        &[
            "/kubepods 2048 Some(900) Failed to update Node Allocatable Limits \"/kubepods\"",
            "/s 1024 Some(100) Failed to enforce System Reserved Cgroup Limits on \"/s\"",
            "/k 1024 None Failed to enforce Kube Reserved Compressible Cgroup Limits on \"/k\"",
        ]
    )]
    fn limits_are_set_for_enforced_reservations(
        #[case] enforced_for: NodeAllocatable,
        #[case] expected: &[&str],
    ) {
        let mut node = Node::new("n", "/r", "/l");
        node.cgroups_per_qos = true;
        let config = CgroupConfig { enforced: enforced_for, ..CgroupConfig::default() };
        let rules = AdmissionConfig {
            system_reserved: list(&[("cpu", "1"), ("memory", "100")]),
            kube_reserved: list(&[("cpu", "1")]),
            ..AdmissionConfig::default()
        };
        let capacity = list(&[("cpu", "4"), ("memory", "1000")]);
        let found = enforced(&config, &rules, &node, &capacity);
        let texts = found.iter().map(|it| {
            let shares = it.values.cpu_shares.unwrap();
            format!("{} {shares} {:?} {}", it.path, it.values.memory, it.failed)
        });
        assert_eq!(texts.collect::<Vec<_>>(), expected);
        node.cgroups_per_qos = false;
        assert_eq!(enforced(&config, &rules, &node, &capacity), []);
    }
}
