//! ◆ Feature gates of Kubernetes 1.36, as defined by a kubelet. Pure.
//!
//! Source: Kubernetes 1.36, pkg/features/kube_features.go and those of k8s.io/apiserver, apiextensions-apiserver, client-go and
//! component-base.

use compact::Map;

use super::FieldProblem;

/// The stage of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    /// Generally available.
    Ga,
    /// To be removed.
    Deprecated,
}

impl Stage {
    /// The stage as shown in metrics.
    fn as_str(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// A gate and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateState {
    /// Its name.
    pub name: &'static str,
    /// `ALPHA`, `BETA`, empty (GA) or `DEPRECATED`.
    pub stage: &'static str,
    /// Whether the feature is on.
    pub enabled: bool,
}

/// Gates that have the same stage and default.
struct Group {
    stage: Stage,
    default: bool,
    /// Whether no other value is allowed.
    locked: bool,
    names: &'static str,
}

const GROUPS: [Group; 9] = [
    Group {
        stage: Stage::Alpha,
        default: false,
        locked: false,
        names: "APIServingWithRoutine AllowUnsafeMalformedObjectDeletion CBORServingAndStorage CPUManagerPolicyAlphaOptions \
            CRIListStreaming CSIVolumeHealth ClientsAllowCBOR ClientsPreferCBOR \
            CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook ContainerStopSignals \
            ControllerManagerReleaseLeaderElectionLockOnExit CrossNamespaceVolumeDataSource DRAListTypeAttributes \
            DRANodeAllocatableResources DRAResourcePoolStatus DRAWorkloadResourceClaims EventedPLEG GangScheduling \
            GenericWorkload HPAScaleToZero ImageVolumeWithDigest InPlacePodVerticalScalingExclusiveCPUs \
            InPlacePodVerticalScalingExclusiveMemory KubeletInUserNamespace LoggingAlphaOptions \
            ManifestBasedAdmissionControlConfig MemoryQoS MutablePVNodeAffinity NativeHistograms \
            PersistentVolumeClaimUnusedSinceTime PodAndContainerStatsFromCRI PodLevelResourceManagers \
            PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay RuntimeClassInImageCriApi \
            ShardedListAndWatch StorageCapacityScoring StorageVersionAPI TaintTolerationComparisonOperators \
            TopologyAwareWorkloadScheduling TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport \
            VolumeLimitScaling WindowsCPUAndMemoryAffinity WorkloadAwarePreemption WorkloadWithJob",
    },
    Group {
        stage: Stage::Beta,
        default: false,
        locked: false,
        names: "ClusterTrustBundle ClusterTrustBundleProjection ConcurrentWatchObjectDecode CoordinatedLeaderElection \
            DRADeviceTaintRules LocalStorageCapacityIsolationFSQuotaMonitoring MaxUnavailableStatefulSet \
            PodCertificateRequest SELinuxMount SchedulerAsyncAPICalls StorageVersionMigrator",
    },
    Group {
        stage: Stage::Beta,
        default: true,
        locked: false,
        names: "APIResponseCompression APIServerIdentity AllowParsingUserUIDFromCertAuth AtomicFIFO \
            AuthorizePodWebsocketUpgradeCreatePermission CPUManagerPolicyBetaOptions CRDObservedGenerationTracking \
            ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowTLSCacheGC ComponentFlagz \
            ComponentStatusz ConstrainedImpersonation ContainerCheckpoint ContainerRestartRules ContextualLogging \
            DRAConsumableCapacity DRADeviceBindingConditions DRADeviceTaints DRAExtendedResource DRAPartitionableDevices \
            DRAResourceClaimDeviceStatus DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout \
            DeclarativeValidationBeta DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency EnvFiles \
            ExtendWebSocketsToKubelet GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority HPAConfigurableTolerance \
            HostnameOverride InOrderInformersBatchProcess InPlacePodLevelResourcesVerticalScaling \
            InPlacePodVerticalScalingInitContainers KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages \
            KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders ListFromCacheSnapshot \
            LoggingBetaOptions MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge \
            MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs NodeDeclaredFeatures \
            NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching PLEGOnDemandRelist PodDeletionCost \
            PodLevelResources PodReadyToStartContainersCondition PodTopologyLabelsAdmission PortForwardWebsockets \
            PreventStaticPodAPIReferences RelaxedServiceNameValidation ReloadKubeletClientCAFile \
            ReloadKubeletServerCertificateFile RemoteRequestHeaderUID ResourceHealthStatus ResourceHealthStatusMessage \
            RestartAllContainersOnContainerExits RotateKubeletServerCertificate SchedulerAsyncPreemption \
            SchedulerPopFromBackoffQ ServiceAccountNodeAudienceRestriction SizeBasedListCostEstimate \
            StaleControllerConsistencyDaemonSet StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet \
            StaleControllerConsistencyStatefulSet StatefulSetSemanticRevisionComparison StorageVersionHash \
            StrictIPCIDRValidation StructuredAuthenticationConfigurationEgressSelector \
            StructuredAuthenticationConfigurationJWKSMetrics TokenRequestServiceAccountUIDValidation \
            TopologyManagerPolicyBetaOptions TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation \
            UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO WatchCacheInitializationPostStartHook WatchList \
            WatchListClient WindowsGracefulNodeShutdown",
    },
    Group {
        stage: Stage::Deprecated,
        default: false,
        locked: false,
        names: "AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests ChangeContainerStatusOnKubeletRestart \
            DeclarativeValidationTakeover KMSv1 KubeletRegistrationGetOnExistsOnly WindowsHostNetwork",
    },
    Group {
        stage: Stage::Deprecated,
        default: false,
        locked: true,
        names: "AllowOverwriteTerminationGracePeriodSeconds GitRepoVolumeDriver SeparateCacheWatchRPC",
    },
    Group {
        stage: Stage::Deprecated,
        default: true,
        locked: false,
        names: "DisableCPUQuotaWithExclusiveCPUs KubeletPodResourcesListUseActivePods ServiceCIDRStatusFieldWiping \
            StorageNamespaceIndex",
    },
    Group {
        stage: Stage::Deprecated,
        default: true,
        locked: true,
        names: "AggregatedDiscoveryRemoveBetaType DisableNodeKubeProxyVersion",
    },
    Group {
        stage: Stage::Ga,
        default: true,
        locked: false,
        names: "AllowServiceExternalIPs CustomCPUCFSQuotaPeriod DRAPrioritizedList InformerResourceVersion \
            MutatingAdmissionPolicy",
    },
    Group {
        stage: Stage::Ga,
        default: true,
        locked: true,
        names: "APIServerTracing AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AuthorizeNodeWithSelectors \
            AuthorizeWithSelectors BtreeWatchCache CPUManagerPolicyOptions CRDValidationRatcheting \
            CSIServiceAccountTokenSecrets ConsistentListFromCache CustomResourceFieldSelectors DRAAdminAccess \
            DeclarativeValidation DisableAllocatorDualWrite DynamicResourceAllocation ExecProbeTimeout \
            ExternalServiceAccountTokenSigner ImageMaximumGCAge ImageVolume InOrderInformers \
            InPlacePodVerticalScaling JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy JobSuccessPolicy \
            KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesDynamicResources \
            KubeletPodResourcesGet KubeletTracing LogarithmicScaleDown MatchLabelKeysInPodAffinity \
            MultiCIDRServiceAllocator MutableCSINodeAllocatableCount NFTablesProxyMode \
            NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap OrderedNamespaceDeletion \
            PodLifecycleSleepAction PodLifecycleSleepActionAllowZero PodObservedGenerationTracking \
            PodSchedulingReadiness PreferSameTrafficDistribution ProcMountType RecoverVolumeExpansionFailure \
            RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation \
            ResilientWatchCacheInitialization RetryGenerateName SELinuxChangePolicy SELinuxMountReadWriteOncePod \
            SchedulerQueueingHints SeparateTaintEvictionController ServiceAccountTokenJTI \
            ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo \
            SidecarContainers StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf \
            StructuredAuthenticationConfiguration SupplementalGroupsPolicy SystemdWatchdog \
            TopologyManagerPolicyOptions UserNamespacesSupport VolumeAttributesClass WinDSR WinOverlay",
    },
];

/// Gates that require others.
const NEEDS: [(&str, &str); 49] = [
    ("AuthorizeNodeWithSelectors", "AuthorizeWithSelectors"),
    ("ClusterTrustBundleProjection", "ClusterTrustBundle"),
    ("DRAAdminAccess", "DynamicResourceAllocation"),
    ("DRAConsumableCapacity", "DynamicResourceAllocation"),
    ("DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus DynamicResourceAllocation"),
    ("DRADeviceTaintRules", "DRADeviceTaints"),
    ("DRADeviceTaints", "DynamicResourceAllocation"),
    ("DRAExtendedResource", "DynamicResourceAllocation"),
    ("DRAListTypeAttributes", "DynamicResourceAllocation"),
    ("DRANodeAllocatableResources", "DynamicResourceAllocation"),
    ("DRAPartitionableDevices", "DynamicResourceAllocation"),
    ("DRAPrioritizedList", "DynamicResourceAllocation"),
    (
        "DRAResourceClaimGranularStatusAuthorization",
        "DRAResourceClaimDeviceStatus DynamicResourceAllocation",
    ),
    ("DRAResourcePoolStatus", "DynamicResourceAllocation"),
    ("DRASchedulerFilterTimeout", "DynamicResourceAllocation"),
    ("DRAWorkloadResourceClaims", "DynamicResourceAllocation GenericWorkload"),
    ("DeclarativeValidationBeta", "DeclarativeValidation"),
    ("DeclarativeValidationTakeover", "DeclarativeValidation"),
    ("DisableAllocatorDualWrite", "MultiCIDRServiceAllocator"),
    ("ExtendWebSocketsToKubelet", "NodeDeclaredFeatures"),
    ("GangScheduling", "GenericWorkload"),
    ("GracefulNodeShutdownBasedOnPodPriority", "GracefulNodeShutdown"),
    ("ImageVolumeWithDigest", "ImageVolume"),
    (
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScaling NodeDeclaredFeatures PodLevelResources",
    ),
    ("InPlacePodVerticalScalingExclusiveCPUs", "InPlacePodVerticalScaling"),
    ("InPlacePodVerticalScalingExclusiveMemory", "InPlacePodVerticalScaling"),
    ("InPlacePodVerticalScalingInitContainers", "InPlacePodVerticalScaling NodeDeclaredFeatures"),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", "MatchLabelKeysInPodTopologySpread"),
    ("PodCertificateRequest", "AuthorizeNodeWithSelectors"),
    ("PodLevelResourceManagers", "PodLevelResources"),
    ("PodLifecycleSleepActionAllowZero", "PodLifecycleSleepAction"),
    ("ProcMountType", "UserNamespacesSupport"),
    ("ResourceHealthStatus", "DynamicResourceAllocation"),
    ("ResourceHealthStatusMessage", "ResourceHealthStatus"),
    ("RestartAllContainersOnContainerExits", "ContainerRestartRules NodeDeclaredFeatures"),
    ("ServiceAccountTokenNodeBinding", "ServiceAccountTokenNodeBindingValidation"),
    ("StaleControllerConsistencyDaemonSet", "AtomicFIFO"),
    ("StaleControllerConsistencyJob", "AtomicFIFO"),
    ("StaleControllerConsistencyReplicaSet", "AtomicFIFO"),
    ("StaleControllerConsistencyStatefulSet", "AtomicFIFO"),
    ("StorageVersionAPI", "APIServerIdentity"),
    (
        "StructuredAuthenticationConfigurationEgressSelector",
        "StructuredAuthenticationConfiguration",
    ),
    ("StructuredAuthenticationConfigurationJWKSMetrics", "StructuredAuthenticationConfiguration"),
    ("TopologyAwareWorkloadScheduling", "GenericWorkload"),
    ("UnknownVersionInteroperabilityProxy", "APIServerIdentity"),
    ("UserNamespacesHostNetworkSupport", "NodeDeclaredFeatures UserNamespacesSupport"),
    ("WindowsGracefulNodeShutdown", "GracefulNodeShutdown"),
    ("WorkloadAwarePreemption", "GangScheduling"),
    ("WorkloadWithJob", "GenericWorkload"),
];

/// The enabled features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    given: Map<String, bool>,
}

fn group(name: &str) -> Option<&'static Group> {
    GROUPS.iter().find(|group| group.names.split_ascii_whitespace().any(|gate| gate == name))
}

/// The default value of a gate; `None`: there is no such gate.
pub(super) fn default_of(name: &str) -> Option<bool> {
    group(name).map(|group| group.default)
}

/// The gate of all features of a stage.
fn all_of(name: &str) -> Option<Stage> {
    match name {
        "AllAlpha" => Some(Stage::Alpha),
        "AllBeta" => Some(Stage::Beta),
        _ => None,
    }
}

impl Gates {
    /// The gates as set by `featureGates`.
    #[must_use]
    pub fn new(given: &Map<String, bool>) -> Self {
        Self { given: given.clone() }
    }

    /// The value that `featureGates` sets for a gate, by its name, `AllAlpha` or `AllBeta`.
    #[must_use]
    pub fn given(&self, name: &str) -> Option<bool> {
        let of_all = match group(name)?.stage {
            Stage::Alpha => self.given.get("AllAlpha"),
            Stage::Beta => self.given.get("AllBeta"),
            Stage::Ga | Stage::Deprecated => None,
        };
        self.given.get(name).or(of_all).copied()
    }

    /// Whether a feature is on.
    #[must_use]
    pub fn enabled(&self, name: &str) -> bool {
        self.given(name).or_else(|| default_of(name)).unwrap_or_default()
    }

    /// A gate of this name with its value; `None`: there is no such gate.
    pub(super) fn state(&self, name: &'static str) -> Option<GateState> {
        let stage = group(name)?.stage.as_str();
        Some(GateState { name, stage, enabled: self.enabled(name) })
    }

    /// Gates that Kubernetes 1.36 does not define, or not with this value, or not without others.
    pub(super) fn problems(&self) -> Vec<FieldProblem> {
        let problem = |(name, value): (&String, &bool)| {
            let problem = match group(name) {
                None if all_of(name).is_some() => return None,
                None => "Kubernetes 1.36 has no such feature gate".to_owned(),
                Some(group) if group.locked && *value != group.default => {
                    format!("it is locked to {}: leave it out", group.default)
                }
                Some(_) => return None,
            };
            Some(FieldProblem { field: format!("featureGates.{name}"), problem })
        };
        let mut problems: Vec<FieldProblem> = self.given.iter().filter_map(problem).collect();
        for (gate, needs) in NEEDS {
            let off = needs.split(' ').filter(|needed| !self.enabled(needed));
            let off: Vec<&str> = if self.enabled(gate) { off.collect() } else { Vec::new() };
            if !off.is_empty() {
                let problem = format!("it is enabled, and requires {}", off.join(", "));
                problems.push(FieldProblem { field: format!("featureGates.{gate}"), problem });
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::node::Features;

    fn gates(given: &[(&str, bool)]) -> Gates {
        Gates { given: given.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect() }
    }

    #[rstest]
    #[case(&[], "MemoryQoS", false)]
    #[case(&[], "NodeSwap", true)]
    #[case(&[("MemoryQoS", true)], "MemoryQoS", true)]
    #[case(&[("AllAlpha", true)], "MemoryQoS", true)]
    #[case(&[("AllAlpha", true), ("MemoryQoS", false)], "MemoryQoS", false)]
    #[case(&[("AllBeta", false)], "GracefulNodeShutdown", false)]
    #[case(&[("AllBeta", false)], "NodeSwap", true)]
    #[case(&[], "Nothing", false)]
    fn gate_is_as_set_or_as_its_stage(
        #[case] given: &[(&str, bool)],
        #[case] name: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(gates(given).enabled(name), expected);
    }

    #[rstest]
    #[case(&[], None)]
    #[case(&[("MemoryQoS", false)], Some(false))]
    #[case(&[("AllAlpha", true)], Some(true))]
    #[case(&[("AllAlpha", true), ("MemoryQoS", false)], Some(false))]
    #[case(&[("AllBeta", true)], None)]
    fn gate_is_given_by_name_or_by_stage(
        #[case] given: &[(&str, bool)],
        #[case] expected: Option<bool>,
    ) {
        assert_eq!(gates(given).given("MemoryQoS"), expected);
        assert_eq!(gates(given).given("Nothing"), None);
    }

    #[rstest]
    #[case("MemoryQoS", "ALPHA")]
    #[case("ContainerCheckpoint", "BETA")]
    #[case("CustomCPUCFSQuotaPeriod", "")]
    #[case("KMSv1", "DEPRECATED")]
    fn gate_has_the_stage_of_kubernetes(#[case] name: &'static str, #[case] stage: &'static str) {
        let enabled = default_of(name) == Some(true);
        assert_eq!(Gates::default().state(name), Some(GateState { name, stage, enabled }));
        assert_eq!(Gates::default().state("Nothing"), None);
    }

    #[test]
    fn unknown_and_locked_gates_are_problems() {
        let gates = gates(&[
            ("AllAlpha", false),
            ("MemoryQoS", true),
            ("NodeSwap", false),
            ("NodeLogQuery", true),
            ("Nothing", true),
        ]);
        let problems: Vec<String> = gates.problems().iter().map(ToString::to_string).collect();
        let expected = [
            "featureGates.NodeSwap: it is locked to true: leave it out",
            "featureGates.Nothing: Kubernetes 1.36 has no such feature gate",
        ];
        assert_eq!(problems, expected);
    }

    #[rstest]
    #[case(&[], "")]
    #[case(&[("GangScheduling", true)], "featureGates.GangScheduling: it is enabled, and requires GenericWorkload")]
    #[case(&[("GangScheduling", true), ("GenericWorkload", true)], "")]
    #[case(&[("GracefulNodeShutdown", false)], "featureGates.GracefulNodeShutdownBasedOnPodPriority: it is enabled, and requires GracefulNodeShutdown")]
    fn gate_needs_the_gates_that_it_depends_on(
        #[case] given: &[(&str, bool)],
        #[case] expected: &str,
    ) {
        let problems: Vec<String> =
            gates(given).problems().iter().map(ToString::to_string).collect();
        assert_eq!(problems.is_empty(), expected.is_empty(), "{problems:?}");
        assert!(problems.join("; ").contains(expected), "{problems:?}");
    }

    #[test]
    fn gates_that_others_need_exist() {
        for (gate, needs) in NEEDS {
            for name in needs.split(' ').chain([gate]) {
                assert!(group(name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn features_have_the_defaults_of_their_gates() {
        let known = |name: &str| default_of(name).expect("a known gate");
        assert_eq!(Features::of(known), Features::default());
    }

    #[test]
    fn each_gate_is_in_one_group() {
        let mut names: Vec<&str> =
            GROUPS.iter().flat_map(|group| group.names.split_ascii_whitespace()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
