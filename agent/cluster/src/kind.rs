//! ◆ Kinds of objects, and the rules for storing them. Pure.

use std::fmt;
use std::sync::Arc;

/// A kind of objects. Its versions are not distinguished: an object is stored in the version in which it was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// `apps`; empty for the core group.
    pub group: Arc<str>,
    /// `Deployment`.
    pub name: Arc<str>,
}

/// The rules for storing objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Whether they are namespaced. `None`: those with a namespace are.
    pub(crate) namespaced: Option<bool>,
    /// Whether `status` is a subresource, which only writes of the status change.
    pub(crate) has_status: bool,
    /// Whether `metadata.generation` counts the changes of their spec.
    pub(crate) counts_generation: bool,
}

/// A known kind: group, kind, plural, and its rules.
type Known = (&'static str, &'static str, &'static str, Rules);

const fn rules(namespaced: bool, has_status: bool, counts_generation: bool) -> Rules {
    Rules { namespaced: Some(namespaced), has_status, counts_generation }
}

/// Source: Kubernetes 1.36, the strategies in pkg/registry. If a strategy sets no generation, there is none.
const KNOWN: [Known; 32] = [
    ("", "ConfigMap", "configmaps", rules(true, false, false)),
    ("", "Endpoints", "endpoints", rules(true, false, false)),
    ("", "Event", "events", rules(true, false, false)),
    ("", "LimitRange", "limitranges", rules(true, false, false)),
    ("", "Namespace", "namespaces", rules(false, true, false)),
    ("", "Node", "nodes", rules(false, true, false)),
    ("", "PersistentVolume", "persistentvolumes", rules(false, true, false)),
    ("", "PersistentVolumeClaim", "persistentvolumeclaims", rules(true, true, false)),
    ("", "Pod", "pods", rules(true, true, true)),
    ("", "PodTemplate", "podtemplates", rules(true, false, true)),
    ("", "ReplicationController", "replicationcontrollers", rules(true, true, true)),
    ("", "ResourceQuota", "resourcequotas", rules(true, true, false)),
    ("", "Secret", "secrets", rules(true, false, false)),
    ("", "Service", "services", rules(true, true, false)),
    ("", "ServiceAccount", "serviceaccounts", rules(true, false, false)),
    ("apps", "ControllerRevision", "controllerrevisions", rules(true, false, false)),
    ("apps", "DaemonSet", "daemonsets", rules(true, true, true)),
    ("apps", "Deployment", "deployments", rules(true, true, true)),
    ("apps", "ReplicaSet", "replicasets", rules(true, true, true)),
    ("apps", "StatefulSet", "statefulsets", rules(true, true, true)),
    ("batch", "CronJob", "cronjobs", rules(true, true, true)),
    ("batch", "Job", "jobs", rules(true, true, true)),
    (
        "certificates.k8s.io",
        "ClusterTrustBundle",
        "clustertrustbundles",
        rules(false, false, false),
    ),
    ("coordination.k8s.io", "Lease", "leases", rules(true, false, false)),
    ("discovery.k8s.io", "EndpointSlice", "endpointslices", rules(true, false, true)),
    ("events.k8s.io", "Event", "events", rules(true, false, false)),
    ("networking.k8s.io", "Ingress", "ingresses", rules(true, true, true)),
    ("networking.k8s.io", "NetworkPolicy", "networkpolicies", rules(true, false, true)),
    ("node.k8s.io", "RuntimeClass", "runtimeclasses", rules(false, false, false)),
    ("policy", "PodDisruptionBudget", "poddisruptionbudgets", rules(true, true, true)),
    ("scheduling.k8s.io", "PriorityClass", "priorityclasses", rules(false, false, true)),
    ("storage.k8s.io", "StorageClass", "storageclasses", rules(false, false, false)),
];

/// The rules for custom resources without a status subresource.
const UNKNOWN: Rules = Rules { namespaced: None, has_status: false, counts_generation: true };

impl Kind {
    /// The kind of an object with this API version (`v1`, `apps/v1`) and kind.
    #[must_use]
    pub fn of(api_version: &str, kind: &str) -> Self {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        Self { group: group.into(), name: kind.into() }
    }

    /// Pods.
    #[must_use]
    pub fn pod() -> Self {
        Self::of("v1", "Pod")
    }

    /// Whether the kind is Pod.
    #[must_use]
    pub fn is_pod(&self) -> bool {
        self.group.is_empty() && &*self.name == "Pod"
    }

    /// The resource as in messages: `pods`, `deployments.apps`.
    #[must_use]
    pub fn resource(&self) -> String {
        let plural = match self.known() {
            Some((_, _, plural, _)) => (*plural).to_owned(),
            None => format!("{}s", self.name.to_lowercase()),
        };
        if self.group.is_empty() { plural } else { format!("{plural}.{}", self.group) }
    }

    /// The rules for storing objects of the kind.
    pub(crate) fn rules(&self) -> Rules {
        self.known().map_or(UNKNOWN, |(_, _, _, rules)| *rules)
    }

    fn known(&self) -> Option<&'static Known> {
        KNOWN.iter().find(|(group, name, _, _)| *group == &*self.group && *name == &*self.name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}
