//! ◆ The fields of pods, apart from their containers and volumes.

use super::{Type, all, done, no_effect, refused, some, warned};

const API_SERVER: &str = "an API server sets it";
const KEPT: &str = "nothing is kept in an API server";
const SCHEDULER: &str = "there is no scheduler";
const ONE_NODE: &str = "all pods are on the one node";
const OTHER_NODES: &str = "a node with labels of its own (`crib agent --node-labels`) rejects pods of other nodes; `crib run` \
                           warns of them, and its one node takes every pod";
const LINUX: &str = "pods run on Linux";

pub(super) const TYPES: &[Type] = &[
    some("Pod", "apiVersion kind metadata spec", &[no_effect("status", "the agent finds it out")]),
    some(
        "ObjectMeta",
        "annotations generation labels name namespace uid",
        &[
            no_effect("creationTimestamp", API_SERVER),
            done("deletionGracePeriodSeconds", "an API server sets it"),
            done("deletionTimestamp", "an API server sets it; a pod that has one is ended"),
            no_effect("finalizers managedFields ownerReferences resourceVersion selfLink", KEPT),
            done(
                "generateName",
                "without `name`, the first 58 characters and five more, which depend on the name of the file and on how many objects of \
                 that kind and prefix are before it there; a static pod needs a name",
            ),
        ],
    ),
    some(
        "PodSpec",
        "activeDeadlineSeconds affinity containers dnsConfig dnsPolicy hostAliases hostIPC hostNetwork hostPID hostUsers \
         hostname hostnameOverride initContainers os overhead priority resources restartPolicy \
         securityContext setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations volumes",
        &[
            no_effect(
                "automountServiceAccountToken",
                "no token is mounted on its own, for there is no API server to show it to",
            ),
            done("enableServiceLinks", "of the Services that there are"),
            refused(
                "ephemeralContainers",
                "not supported yet: leave them out, as a manifest for a cluster must, and look into containers with `crib exec`",
            ),
            done(
                "imagePullSecrets",
                "Secrets among the documents, or of `--pull-secrets`; one that is missing is an event",
            ),
            done("nodeName nodeSelector", OTHER_NODES),
            no_effect("preemptionPolicy schedulerName schedulingGroup", SCHEDULER),
            done(
                "priorityClassName",
                "a PriorityClass of the manifests, `system-node-critical` or `system-cluster-critical`; `crib run` warns of another one",
            ),
            warned(
                "readinessGates",
                "cannot be met without an API server: the pod will never be Ready",
            ),
            refused(
                "resourceClaims",
                "not supported yet: mount a device of this machine with a hostPath volume, and run privileged",
            ),
            done(
                "runtimeClassName",
                "a RuntimeClass of the manifests, or the name of a handler that the runtime has",
            ),
            warned("schedulingGates", "nothing opens gates here: the pod is started at once"),
            done("serviceAccount", "an older name of `serviceAccountName`"),
            done("serviceAccountName", "any account exists"),
            no_effect("topologySpreadConstraints", ONE_NODE),
        ],
    ),
    some(
        "Affinity",
        "nodeAffinity",
        &[
            no_effect("podAffinity", ONE_NODE),
            warned("podAntiAffinity", "has no effect: all pods are on the one node"),
        ],
    ),
    some(
        "NodeAffinity",
        "",
        &[
            no_effect("preferredDuringSchedulingIgnoredDuringExecution", ONE_NODE),
            done("requiredDuringSchedulingIgnoredDuringExecution", OTHER_NODES),
        ],
    ),
    all("NodeSelector", "nodeSelectorTerms"),
    all("NodeSelectorTerm", "matchExpressions matchFields"),
    all("NodeSelectorRequirement", "key operator values"),
    some(
        "Toleration",
        "effect key operator value",
        &[no_effect("tolerationSeconds", "taints do not change while the agent runs")],
    ),
    all("HostAlias", "hostnames ip"),
    all("PodDNSConfig", "nameservers options searches"),
    all("PodDNSConfigOption", "name value"),
    all("PodOS", "name"),
    some(
        "PodSecurityContext",
        "appArmorProfile fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seLinuxOptions seccompProfile supplementalGroups \
         supplementalGroupsPolicy sysctls",
        &[
            no_effect("seLinuxChangePolicy", "volumes are relabelled"),
            no_effect("windowsOptions", LINUX),
        ],
    ),
    all("Sysctl", "name value"),
    all("LocalObjectReference", "name"),
];
