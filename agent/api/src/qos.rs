//! ◆ The QoS class of a pod. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/v1/helper/qos.

use compact::Map;
use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::pod::Pod;
use crate::quantity::Quantity;
use crate::totals::{Kind, amount};

/// QoS class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    /// Every container has limits, equal to its requests.
    Guaranteed,
    /// Neither Guaranteed nor BestEffort.
    Burstable,
    /// No container has requests or limits.
    BestEffort,
}

impl QosClass {
    /// The name in a pod's status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The QoS class: the one in the pod's status, which never changes, or else the computed one.
pub fn qos_class(pod: &Pod) -> QosClass {
    let status = pod.api().status.as_ref();
    match status.and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => QosClass::Guaranteed,
        Some("Burstable") => QosClass::Burstable,
        Some("BestEffort") => QosClass::BestEffort,
        Some(_) | None => computed_class(pod),
    }
}

/// Only CPU and memory count, of init and app containers or of the pod as a whole.
pub(crate) fn computed_class(pod: &Pod) -> QosClass {
    let each: Vec<Option<&ResourceRequirements>> = match &pod.spec().resources {
        Some(whole) => vec![Some(whole)],
        None => pod.init_and_apps().map(|container| container.resources.as_ref()).collect(),
    };
    let (mut requests, mut limits, mut all_limited) = (Sums::new(), Sums::new(), true);
    for resources in each {
        add(&mut requests, Kind::Requests, resources);
        all_limited &= add(&mut limits, Kind::Limits, resources) == 2;
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if all_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

type Sums = Map<&'static str, Quantity>;

/// Adds the CPU and memory of a list; returns how many of both it has.
fn add(sums: &mut Sums, kind: Kind, resources: Option<&ResourceRequirements>) -> usize {
    let mut counted = 0;
    for name in ["cpu", "memory"] {
        let listed = kind.of(resources).and_then(|list| list.get(name)).map(amount);
        if let Some(listed) = listed.filter(|amount| *amount > Quantity::ZERO) {
            let sum = sums.entry(name).or_insert(Quantity::ZERO);
            *sum = sum.plus(listed);
            counted += 1;
        }
    }
    counted
}
