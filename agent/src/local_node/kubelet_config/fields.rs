//! ◆ Every field of a KubeletConfiguration: its default, and its effect on the agent. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/apis/config/v1beta1/defaults.go. A field either has its effect, or is rejected by name if
//! it differs from its default, or has no effect here and is named in a warning.

use Effect::{Refused, Unused, Used};

/// The effect of a field on the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The agent implements it.
    Used,
    /// A value other than the default is rejected. The text says what to do instead.
    Refused(&'static str),
    /// It has no effect. The text says why.
    Unused(&'static str),
}

/// A field of a KubeletConfiguration.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name, such as `logging.format` for a field of an object.
    pub name: &'static str,
    /// A kubelet's default, in JSON; empty: none.
    pub default: &'static str,
    /// Its effect on the agent.
    pub effect: Effect,
    /// The value in effect if the field is not used, in JSON; empty if there is none.
    pub actual: &'static str,
}

/// The fields whose zero value counts as set. A zero value of another number, string or duration stands for the default.
pub(super) const ZERO_COUNTS: [&str; 20] = [
    "containerLogMaxFiles",
    "containerLogMaxWorkers",
    "containerLogMonitorInterval",
    "cpuCFSQuotaPeriod",
    "crashLoopBackOff.maxContainerRestartPeriod",
    "eventRecordQPS",
    "healthzPort",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "iptablesDropBit",
    "iptablesMasqueradeBit",
    "kubeAPIQPS",
    "maxParallelImagePulls",
    "memoryThrottlingFactor",
    "nodeStatusMaxImages",
    "oomScoreAdj",
    "podPidsLimit",
    "registryPullQPS",
    "resolvConf",
    "userNamespaces.idsPerPod",
];

const CGROUPS: &str =
    "leave it out: the agent does not move other programs' processes; use systemd slices";
const NO_PROFILES: &str = "the agent does not serve Go profiles";
const NO_CHAINS: &str = "the runtime manages its own network rules";

const fn used(name: &'static str, default: &'static str) -> Field {
    Field { name, default, effect: Used, actual: "" }
}

/// A field whose default describes the agent; any other value is rejected.
const fn only(name: &'static str, default: &'static str, remedy: &'static str) -> Field {
    Field { name, default, effect: Refused(remedy), actual: default }
}

const fn unused(
    name: &'static str,
    default: &'static str,
    why: &'static str,
    actual: &'static str,
) -> Field {
    Field { name, default, effect: Unused(why), actual }
}

/// All fields, in the order of Kubernetes' types.
pub const FIELDS: [Field; 134] = [
    used("enableServer", "true"),
    used("staticPodPath", ""),
    used("podLogsDir", "\"/var/log/pods\""),
    used("syncFrequency", "\"1m0s\""),
    used("fileCheckFrequency", "\"20s\""),
    used("httpCheckFrequency", "\"20s\""),
    used("staticPodURL", ""),
    used("staticPodURLHeader", ""),
    used("address", "\"0.0.0.0\""),
    used("port", "10250"),
    used("readOnlyPort", ""),
    used("tlsCertFile", ""),
    used("tlsPrivateKeyFile", ""),
    used("tlsCipherSuites", ""),
    only("tlsCurvePreferences", "", "leave it out: the server supports X25519, P-256 and P-384"),
    used("tlsMinVersion", ""),
    used("rotateCertificates", ""),
    used("serverTLSBootstrap", ""),
    used("authentication.x509.clientCAFile", ""),
    used("authentication.webhook.enabled", "true"),
    used("authentication.webhook.cacheTTL", "\"2m0s\""),
    used("authentication.anonymous.enabled", "false"),
    used("authorization.mode", "\"Webhook\""),
    used("authorization.webhook.cacheAuthorizedTTL", "\"5m0s\""),
    used("authorization.webhook.cacheUnauthorizedTTL", "\"30s\""),
    used("registryPullQPS", "5"),
    used("registryBurst", "10"),
    used("imagePullCredentialsVerificationPolicy", ""),
    used("preloadedImagesVerificationAllowlist", ""),
    used("eventRecordQPS", "50"),
    used("eventBurst", "100"),
    used("enableDebuggingHandlers", "true"),
    unused("enableContentionProfiling", "", NO_PROFILES, ""),
    used("healthzPort", "10248"),
    used("healthzBindAddress", "\"127.0.0.1\""),
    used("oomScoreAdj", "-999"),
    used("clusterDomain", ""),
    used("clusterDNS", ""),
    unused(
        "streamingConnectionIdleTimeout",
        "\"4h0m0s\"",
        "the runtime's stream server has its own timeout",
        "",
    ),
    used("nodeStatusUpdateFrequency", "\"10s\""),
    used("nodeStatusReportFrequency", ""),
    used("nodeLeaseDurationSeconds", "40"),
    used("imageMinimumGCAge", "\"2m0s\""),
    used("imageMaximumGCAge", ""),
    used("imageGCHighThresholdPercent", "85"),
    used("imageGCLowThresholdPercent", "80"),
    unused(
        "volumeStatsAggPeriod",
        "\"1m0s\"",
        "the agent measures volumes on request, at most once a minute",
        "\"1m0s\"",
    ),
    used("kubeletCgroups", ""),
    only("systemCgroups", "", CGROUPS),
    used("cgroupRoot", ""),
    used("cgroupsPerQOS", "true"),
    used("cgroupDriver", "\"cgroupfs\""),
    used("cpuManagerPolicy", "\"none\""),
    used("singleProcessOOMKill", ""),
    used("cpuManagerPolicyOptions", ""),
    used("cpuManagerReconcilePeriod", "\"10s\""),
    used("memoryManagerPolicy", "\"None\""),
    used("topologyManagerPolicy", "\"none\""),
    used("topologyManagerScope", "\"container\""),
    used("topologyManagerPolicyOptions", ""),
    used("qosReserved", ""),
    used("runtimeRequestTimeout", "\"2m0s\""),
    unused("hairpinMode", "\"promiscuous-bridge\"", "the runtime configures the pod network", ""),
    used("maxPods", "110"),
    only(
        "podCIDR",
        "",
        "leave it out, and configure the runtime's network: `crib runtime --pod-cidr`, or CNI",
    ),
    used("podPidsLimit", "-1"),
    used("resolvConf", "\"/etc/resolv.conf\""),
    only("runOnce", "", "leave it out, and use `crib run`, which exits when its pods have ended"),
    used("cpuCFSQuota", "true"),
    used("cpuCFSQuotaPeriod", "\"100ms\""),
    used("nodeStatusMaxImages", "50"),
    used("maxOpenFiles", "1000000"),
    unused(
        "contentType",
        "\"application/vnd.kubernetes.protobuf\"",
        "the agent sends JSON",
        "\"application/json\"",
    ),
    used("kubeAPIQPS", "50"),
    used("kubeAPIBurst", "100"),
    used("serializeImagePulls", ""),
    used("maxParallelImagePulls", ""),
    used("evictionHard", ""),
    used("evictionSoft", ""),
    used("evictionSoftGracePeriod", ""),
    used("evictionPressureTransitionPeriod", "\"5m0s\""),
    used("evictionMaxPodGracePeriod", ""),
    used("evictionMinimumReclaim", ""),
    used("mergeDefaultEvictionSettings", "false"),
    used("podsPerCore", ""),
    only(
        "enableControllerAttachDetach",
        "true",
        "leave it out: the agent does not attach volumes itself",
    ),
    used("protectKernelDefaults", ""),
    unused("makeIPTablesUtilChains", "true", NO_CHAINS, "false"),
    unused("iptablesMasqueradeBit", "14", NO_CHAINS, ""),
    unused("iptablesDropBit", "15", NO_CHAINS, ""),
    used("featureGates", ""),
    used("failSwapOn", "true"),
    used("memorySwap.swapBehavior", ""),
    used("containerLogMaxSize", "\"10Mi\""),
    used("containerLogMaxFiles", "5"),
    unused("containerLogMaxWorkers", "1", "the agent rotates one log at a time", "1"),
    used("containerLogMonitorInterval", "\"10s\""),
    unused(
        "configMapAndSecretChangeDetectionStrategy",
        "\"Watch\"",
        "the agent always watches objects",
        "\"Watch\"",
    ),
    used("systemReserved", ""),
    used("kubeReserved", ""),
    used("reservedSystemCPUs", ""),
    unused("showHiddenMetricsForVersion", "", "the agent does not hide any metrics", ""),
    used("systemReservedCgroup", ""),
    used("kubeReservedCgroup", ""),
    used("enforceNodeAllocatable", "[\"pods\"]"),
    used("allowedUnsafeSysctls", ""),
    unused(
        "volumePluginDir",
        "\"/usr/libexec/kubernetes/kubelet-plugins/volume/exec/\"",
        "FlexVolume plugins are not supported",
        "",
    ),
    used("providerID", ""),
    used("kernelMemcgNotification", ""),
    used("logging.format", "\"text\""),
    unused("logging.flushFrequency", "\"5s\"", "the agent writes each line immediately", ""),
    used("logging.verbosity", ""),
    unused("logging.vmodule", "", "the agent does not log with klog", ""),
    unused("logging.options", "", "the agent logs to standard error only", ""),
    used("enableSystemLogHandler", "true"),
    only(
        "enableSystemLogQuery",
        "",
        "leave it out: /logs/ serves files, but does not support queries",
    ),
    used("shutdownGracePeriod", ""),
    used("shutdownGracePeriodCriticalPods", ""),
    used("shutdownGracePeriodByPodPriority", ""),
    used("crashLoopBackOff.maxContainerRestartPeriod", ""),
    used("reservedMemory", ""),
    unused("enableProfilingHandler", "true", NO_PROFILES, "false"),
    unused(
        "enableDebugFlagsHandler",
        "true",
        "the log level cannot be changed while the agent runs",
        "false",
    ),
    used("seccompDefault", "false"),
    used("memoryThrottlingFactor", "0.9"),
    used("memoryReservationPolicy", "\"None\""),
    used("registerWithTaints", ""),
    used("registerNode", "true"),
    only("tracing", "", "leave it out: the agent does not export traces"),
    only(
        "localStorageCapacityIsolation",
        "true",
        "leave it out: the agent always enforces ephemeral-storage limits",
    ),
    used("containerRuntimeEndpoint", "\"unix:///run/containerd/containerd.sock\""),
    used("imageServiceEndpoint", ""),
    used("failCgroupV1", "true"),
    only("userNamespaces.idsPerPod", "65536", "leave it out: each pod gets 65536 ids"),
];

/// The field of this name.
#[must_use]
pub fn field(name: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.name == name)
}
