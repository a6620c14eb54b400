//! ◆ The fields of objects that pods refer to, or live in.

use super::{Type, all, done, no_effect, some, warned};

const ONE_NODE: &str = "there is one node";
const NO_LOAD_BALANCER: &str = "there is no load balancer";
const IMMUTABLE: &str = "`crib run --watch` refuses a change with a warning";

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
            done("clusterIP", "an address of the pods' network replaces it; `None` is honoured"),
            no_effect("clusterIPs ipFamilies ipFamilyPolicy", "Services have one IPv4 address"),
            warned("externalIPs", "has no effect: the host does not route them; use nodePort"),
            no_effect("externalTrafficPolicy internalTrafficPolicy trafficDistribution", ONE_NODE),
            no_effect("healthCheckNodePort loadBalancerClass loadBalancerIP", NO_LOAD_BALANCER),
            warned(
                "loadBalancerSourceRanges",
                "has no effect: the port answers everybody who reaches this machine",
            ),
            done("type", "`LoadBalancer` is treated as `NodePort`, with a warning"),
        ],
    ),
    some(
        "ServicePort",
        "name nodePort port targetPort",
        &[
            no_effect("appProtocol", "nothing looks into the data"),
            done("protocol", "SCTP is not served, with a warning"),
        ],
    ),
    all("Endpoints", "apiVersion kind metadata subsets"),
    all("EndpointSubset", "addresses notReadyAddresses ports"),
    some(
        "EndpointAddress",
        "hostname ip",
        &[no_effect("nodeName", ONE_NODE), no_effect("targetRef", "the address alone counts")],
    ),
    some(
        "EndpointSlice",
        "apiVersion endpoints kind metadata ports",
        &[done(
            "addressType",
            "`IPv4`; addresses of the other types are not served, with a warning",
        )],
    ),
    some(
        "Endpoint",
        "addresses conditions hostname",
        &[
            no_effect("deprecatedTopology hints nodeName zone", ONE_NODE),
            no_effect("targetRef", "the address alone counts"),
        ],
    ),
    some(
        "EndpointConditions",
        "ready",
        &[no_effect("serving terminating", "an endpoint that is not ready is not used")],
    ),
    some(
        "EndpointPort",
        "name port protocol",
        &[no_effect("appProtocol", "nothing looks into the data")],
    ),
    all("SessionAffinityConfig", "clientIP"),
    all("ClientIPConfig", "timeoutSeconds"),
    some(
        "Namespace",
        "apiVersion kind metadata",
        &[no_effect("spec", "namespaces are names"), no_effect("status", "namespaces are names")],
    ),
    some(
        "ServiceAccount",
        "apiVersion kind metadata",
        &[
            no_effect("automountServiceAccountToken", "no token is mounted on its own"),
            done("imagePullSecrets", "for pods of the account that name none themselves"),
            no_effect("secrets", "there is no API server to show them to"),
        ],
    ),
    some(
        "RuntimeClass",
        "apiVersion handler kind metadata",
        &[
            done("overhead", "`crib run` gives it to the pods of the class"),
            no_effect("scheduling", "the node takes the pods of every class"),
        ],
    ),
    all("Overhead", "podFixed"),
    some(
        "PriorityClass",
        "apiVersion globalDefault kind metadata value",
        &[
            no_effect("description", "it is for people"),
            no_effect("preemptionPolicy", "there is no scheduler"),
        ],
    ),
    all("ClusterTrustBundle", "apiVersion kind metadata spec"),
    some(
        "ClusterTrustBundleSpec",
        "signerName",
        &[done(
            "trustBundle",
            "PEM with certificates in DER; that they are those of authorities is not checked",
        )],
    ),
];
