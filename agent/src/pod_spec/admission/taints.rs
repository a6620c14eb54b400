//! ◆ Whether the pod tolerates the node's taints. The kubelet looks at `NoExecute` alone, and static pods may run anywhere.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/lifecycle/predicate.go, api/core/v1/toleration.go; the operators `Lt` and `Gt` are
//! off by default (TaintTolerationComparisonOperators).

use api::pod::Pod;
use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::Rejection;

pub(super) fn check(pod: &Pod, taints: &[Taint]) -> Result<(), Rejection> {
    let tolerations = pod.spec().tolerations.as_deref().unwrap_or_default();
    let mut untolerated = taints
        .iter()
        .filter(|taint| taint.effect == "NoExecute")
        .filter(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)));
    if !pod.is_static() && untolerated.next().is_some() {
        return Err(Rejection::predicate(
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ));
    }
    Ok(())
}

/// An empty effect or key stands for each.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let fits = |wanted: &Option<String>, given: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == given)
    };
    let value = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => {
            toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default()
        }
        Some("Exists") => true,
        Some(_) => false,
    };
    value && fits(&toleration.effect, &taint.effect) && fits(&toleration.key, &taint.key)
}
