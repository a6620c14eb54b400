//! ◆ What the agent does with each feature gate that a kubelet reads. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet, pkg/volume, pkg/credentialprovider, cmd/kubelet, and the packages of component-base, client-go
//! and apiserver that a kubelet uses. Gates that are not here are accepted, as by a kubelet: only other components read them, both of
//! their values have the same effect on a node (AllowDNSOnlyNodeCSR: a node always has an address; TopologyManagerPolicyAlphaOptions
//! and TopologyManagerPolicyBetaOptions: all options are stable), they are of Windows, or of client-go's caches.

/// What the agent does with a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateEffect {
    /// It applies both values.
    Applied,
    /// It applies this value only in part.
    Partly {
        /// The value.
        value: bool,
        /// What is missing.
        why: &'static str,
    },
    /// It behaves as if the gate had this value, whatever the gate says.
    Always {
        /// The value.
        value: bool,
        /// Why the other value has no effect.
        why: &'static str,
    },
}

/// A feature gate that a kubelet reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KubeletGate {
    pub(super) name: &'static str,
    pub(super) effect: GateEffect,
}

impl KubeletGate {
    /// Why this value does not have the effect that it has on a kubelet; `None`: it has.
    pub(super) fn missing_effect(&self, given: bool) -> Option<&'static str> {
        match self.effect {
            GateEffect::Applied => None,
            GateEffect::Partly { value, why } => (given == value).then_some(why),
            GateEffect::Always { value, why } => (given != value).then_some(why),
        }
    }
}

const fn applied(name: &'static str) -> KubeletGate {
    KubeletGate { name, effect: GateEffect::Applied }
}

const fn partly(name: &'static str, value: bool, why: &'static str) -> KubeletGate {
    KubeletGate { name, effect: GateEffect::Partly { value, why } }
}

const fn always(name: &'static str, value: bool, why: &'static str) -> KubeletGate {
    KubeletGate { name, effect: GateEffect::Always { value, why } }
}

/// The gates by name.
pub(super) const KUBELET_GATES: [KubeletGate; 66] = [
    applied("AllowParsingUserUIDFromCertAuth"),
    applied("CPUManagerPolicyAlphaOptions"),
    applied("CPUManagerPolicyBetaOptions"),
    partly(
        "CRIListStreaming",
        true,
        "the agent lists sandboxes and containers in streams, but images and statistics in one message",
    ),
    applied("CSIVolumeHealth"),
    always(
        "ChangeContainerStatusOnKubeletRestart",
        false,
        "the agent keeps the ready and started status of containers when it restarts",
    ),
    always("ClientsAllowCARotation", true, "the agent always reloads a changed CA file"),
    always("ClientsAllowCBOR", false, "the agent and the API server exchange JSON"),
    always("ClientsPreferCBOR", false, "the agent and the API server exchange JSON"),
    always("ClusterTrustBundleProjection", true, "the agent always projects ClusterTrustBundles"),
    applied("ComponentFlagz"),
    applied("ComponentStatusz"),
    applied("ContainerCheckpoint"),
    always(
        "ContainerRestartRules",
        true,
        "the agent always applies the restart rules of containers",
    ),
    applied("ContainerStopSignals"),
    always("ContextualLogging", true, "the agent does not log with klog"),
    applied("CustomCPUCFSQuotaPeriod"),
    always(
        "DRAExtendedResource",
        true,
        "the agent always prepares the ResourceClaims of extended resources",
    ),
    always(
        "DRAWorkloadResourceClaims",
        false,
        "the agent prepares only ResourceClaims that a pod itself refers to",
    ),
    applied("DisableCPUQuotaWithExclusiveCPUs"),
    applied("EnvFiles"),
    applied("EventedPLEG"),
    applied("ExtendWebSocketsToKubelet"),
    applied("GracefulNodeShutdown"),
    applied("GracefulNodeShutdownBasedOnPodPriority"),
    applied("HostnameOverride"),
    always(
        "ImageVolumeWithDigest",
        false,
        "the agent reports no digests of image volumes in pod statuses",
    ),
    applied("InPlacePodLevelResourcesVerticalScaling"),
    applied("InPlacePodVerticalScalingExclusiveCPUs"),
    applied("InPlacePodVerticalScalingExclusiveMemory"),
    partly(
        "InPlacePodVerticalScalingInitContainers",
        false,
        "the node does not declare the feature, but the agent still resizes init containers",
    ),
    applied("KubeletCrashLoopBackOffMax"),
    applied("KubeletEnsureSecretPulledImages"),
    always(
        "KubeletInUserNamespace",
        true,
        "the agent always starts, even if it cannot set sysctls or read the kernel log",
    ),
    applied("KubeletPodResourcesListUseActivePods"),
    applied("KubeletRegistrationGetOnExistsOnly"),
    always(
        "KubeletSeparateDiskGC",
        true,
        "the agent always supports separate file systems for images and containers",
    ),
    applied("KubeletServiceAccountTokenForCredentialProviders"),
    always(
        "LocalStorageCapacityIsolationFSQuotaMonitoring",
        false,
        "the agent measures volumes without project quotas",
    ),
    applied("LoggingAlphaOptions"),
    applied("LoggingBetaOptions"),
    applied("MemoryQoS"),
    always("NativeHistograms", false, "the agent's metrics have only classic histograms"),
    applied("NodeDeclaredFeatures"),
    always(
        "PLEGOnDemandRelist",
        true,
        "the agent always lists the runtime's pods again when a newer state is needed",
    ),
    always(
        "PodAndContainerStatsFromCRI",
        true,
        "the agent gets statistics of pods and containers only from the runtime",
    ),
    always("PodCertificateRequest", false, "the agent does not request certificates for pods"),
    applied("PodLevelResourceManagers"),
    always("PodLevelResources", true, "the agent always applies the resources of whole pods"),
    applied("PodLogsQuerySplitStreams"),
    applied("PodReadyToStartContainersCondition"),
    always("PodsAPI", false, "the agent does not serve the kubelet's pods API"),
    applied("PreventStaticPodAPIReferences"),
    applied("QOSReserved"),
    applied("ReduceDefaultCrashLoopBackOffDecay"),
    applied("ReloadKubeletClientCAFile"),
    applied("ReloadKubeletServerCertificateFile"),
    applied("ResourceHealthStatus"),
    applied("ResourceHealthStatusMessage"),
    partly(
        "RestartAllContainersOnContainerExits",
        false,
        "the node does not declare the feature, but the agent still applies rules that restart all containers",
    ),
    applied("RotateKubeletServerCertificate"),
    applied("RuntimeClassInImageCriApi"),
    always("SELinuxMount", false, "the agent mounts no volume with an SELinux context"),
    applied("TaintTolerationComparisonOperators"),
    applied("UserNamespacesHostNetworkSupport"),
    always("WatchListClient", false, "the agent lists objects before it watches them"),
];
