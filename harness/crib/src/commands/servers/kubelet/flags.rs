//! ◆ The flags of a kubelet, and how `crib kubelet` handles each. Pure.
//!
//! Source: Kubernetes 1.36, cmd/kubelet/app/options/options.go, globalflags_linux.go.

use agent::local_node::kubelet_config::{self, Effect};
use clap::{Arg, ArgAction};

use Kind::{
    Bool, Duration, Gates, Headers, Int, Ip, Less, List, Map, Memory, Pair, Rules, Taints, Text,
};

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A Go bool; a flag without a value is true.
    Bool,
    Int,
    Text,
    Ip,
    Duration,
    /// A comma-separated list; a repeated flag adds to it.
    List,
    /// Comma-separated `KEY=VALUE`.
    Map,
    /// One `KEY=VALUE`.
    Pair,
    /// Comma-separated `KEY<VALUE`.
    Less,
    /// Comma-separated `NAME:VALUE`.
    Headers,
    /// Comma-separated `GATE=BOOL`.
    Gates,
    /// Comma-separated `KEY=VALUE:EFFECT`.
    Taints,
    /// `NODE:TYPE=QUANTITY`.
    Memory,
    /// Comma-separated `PATTERN=LEVEL`.
    Rules,
}

/// How a flag is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// It sets this configuration field.
    Field(&'static str),
    /// It is not a configuration field; its help.
    Flag(&'static str),
    /// It has no effect; the reason.
    Unused(&'static str),
    /// A value is rejected; the remedy.
    Refused(&'static str),
}

/// A flag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) target: Target,
    heading: &'static str,
}

/// A group of flags in the help.
struct Group {
    heading: &'static str,
    flags: &'static [(&'static str, Kind, Target)],
}

const fn field(name: &'static str, kind: Kind, of: &'static str) -> (&'static str, Kind, Target) {
    (name, kind, Target::Field(of))
}

const fn own(name: &'static str, kind: Kind, help: &'static str) -> (&'static str, Kind, Target) {
    (name, kind, Target::Flag(help))
}

const CADVISOR: &str = "crib has no cAdvisor";

const fn cadvisor(name: &'static str, kind: Kind) -> (&'static str, Kind, Target) {
    (name, kind, Target::Unused(CADVISOR))
}

const GROUPS: [Group; 11] = [
    Group {
        heading: "Files",
        flags: &[
            own("config", Text, "KubeletConfiguration file; flags take precedence over the file"),
            own(
                "config-dir",
                Text,
                "Directory of *.conf drop-in files, each a partial KubeletConfiguration, that are merged into --config in lexical order",
            ),
            own("root-dir", Text, "Directory for volumes and state [default: /var/lib/kubelet]"),
            own("cert-dir", Text, "Directory of certificates [default: pki in --root-dir]"),
            own(
                "lock-file",
                Text,
                "Lock file that the agent acquires before it starts; the agent waits until the lock is free",
            ),
            own(
                "exit-on-lock-contention",
                Bool,
                "Exit when another process opens the file of --lock-file",
            ),
            field("pod-manifest-path", Text, "staticPodPath"),
            field("file-check-frequency", Duration, "fileCheckFrequency"),
            field("manifest-url", Text, "staticPodURL"),
            field("manifest-url-header", Headers, "staticPodURLHeader"),
            field("http-check-frequency", Duration, "httpCheckFrequency"),
        ],
    },
    Group {
        heading: "API server",
        flags: &[
            own(
                "kubeconfig",
                Text,
                "Kubeconfig of the API server; without it, the agent runs standalone",
            ),
            own(
                "bootstrap-kubeconfig",
                Text,
                "Kubeconfig for TLS bootstrapping, used to request a client certificate if --kubeconfig is missing or has no valid certificate",
            ),
            field("rotate-certificates", Bool, "rotateCertificates"),
            field("kube-api-qps", Int, "kubeAPIQPS"),
            field("kube-api-burst", Int, "kubeAPIBurst"),
            field("kube-api-content-type", Text, "contentType"),
            field("event-qps", Int, "eventRecordQPS"),
            field("event-burst", Int, "eventBurst"),
        ],
    },
    Group {
        heading: "Node",
        flags: &[
            own("hostname-override", Text, "Name of the node [default: the host name]"),
            own(
                "node-ip",
                Text,
                "IP address of the node, or one per IP family, separated by a comma",
            ),
            own(
                "node-labels",
                Map,
                "Labels that the agent adds when it registers the node: KEY=VALUE pairs, separated by commas",
            ),
            own(
                "cloud-provider",
                Text,
                "external: a cloud controller manager sets the node's addresses; empty: no cloud provider",
            ),
            field("register-node", Bool, "registerNode"),
            field("register-with-taints", Taints, "registerWithTaints"),
            field("provider-id", Text, "providerID"),
            field("node-status-update-frequency", Duration, "nodeStatusUpdateFrequency"),
            field("node-status-max-images", Int, "nodeStatusMaxImages"),
            field("feature-gates", Gates, "featureGates"),
            field("fail-swap-on", Bool, "failSwapOn"),
            field("fail-cgroupv1", Bool, "failCgroupV1"),
            field("protect-kernel-defaults", Bool, "protectKernelDefaults"),
            field("oom-score-adj", Int, "oomScoreAdj"),
            field("max-open-files", Int, "maxOpenFiles"),
        ],
    },
    Group {
        heading: "Runtime and network",
        flags: &[
            field("container-runtime-endpoint", Text, "containerRuntimeEndpoint"),
            field("image-service-endpoint", Text, "imageServiceEndpoint"),
            field("runtime-request-timeout", Duration, "runtimeRequestTimeout"),
            (
                "runtime-cgroups",
                Text,
                Target::Unused("the agent does not collect statistics of the runtime's cgroup"),
            ),
            field("hairpin-mode", Text, "hairpinMode"),
            field("pod-cidr", Text, "podCIDR"),
            field("make-iptables-util-chains", Bool, "makeIPTablesUtilChains"),
            field("cluster-dns", List, "clusterDNS"),
            field("cluster-domain", Text, "clusterDomain"),
            field("resolv-conf", Text, "resolvConf"),
        ],
    },
    Group {
        heading: "Node server",
        flags: &[
            field("enable-server", Bool, "enableServer"),
            field("address", Ip, "address"),
            field("port", Int, "port"),
            field("read-only-port", Int, "readOnlyPort"),
            field("healthz-port", Int, "healthzPort"),
            field("healthz-bind-address", Ip, "healthzBindAddress"),
            field("anonymous-auth", Bool, "authentication.anonymous.enabled"),
            field("authentication-token-webhook", Bool, "authentication.webhook.enabled"),
            field(
                "authentication-token-webhook-cache-ttl",
                Duration,
                "authentication.webhook.cacheTTL",
            ),
            field("client-ca-file", Text, "authentication.x509.clientCAFile"),
            field("authorization-mode", Text, "authorization.mode"),
            field(
                "authorization-webhook-cache-authorized-ttl",
                Duration,
                "authorization.webhook.cacheAuthorizedTTL",
            ),
            field(
                "authorization-webhook-cache-unauthorized-ttl",
                Duration,
                "authorization.webhook.cacheUnauthorizedTTL",
            ),
            field("tls-cert-file", Text, "tlsCertFile"),
            field("tls-private-key-file", Text, "tlsPrivateKeyFile"),
            field("tls-cipher-suites", List, "tlsCipherSuites"),
            field("tls-min-version", Text, "tlsMinVersion"),
            field("rotate-server-certificates", Bool, "serverTLSBootstrap"),
            field("enable-debugging-handlers", Bool, "enableDebuggingHandlers"),
            field("contention-profiling", Bool, "enableContentionProfiling"),
            field("streaming-connection-idle-timeout", Duration, "streamingConnectionIdleTimeout"),
        ],
    },
    Group {
        heading: "Images",
        flags: &[
            own(
                "image-credential-provider-config",
                Text,
                "CredentialProviderConfig file, or a directory of such files",
            ),
            own(
                "image-credential-provider-bin-dir",
                Text,
                "Directory of the credential provider binaries",
            ),
            field("serialize-image-pulls", Bool, "serializeImagePulls"),
            field("registry-qps", Int, "registryPullQPS"),
            field("registry-burst", Int, "registryBurst"),
            field("image-gc-high-threshold", Int, "imageGCHighThresholdPercent"),
            field("image-gc-low-threshold", Int, "imageGCLowThresholdPercent"),
            field("minimum-image-ttl-duration", Duration, "imageMinimumGCAge"),
        ],
    },
    Group {
        heading: "Pods",
        flags: &[
            field("max-pods", Int, "maxPods"),
            field("pods-per-core", Int, "podsPerCore"),
            field("pod-max-pids", Int, "podPidsLimit"),
            field("sync-frequency", Duration, "syncFrequency"),
            field("seccomp-default", Bool, "seccompDefault"),
            field("allowed-unsafe-sysctls", List, "allowedUnsafeSysctls"),
            field("container-log-max-size", Text, "containerLogMaxSize"),
            field("container-log-max-files", Int, "containerLogMaxFiles"),
            own(
                "maximum-dead-containers-per-container",
                Int,
                "Maximum number of ended instances to keep of each container; negative: no limit [default: 1]",
            ),
            own(
                "maximum-dead-containers",
                Int,
                "Maximum number of ended containers to keep on the node; negative: no limit [default: -1]",
            ),
            own(
                "minimum-container-ttl-duration",
                Duration,
                "Minimum time between the creation and the removal of an ended container [default: 0s]",
            ),
            field("runonce", Bool, "runOnce"),
            field("enable-controller-attach-detach", Bool, "enableControllerAttachDetach"),
            field("volume-plugin-dir", Text, "volumePluginDir"),
            field("volume-stats-agg-period", Duration, "volumeStatsAggPeriod"),
            (
                "experimental-mounter-path",
                Text,
                Target::Refused("leave the flag out: the agent uses no mounter program"),
            ),
        ],
    },
    Group {
        heading: "Cgroups, reservations and managers",
        flags: &[
            field("cgroup-driver", Text, "cgroupDriver"),
            field("cgroup-root", Text, "cgroupRoot"),
            field("cgroups-per-qos", Bool, "cgroupsPerQOS"),
            field("kubelet-cgroups", Text, "kubeletCgroups"),
            field("system-cgroups", Text, "systemCgroups"),
            field("cpu-cfs-quota", Bool, "cpuCFSQuota"),
            field("cpu-cfs-quota-period", Duration, "cpuCFSQuotaPeriod"),
            field("system-reserved", Map, "systemReserved"),
            field("kube-reserved", Map, "kubeReserved"),
            field("reserved-cpus", Text, "reservedSystemCPUs"),
            field("reserved-memory", Memory, "reservedMemory"),
            field("system-reserved-cgroup", Text, "systemReservedCgroup"),
            field("kube-reserved-cgroup", Text, "kubeReservedCgroup"),
            field("enforce-node-allocatable", List, "enforceNodeAllocatable"),
            field("qos-reserved", Map, "qosReserved"),
            field("cpu-manager-policy", Text, "cpuManagerPolicy"),
            field("cpu-manager-policy-options", Pair, "cpuManagerPolicyOptions"),
            field("cpu-manager-reconcile-period", Duration, "cpuManagerReconcilePeriod"),
            field("memory-manager-policy", Text, "memoryManagerPolicy"),
            field("topology-manager-policy", Text, "topologyManagerPolicy"),
            field("topology-manager-policy-options", Map, "topologyManagerPolicyOptions"),
            field("topology-manager-scope", Text, "topologyManagerScope"),
        ],
    },
    Group {
        heading: "Eviction",
        flags: &[
            field("eviction-hard", Less, "evictionHard"),
            field("eviction-soft", Less, "evictionSoft"),
            field("eviction-soft-grace-period", Map, "evictionSoftGracePeriod"),
            field(
                "eviction-pressure-transition-period",
                Duration,
                "evictionPressureTransitionPeriod",
            ),
            field("eviction-max-pod-grace-period", Int, "evictionMaxPodGracePeriod"),
            field("eviction-minimum-reclaim", Map, "evictionMinimumReclaim"),
            field("kernel-memcg-notification", Bool, "kernelMemcgNotification"),
            field("local-storage-capacity-isolation", Bool, "localStorageCapacityIsolation"),
            (
                "experimental-allocatable-ignore-eviction",
                Bool,
                Target::Unused(
                    "the agent always subtracts hard eviction thresholds from the node's allocatable resources",
                ),
            ),
        ],
    },
    Group {
        heading: "Logging",
        flags: &[
            field("v", Int, "logging.verbosity"),
            field("vmodule", Rules, "logging.vmodule"),
            field("logging-format", Text, "logging.format"),
            field("log-flush-frequency", Duration, "logging.flushFrequency"),
            field("log-text-info-buffer-size", Text, "logging.options.text.infoBufferSize"),
            field("log-text-split-stream", Bool, "logging.options.text.splitStream"),
            field("log-json-info-buffer-size", Text, "logging.options.json.infoBufferSize"),
            field("log-json-split-stream", Bool, "logging.options.json.splitStream"),
        ],
    },
    Group {
        heading: "cAdvisor",
        flags: &[
            cadvisor("application-metrics-count-limit", Int),
            cadvisor("boot-id-file", Text),
            cadvisor("container-hints", Text),
            cadvisor("containerd", Text),
            cadvisor("containerd-namespace", Text),
            cadvisor("enable-load-reader", Bool),
            cadvisor("event-storage-age-limit", Text),
            cadvisor("event-storage-event-limit", Text),
            cadvisor("global-housekeeping-interval", Duration),
            cadvisor("housekeeping-interval", Duration),
            cadvisor("log-cadvisor-usage", Bool),
            cadvisor("machine-id-file", Text),
            cadvisor("storage-driver-buffer-duration", Duration),
            cadvisor("storage-driver-db", Text),
            cadvisor("storage-driver-host", Text),
            cadvisor("storage-driver-password", Text),
            cadvisor("storage-driver-secure", Bool),
            cadvisor("storage-driver-table", Text),
            cadvisor("storage-driver-user", Text),
        ],
    },
];

/// All flags except `--version` and `--help`.
pub(super) fn flags() -> impl Iterator<Item = Flag> {
    GROUPS.iter().flat_map(|group| {
        group.flags.iter().map(|(name, kind, target)| Flag {
            name,
            kind: *kind,
            target: *target,
            heading: group.heading,
        })
    })
}

impl Flag {
    /// The clap definition of the flag.
    pub(super) fn arg(self) -> Arg {
        let arg = Arg::new(self.name)
            .long(self.name)
            .action(ArgAction::Append)
            .value_name(self.value_name())
            .help(self.help())
            .help_heading(self.heading)
            .allow_hyphen_values(true);
        let arg = if self.name == "v" { arg.short('v') } else { arg };
        if self.kind == Bool {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true")
        } else {
            arg
        }
    }

    fn value_name(self) -> &'static str {
        match self.kind {
            Bool => "BOOL",
            Int => "N",
            Text => "TEXT",
            Ip => "IP",
            Duration => "DURATION",
            List => "LIST",
            Map | Pair => "KEY=VALUE",
            Less => "SIGNAL<VALUE",
            Headers => "NAME:VALUE",
            Gates => "GATE=BOOL",
            Taints => "KEY=VALUE:EFFECT",
            Memory => "NODE:TYPE=QUANTITY",
            Rules => "PATTERN=LEVEL",
        }
    }

    fn help(self) -> String {
        match self.target {
            Target::Flag(help) => help.to_owned(),
            Target::Unused(why) => format!("No effect: {why}"),
            Target::Refused(remedy) => format!("Not supported; {remedy}"),
            Target::Field(name) => {
                let of_table = name.starts_with("logging.options").then_some("logging.options");
                let field = kubelet_config::field(of_table.unwrap_or(name));
                let note = match field.map(|field| field.effect) {
                    Some(Effect::Unused(why)) => format!("; no effect: {why}"),
                    Some(Effect::Refused(_)) if field.is_some_and(|it| it.default.is_empty()) => {
                        "; not supported".to_owned()
                    }
                    Some(Effect::Refused(_)) => "; only the default is supported".to_owned(),
                    Some(Effect::Used) | None => String::new(),
                };
                let default = field.map(|field| field.default).filter(|text| !text.is_empty());
                let default = default.map(|text| format!(" [default: {}]", text.trim_matches('"')));
                format!("Config field {name}{note}{}", default.unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use compact::Set;

    use super::*;

    /// The number of flags in `kubelet --help`, without --version and --help.
    const OF_KUBELET: usize = 147;

    #[test]
    fn every_flag_is_there_once_and_its_field_exists() {
        let names: Vec<&str> = flags().map(|flag| flag.name).collect();
        assert_eq!(names.len(), OF_KUBELET);
        assert_eq!(names.iter().collect::<Set<_>>().len(), names.len());
        for flag in flags() {
            let Target::Field(name) = flag.target else {
                continue;
            };
            let name = if name.starts_with("logging.options") { "logging.options" } else { name };
            assert!(kubelet_config::field(name).is_some(), "{name}");
        }
    }
}
