//! ◆ The fields of objects that pods refer to, and of namespaces.

use super::{Type, all, done, no_effect, some, warned};

const ONE_NODE: &str = "there is one node";
const NO_LOAD_BALANCER: &str = "there is no load balancer";
const IMMUTABLE: &str = "`crib run --watch` rejects changes with a warning";

pub(super) const TYPES: &[Type] = &[
    some("ConfigMap", "apiVersion binaryData data kind metadata", &[done("immutable", IMMUTABLE)]),
    some(
        "Secret",
        "apiVersion data kind metadata stringData type",
        &[done("immutable", IMMUTABLE)],
    ),
    some(
        "Service",
        "apiVersion kind metadata spec",
        &[no_effect("status", "there is no load balancer")],
    ),
    some(
        "ServiceSpec",
        "allocateLoadBalancerNodePorts externalName ports publishNotReadyAddresses selector sessionAffinity sessionAffinityConfig",
        &[
            done(
                "clusterIP",
                "crib assigns an address of the pod network in place of any value other than `None`",
            ),
            no_effect("clusterIPs ipFamilies ipFamilyPolicy", "each Service has one IPv4 address"),
            warned(
                "externalIPs",
                "has no effect: the host does not route external IPs; use nodePort",
            ),
            no_effect("externalTrafficPolicy internalTrafficPolicy trafficDistribution", ONE_NODE),
            no_effect("healthCheckNodePort loadBalancerClass loadBalancerIP", NO_LOAD_BALANCER),
            warned(
                "loadBalancerSourceRanges",
                "has no effect: the port is open to every client that reaches this machine",
            ),
            done("type", "crib treats `LoadBalancer` as `NodePort`, and warns"),
        ],
    ),
    some(
        "ServicePort",
        "name nodePort port targetPort",
        &[
            no_effect("appProtocol", "crib does not inspect the data"),
            done("protocol", "only TCP and UDP; crib does not serve SCTP, and warns"),
        ],
    ),
    all("Endpoints", "apiVersion kind metadata subsets"),
    all("EndpointSubset", "addresses notReadyAddresses ports"),
    some(
        "EndpointAddress",
        "hostname ip",
        &[no_effect("nodeName", ONE_NODE), no_effect("targetRef", "crib uses only the address")],
    ),
    some(
        "EndpointSlice",
        "apiVersion endpoints kind metadata ports",
        &[done("addressType", "only `IPv4`; crib does not serve other address types, and warns")],
    ),
    some(
        "Endpoint",
        "addresses conditions hostname",
        &[
            no_effect("deprecatedTopology hints nodeName zone", ONE_NODE),
            no_effect("targetRef", "crib uses only the address"),
        ],
    ),
    some(
        "EndpointConditions",
        "ready",
        &[no_effect("serving terminating", "crib uses only ready endpoints")],
    ),
    some(
        "EndpointPort",
        "name port protocol",
        &[no_effect("appProtocol", "crib does not inspect the data")],
    ),
    all("SessionAffinityConfig", "clientIP"),
    all("ClientIPConfig", "timeoutSeconds"),
    some(
        "Namespace",
        "apiVersion kind metadata",
        &[
            no_effect("spec", "a namespace is only a name"),
            no_effect("status", "a namespace is only a name"),
        ],
    ),
    some(
        "ServiceAccount",
        "apiVersion kind metadata",
        &[
            no_effect("automountServiceAccountToken", "crib mounts no token automatically"),
            done("imagePullSecrets", "for pods of the account that name no `imagePullSecrets`"),
            no_effect("secrets", "there is no API server for which pods could use these Secrets"),
        ],
    ),
    some(
        "RuntimeClass",
        "apiVersion handler kind metadata",
        &[
            done("overhead", "`crib run` adds the overhead to pods of the class"),
            no_effect("scheduling", "the node runs pods of every class"),
        ],
    ),
    all("Overhead", "podFixed"),
    some(
        "PriorityClass",
        "apiVersion globalDefault kind metadata value",
        &[
            no_effect("description", "documentation only"),
            no_effect("preemptionPolicy", "there is no scheduler"),
        ],
    ),
    all("ClusterTrustBundle", "apiVersion kind metadata spec"),
    some(
        "ClusterTrustBundleSpec",
        "signerName",
        &[done(
            "trustBundle",
            "X.509 certificates in PEM; crib does not check that they are CA certificates",
        )],
    ),
];
