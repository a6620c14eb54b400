//! ◆ The resources that the admitted pods use, as running sums: updated when a pod is added, changed or removed, and not recomputed
//! for each admission. Pure.

use api::pod::{Pod, PodUid, is_sidecar};
use api::quantity::Quantity;
use compact::{Map, Set};
use k8s_openapi::api::core::v1::ContainerPort;

use crate::pod_spec::spec::resources::pod_requests;

/// The admitted pods, and the sums of their requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmittedPods {
    pods: Map<PodUid, Share>,
    /// The total requests by resource name; none is zero.
    sums: Map<String, i128>,
    /// The pods with host ports.
    with_ports: Set<PodUid>,
}

/// One pod's share.
#[derive(Clone, Debug, PartialEq)]
struct Share {
    pod: Pod,
    /// Its requests in whole units (CPU in thousandths).
    requests: Map<String, i64>,
}

impl AdmittedPods {
    /// Adds a pod, or replaces its previous version.
    pub fn set(&mut self, pod: Pod) {
        let uid = pod.uid();
        if self.pods.get(uid).is_some_and(|share| share.pod == pod) {
            return;
        }
        let uid = uid.clone();
        self.remove(&uid);
        let requests = requests(&pod);
        add(&mut self.sums, &requests, 1);
        if host_ports(&pod).next().is_some() {
            self.with_ports.insert(uid.clone());
        }
        self.pods.insert(uid, Share { pod, requests });
    }

    /// Removes a pod.
    pub fn remove(&mut self, uid: &PodUid) {
        if let Some(share) = self.pods.remove(uid) {
            add(&mut self.sums, &share.requests, -1);
            self.with_ports.remove(uid);
        }
    }

    /// Each pod's request of one resource.
    pub(crate) fn each(&self, resource: &str) -> impl Iterator<Item = (&PodUid, i64)> {
        let request = move |share: &Share| share.requests.get(resource).copied();
        let shares = self.pods.iter();
        shares.map(move |(uid, share)| (uid, request(share).unwrap_or_default()))
    }

    /// All pods except this one, by uid.
    pub(super) fn others(&self, except: &PodUid) -> impl Iterator<Item = &Pod> {
        let others = self.pods.iter().filter(move |(uid, _)| *uid != except);
        others.map(|(_, share)| &share.pod)
    }

    /// The number of pods except this one.
    pub(super) fn count(&self, except: &PodUid) -> i64 {
        let count = self.pods.len() - usize::from(self.pods.contains_key(except));
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    /// The total request of a resource by all pods except this one.
    pub(super) fn requested(&self, resource: &str, except: &PodUid) -> i64 {
        let all = self.sums.get(resource).copied().unwrap_or_default();
        let own = self.pods.get(except);
        let own = own.and_then(|share| share.requests.get(resource).copied());
        let others = all - i128::from(own.unwrap_or_default());
        i64::try_from(others).unwrap_or(i64::MAX)
    }

    /// The host ports of all pods except this one.
    pub(super) fn host_ports(&self, except: &PodUid) -> impl Iterator<Item = &ContainerPort> {
        let others = self.with_ports.iter().filter(move |uid| *uid != except);
        let shares = others.filter_map(|uid| self.pods.get(uid));
        shares.flat_map(|share| host_ports(&share.pod))
    }
}

impl FromIterator<Pod> for AdmittedPods {
    fn from_iter<I: IntoIterator<Item = Pod>>(pods: I) -> Self {
        let mut admitted = Self::default();
        for pod in pods {
            admitted.set(pod);
        }
        admitted
    }
}

fn add(sums: &mut Map<String, i128>, requests: &Map<String, i64>, times: i128) {
    for (name, amount) in requests.iter().filter(|(_, amount)| **amount != 0) {
        let sum = sums.entry(name.clone()).or_default();
        *sum += i128::from(*amount) * times;
        if *sum == 0 {
            sums.remove(name);
        }
    }
}

/// A pod's request of one resource; 1 for `pods`.
pub(super) fn request(pod: &Pod, name: &str) -> i64 {
    if name == "pods" {
        return 1;
    }
    let requests = pod_requests(pod);
    requests.get(name).map_or(0, |amount| whole(name, *amount))
}

/// A pod's requests in whole units (CPU in thousandths).
pub(super) fn requests(pod: &Pod) -> Map<String, i64> {
    let in_units = |(name, amount): (String, Quantity)| {
        let units = whole(&name, amount);
        (name, units)
    };
    pod_requests(pod).into_iter().map(in_units).collect()
}

/// An amount in whole units (CPU in thousandths).
pub(super) fn whole(name: &str, amount: Quantity) -> i64 {
    if name == "cpu" { amount.milli_value() } else { amount.value() }
}

/// The host ports of the containers that run as long as the pod does.
pub(super) fn host_ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    let sidecars = pod.init_containers().iter().filter(|init| is_sidecar(init));
    let ports = sidecars.chain(pod.containers()).filter_map(|container| container.ports.as_ref());
    ports.flatten().filter(|port| port.host_port.is_some_and(|number| number > 0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn pod(uid: &str, (millicores, storage, port): (u32, u64, u16)) -> Pod {
        let requests =
            json!({"cpu": format!("{millicores}m"), "ephemeral-storage": storage.to_string()});
        let ports = json!([{"containerPort": 1, "hostPort": port}]);
        let app = json!({"name": "app", "resources": {"requests": requests}, "ports": ports});
        fixtures::pod(json!({"metadata": {"name": uid, "uid": uid}, "spec": {"containers": [app]}}))
    }

    /// A pod's requests and its port; the storage of two pods may overflow an `i64`.
    fn amounts() -> impl Strategy<Value = (u32, u64, u16)> {
        let storage = prop_oneof![Just(0), Just(7), Just(i64::MAX.unsigned_abs())];
        (0..4000_u32, storage, 0..3_u16)
    }

    proptest! {
        #[test]
        fn running_sums_equal_recomputed_ones(
            steps in proptest::collection::vec((0..5_u8, proptest::option::of(amounts())), 1..40),
        ) {
            let mut admitted = AdmittedPods::default();
            let mut all: Map<PodUid, Pod> = Map::new();
            for (number, amounts) in steps {
                let name = number.to_string();
                let uid = PodUid::new(name.as_str());
                match amounts {
                    Some(amounts) => {
                        admitted.set(pod(&name, amounts));
                        all.insert(uid, pod(&name, amounts));
                    }
                    None => {
                        admitted.remove(&uid);
                        all.remove(&uid);
                    }
                }
                for except in 0..6 {
                    let except = PodUid::new(except.to_string());
                    let others: Vec<&Pod> = all.values().filter(|pod| *pod.uid() != except).collect();
                    for resource in ["cpu", "ephemeral-storage", "memory"] {
                        let amounts = others.iter().map(|pod| request(pod, resource));
                        let sum = amounts.fold(0, i64::saturating_add);
                        prop_assert_eq!(admitted.requested(resource, &except), sum, "{}", resource);
                    }
                    let ports = others.iter().flat_map(|pod| host_ports(pod));
                    prop_assert!(admitted.host_ports(&except).eq(ports));
                    prop_assert_eq!(usize::try_from(admitted.count(&except)).unwrap(), others.len());
                    prop_assert!(admitted.others(&except).eq(others));
                }
            }
            prop_assert_eq!(admitted, all.into_values().collect::<AdmittedPods>());
        }
    }
}
