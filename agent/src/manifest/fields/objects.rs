//! ◆ The fields of objects that pods refer to, or live in.

use super::{Type, no_effect, some, warned};

const FIXED: &str = "objects do not change while `crib run` runs";

pub(super) const TYPES: &[Type] = &[
    some(
        "ConfigMap",
        "apiVersion binaryData data kind metadata",
        &[no_effect("immutable", FIXED)],
    ),
    some(
        "Secret",
        "apiVersion data kind metadata stringData type",
        &[no_effect("immutable", FIXED)],
    ),
    some(
        "Service",
        "apiVersion kind metadata",
        &[
            warned(
                "spec",
                "not supported yet: no pod is reached through a Service, nor found by its name",
            ),
            no_effect("status", "there is no load balancer"),
        ],
    ),
    some(
        "Namespace",
        "apiVersion kind metadata",
        &[
            no_effect("spec", "namespaces are names"),
            no_effect("status", "namespaces are names"),
        ],
    ),
    some(
        "ServiceAccount",
        "apiVersion kind metadata",
        &[
            no_effect(
                "automountServiceAccountToken",
                "no token is mounted on its own",
            ),
            warned(
                "imagePullSecrets",
                "has no effect: name them in the pods' imagePullSecrets",
            ),
            no_effect("secrets", "there is no API server to show them to"),
        ],
    ),
];
