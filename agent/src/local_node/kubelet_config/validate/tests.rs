//! A case for each rule: a configuration that is rejected, and the message.
#![allow(clippy::unwrap_used)]

use rstest::rstest;

use crate::local_node::kubelet_config::{Document, check, normalized, parse, with_defaults};

fn document(fields: &str) -> Document {
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    normalized(&parse(&format!("{head}{fields}\n")).unwrap().document).unwrap()
}

fn problem_text(document: &Document) -> String {
    check(document).map_or_else(|problems| problems.to_string(), |_| String::new())
}

#[rstest]
#[case("featureGates: {Nothing: true}", "featureGates.Nothing: Kubernetes 1.36 has no such")]
#[case("featureGates: {NodeSwap: false}", "featureGates.NodeSwap: it is locked to true")]
#[case(
    "featureGates: {GangScheduling: true}",
    "featureGates.GangScheduling: it is enabled, and requires GenericWorkload"
)]
#[case("nodeLeaseDurationSeconds: -1", "nodeLeaseDurationSeconds: -1 is less than 1")]
#[case("systemCgroups: /x", "systemCgroups: it needs cgroupRoot")]
#[case("eventBurst: -1", "eventBurst: -1 is less than 0")]
#[case("eventRecordQPS: -1", "eventRecordQPS: -1 is less than 0")]
#[case("healthzPort: 65536", "healthzPort: 65536 is not between 0 and 65535")]
#[case(
    "cpuCFSQuotaPeriod: 10ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}",
    "cpuCFSQuotaPeriod: it needs featureGates: {CustomCPUCFSQuotaPeriod: true}"
)]
#[case("cpuCFSQuotaPeriod: 2s", "cpuCFSQuotaPeriod: 2s is not between 1ms and 1s")]
#[case("imageGCHighThresholdPercent: 101", "imageGCHighThresholdPercent: 101 is not between")]
#[case("imageGCLowThresholdPercent: -1", "imageGCLowThresholdPercent: -1 is not between 0")]
#[case("imageGCLowThresholdPercent: 85", "imageGCLowThresholdPercent: 85 is not less than")]
#[case("imageMinimumGCAge: -1ns", "imageMinimumGCAge: -1ns is less than zero")]
#[case("imageMaximumGCAge: -1ns", "imageMaximumGCAge: -1ns is less than zero")]
#[case("imageMaximumGCAge: 1m", "imageMaximumGCAge: 1m0s is not more than imageMinimumGCAge, 2m0s")]
#[case("iptablesDropBit: 32", "iptablesDropBit: 32 is not between 0 and 31")]
#[case("iptablesMasqueradeBit: -1", "iptablesMasqueradeBit: -1 is not between 0 and 31")]
#[case("kubeAPIBurst: -1", "kubeAPIBurst: -1 is less than 0")]
#[case("kubeAPIQPS: -1", "kubeAPIQPS: -1 is less than 0")]
#[case("nodeStatusMaxImages: -2", "nodeStatusMaxImages: -2 is less than -1")]
#[case("maxOpenFiles: -1", "maxOpenFiles: -1 is less than 0")]
#[case("maxPods: -1", "maxPods: -1 is less than 0")]
#[case("oomScoreAdj: -1001", "oomScoreAdj: -1001 is not between -1000 and 1000")]
#[case("podsPerCore: -1", "podsPerCore: -1 is less than 0")]
#[case("port: 65536", "port: 65536 is not between 1 and 65535")]
#[case("readOnlyPort: 65536", "readOnlyPort: 65536 is not between 0 and 65535")]
#[case("registryBurst: -1", "registryBurst: -1 is less than 0")]
#[case("registryPullQPS: -1", "registryPullQPS: -1 is less than 0")]
#[case("maxParallelImagePulls: 0", "maxParallelImagePulls: 0 is less than 1")]
#[case(
    "maxParallelImagePulls: 2\nserializeImagePulls: true",
    "maxParallelImagePulls: more than 1 needs serializeImagePulls: false"
)]
#[case(
    "serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}",
    "serverTLSBootstrap: it needs featureGates"
)]
#[case("runOnce: true", "runOnce: crib's agent does not support this")]
#[case("registerWithTaints: [{key: 'a b', effect: NoExecute}]", "registerWithTaints: key \"a b\"")]
#[case("registerWithTaints: [{key: a, value: 'b c', effect: NoExecute}]", "a: value \"b c\"")]
#[case("registerWithTaints: [{key: a, effect: Never}]", "a: \"Never\" is not one of NoSchedule")]
#[case(
    "registerWithTaints: [{key: a, effect: NoExecute, timeAdded: '2026-01-01T00:00:00Z'}]",
    "registerWithTaints: a: timeAdded cannot be set"
)]
#[case("cpuManagerPolicy: dynamic", "cpuManagerPolicy: \"dynamic\" is not one of none, static")]
#[case(
    "memoryManagerPolicy: BestEffort",
    "memoryManagerPolicy: \"BestEffort\" is not one of None, S"
)]
#[case("topologyManagerPolicy: some", "topologyManagerPolicy: \"some\" is not one of none, best")]
#[case("topologyManagerScope: node", "topologyManagerScope: \"node\" is not one of container, pod")]
#[case(
    "shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s",
    "shutdownGracePeriodCriticalPods: 20s is more than shutdownGracePeriod, 10s"
)]
#[case("shutdownGracePeriod: 1ms", "shutdownGracePeriod: 1ms is neither 0 nor at least 1s")]
#[case("shutdownGracePeriod: -1s", "shutdownGracePeriod: -1s is neither 0 nor at least 1s")]
#[case(
    "shutdownGracePeriod: 9s\nshutdownGracePeriodCriticalPods: 1ms",
    "shutdownGracePeriodCriticalPods: 1ms is neither 0"
)]
#[case(
    "shutdownGracePeriod: 9s\nfeatureGates: {GracefulNodeShutdown: false}",
    "shutdownGracePeriod: it needs featureGates: {GracefulNodeShutdown: true}"
)]
#[case(
    "shutdownGracePeriod: 9s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 2}]",
    "shutdownGracePeriodByPodPriority: cannot be set together with shutdownGracePeriod"
)]
#[case(
    "shutdownGracePeriodByPodPriority: [{priority: 1}]\nfeatureGates: {GracefulNodeShutdownBasedOnPodPriority: false}",
    "shutdownGracePeriodByPodPriority: it needs featureGates"
)]
#[case(
    "memorySwap: {swapBehavior: Unlimited}",
    "memorySwap.swapBehavior: \"Unlimited\" is not one of NoSwap, LimitedSwap"
)]
#[case(
    "crashLoopBackOff: {maxContainerRestartPeriod: 301s}",
    "crashLoopBackOff.maxContainerRestartPeriod: 5m1s is not between 1s and 300s"
)]
#[case(
    "crashLoopBackOff: {maxContainerRestartPeriod: 5s}\nfeatureGates: {KubeletCrashLoopBackOffMax: false}",
    "crashLoopBackOff.maxContainerRestartPeriod: it needs featureGates"
)]
#[case(
    "enforceNodeAllocatable: [system-reserved, system-reserved-compressible]\nsystemReservedCgroup: /s",
    "system-reserved and system-reserved-compressible are mutually exclusive"
)]
#[case(
    "enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\nkubeReservedCgroup: /s",
    "kube-reserved and kube-reserved-compressible are mutually exclusive"
)]
#[case("enforceNodeAllocatable: [pods, pods]", "enforceNodeAllocatable: pods is given twice")]
#[case("enforceNodeAllocatable: [system-reserved]", "system-reserved needs systemReservedCgroup")]
#[case("enforceNodeAllocatable: [kube-reserved]", "kube-reserved needs kubeReservedCgroup")]
#[case(
    "qosReserved: {cpu: 50%}",
    "qosReserved: \"cpu\" cannot be reserved: only memory can be reserved"
)]
#[case("qosReserved: {memory: '50'}", "qosReserved: \"50\" is not a percentage from 0% to 100%")]
#[case("qosReserved: {memory: 101%}", "qosReserved: \"101%\" is not a percentage")]
#[case(
    "enforceNodeAllocatable: [none, pods]",
    "enforceNodeAllocatable: none must be the only value"
)]
#[case("enforceNodeAllocatable: [all]", "enforceNodeAllocatable: \"all\" is not one of pods")]
#[case("cgroupsPerQOS: false", "enforceNodeAllocatable: pods needs cgroupsPerQOS: true")]
#[case("hairpinMode: none-at-all", "hairpinMode: \"none-at-all\" is not one of hairpin-veth")]
#[case(
    "imagePullCredentialsVerificationPolicy: Sometimes",
    "imagePullCredentialsVerificationPolicy: \"Sometimes\" is not one of NeverVerify"
)]
#[case(
    "preloadedImagesVerificationAllowlist: [a.b/c]",
    "preloadedImagesVerificationAllowlist: it needs imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages"
)]
#[case(
    "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: ['a*b']",
    "preloadedImagesVerificationAllowlist: \"a*b\" is neither an image nor a prefix"
)]
#[case(
    "imagePullCredentialsVerificationPolicy: NeverVerify\nfeatureGates: {KubeletEnsureSecretPulledImages: false}",
    "imagePullCredentialsVerificationPolicy: it needs featureGates"
)]
#[case(
    "preloadedImagesVerificationAllowlist: [a.b/c]\nfeatureGates: {KubeletEnsureSecretPulledImages: false}",
    "preloadedImagesVerificationAllowlist: it needs featureGates"
)]
#[case(
    "reservedSystemCPUs: '0'\nsystemReservedCgroup: /s",
    "reservedSystemCPUs: cannot be set together with systemReservedCgroup"
)]
#[case("reservedSystemCPUs: all", "reservedSystemCPUs: \"all\" is not a list of processors")]
#[case(
    "reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]",
    "reservedMemory: NUMA node 0: cpu: expected memory or hugepages-<size>"
)]
#[case("reservedMemory: [{numaNode: 0, limits: {memory: 0}}]", "node 0: memory: must not be zero")]
#[case(
    "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 0, limits: {memory: 1Gi}}]",
    "reservedMemory: NUMA node 0: memory: it is reserved twice"
)]
#[case("userNamespaces: {idsPerPod: 1}", "userNamespaces.idsPerPod: 1 is not between 65536")]
#[case("userNamespaces: {idsPerPod: 65537}", "idsPerPod: 65537 is not a multiple of 65536")]
#[case("userNamespaces: {idsPerPod: 4294967296}", "idsPerPod: 4294967296 is not between 65536")]
#[case(
    "showHiddenMetricsForVersion: '1.34'",
    "showHiddenMetricsForVersion: must be 1.35 or not set"
)]
#[case("logging: {format: xml}", "logging.format: \"xml\" is not one of text, json")]
#[case(
    "logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}",
    "logging.format: it needs featureGates: {LoggingBetaOptions: true}"
)]
#[case("logging: {flushFrequency: -1s}", "logging.flushFrequency: it is not greater than zero")]
#[case("logging: {verbosity: 4294967295}", "logging.verbosity: it is more than 2147483647")]
#[case(
    "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
    "logging.vmodule: it needs logging.format: text"
)]
#[case(
    "logging: {vmodule: [{filePattern: 'a=b', verbosity: 1}]}",
    "logging.vmodule: filePattern \"a=b\" is empty, or has an equal sign"
)]
#[case("logging: {options: {json: {splitStream: true}}}", "logging.options.json: it needs feature")]
#[case(
    "logging: {options: {text: {infoBufferSize: 1Ki}}}",
    "logging.options.text: it needs featureGates"
)]
#[case(
    "tracing: {samplingRatePerMillion: -1}",
    "tracing.samplingRatePerMillion: -1 is not between"
)]
#[case("tracing: {endpoint: 'http://a'}", "tracing.endpoint: \"http://a\" has neither dns, unix")]
#[case("memoryThrottlingFactor: 1.1", "memoryThrottlingFactor: 1.1 is not greater than 0")]
#[case("memoryThrottlingFactor: 0", "memoryThrottlingFactor: 0 is not greater than 0")]
#[case(
    "memoryReservationPolicy: TieredReservation",
    "memoryReservationPolicy: it needs featureGates: {MemoryQoS: true}"
)]
#[case(
    "memoryReservationPolicy: All",
    "memoryReservationPolicy: \"All\" is not one of None, Tiered"
)]
#[case(
    "enableSystemLogQuery: true\nenableSystemLogHandler: false",
    "enableSystemLogQuery: it needs enableSystemLogHandler: true"
)]
#[case("containerLogMaxWorkers: 0", "containerLogMaxWorkers: 0 is less than 1")]
#[case("containerLogMonitorInterval: 2s", "containerLogMonitorInterval: 2s is less than 3s")]
#[case("containerLogMaxFiles: 1", "containerLogMaxFiles: 1 is less than 2")]
#[case("containerLogMaxSize: big", "containerLogMaxSize: \"big\" is not a quantity")]
#[case("podLogsDir: ./test", "podLogsDir: \"./test\" is not an absolute path")]
#[case("podLogsDir: /path/../", "podLogsDir: \"/path/../\" has '.', '..', a double or a trailing")]
#[case("podLogsDir: /é", "podLogsDir: \"/é\" contains non-ASCII characters")]
#[case("syncFrequency: -1s", "syncFrequency: -1s is less than zero")]
#[case("address: here", "address: \"here\" is not an IP address")]
#[case("healthzBindAddress: here", "healthzBindAddress: \"here\" is not an IP address")]
#[case("authorization: {mode: RBAC}", "authorization.mode: \"RBAC\" is not one of Webhook")]
#[case("tlsMinVersion: VersionTLS11", "tlsMinVersion: \"VersionTLS11\" is not one of")]
#[case(
    "tlsCipherSuites: [TLS_RSA_WITH_AES_128_GCM_SHA256]",
    "tlsCipherSuites: the server does not support TLS_RSA_WITH_AES_128_GCM_SHA256: leave it out"
)]
#[case("tlsCertFile: /a", "tlsCertFile: tlsCertFile and tlsPrivateKeyFile must be set together")]
#[case("cgroupDriver: runit", "cgroupDriver: \"runit\" is not one of cgroupfs, systemd")]
#[case("systemReserved: {gpu: '1'}", "systemReserved: cannot reserve \"gpu\"")]
#[case("kubeReserved: {cpu: lots}", "kubeReserved: cpu: \"lots\" is not a quantity")]
#[case("kubeReserved: {cpu: '-1'}", "kubeReserved: cpu: -1 is less than zero")]
fn rule_refuses(#[case] fields: &str, #[case] expected: &str) {
    let problem_text = problem_text(&document(fields));
    assert!(problem_text.contains(expected), "{problem_text}");
}

/// Values that only flags can set, because an empty string in a file stands for the default.
#[rstest]
#[case("containerRuntimeEndpoint", "containerRuntimeEndpoint: it is empty")]
#[case("podLogsDir", "podLogsDir: it is empty")]
#[case("port", "port: 0 is not between 1 and 65535")]
fn rule_refuses_flag(#[case] field: &str, #[case] expected: &str) {
    let mut document = with_defaults(&Document::new());
    let zero = if field == "port" { 0.into() } else { "".into() };
    document.insert(field.to_owned(), zero);
    let problem_text = problem_text(&document);
    assert!(problem_text.contains(expected), "{problem_text}");
}

#[test]
fn all_problems_are_found() {
    let problem_text = problem_text(&document("maxPods: -1\nport: -1\nrunOnce: true"));
    for field in ["maxPods", "port", "runOnce"] {
        assert!(problem_text.contains(&format!("{field}: ")), "{problem_text}");
    }
}
