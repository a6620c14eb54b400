//! ◆ The fields of pods, apart from their containers and volumes.

use super::{Type, all, done, no_effect, refused, some, warned};

const KEPT: &str = "no API server stores the object";
const SCHEDULER: &str = "there is no scheduler";
const ONE_NODE: &str = "all pods run on one node";
const OTHER_NODES: &str = "a node with labels (`--node-labels`, `--adopt-node` or `--kubeconfig`) rejects pods for other nodes; `crib run` \
                           warns about pods for other nodes, and runs these pods on its only node";
const LINUX: &str = "pods run on Linux";

pub(super) const TYPES: &[Type] = &[
    some(
        "Pod",
        "apiVersion kind metadata spec",
        &[no_effect("status", "the agent determines the status")],
    ),
    some(
        "ObjectMeta",
        "annotations generation labels name namespace uid",
        &[
            done(
                "creationTimestamp",
                "`crib agent` admits pods in the order of their creation, `crib run` in the order of the manifests",
            ),
            done("deletionGracePeriodSeconds", "an API server sets this field"),
            done(
                "deletionTimestamp",
                "an API server sets this field; crib terminates a pod that has it",
            ),
            no_effect("finalizers managedFields ownerReferences resourceVersion selfLink", KEPT),
            done(
                "generateName",
                "without `name`, the object's name is the first 58 characters of `generateName`, followed by five characters. crib computes \
                 these five characters from the file's name, the kind, `generateName`, and the number of earlier objects in the file \
                 with the same kind and `generateName`. A static pod needs `name`",
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
                "crib mounts no token automatically, because there is no API server for which a pod could use the token",
            ),
            done("enableServiceLinks", "for Services that exist when the container is created"),
            refused(
                "ephemeralContainers",
                "not supported yet: leave them out (an API server also rejects them in new pods), and inspect containers with `crib exec`",
            ),
            done(
                "imagePullSecrets",
                "Secrets in the manifests or in `--pull-secrets`; crib reports a missing Secret as an event",
            ),
            done("nodeName nodeSelector", OTHER_NODES),
            no_effect("preemptionPolicy schedulerName schedulingGroup", SCHEDULER),
            done(
                "priorityClassName",
                "a PriorityClass in the manifests, `system-node-critical` or `system-cluster-critical`; `crib run` warns about other \
                 names",
            ),
            warned(
                "readinessGates",
                "cannot be met without an API server: the pod will never be Ready",
            ),
            refused(
                "resourceClaims",
                "not supported yet: mount a device of this machine with a hostPath volume into a privileged container",
            ),
            done(
                "runtimeClassName",
                "a RuntimeClass in the manifests, or the name of a handler of the runtime",
            ),
            warned(
                "schedulingGates",
                "crib has no controller that removes scheduling gates: crib starts the pod immediately",
            ),
            done("serviceAccount", "the deprecated alias of `serviceAccountName`"),
            done("serviceAccountName", "crib accepts any name"),
            no_effect("topologySpreadConstraints", ONE_NODE),
        ],
    ),
    some(
        "Affinity",
        "nodeAffinity",
        &[
            no_effect("podAffinity", ONE_NODE),
            warned("podAntiAffinity", "has no effect: all pods run on one node"),
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
            no_effect("seLinuxChangePolicy", "crib always relabels volumes"),
            no_effect("windowsOptions", LINUX),
        ],
    ),
    all("Sysctl", "name value"),
    all("LocalObjectReference", "name"),
];
