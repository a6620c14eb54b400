//! A read-only view of the node's cluster, for the node's server.

use std::path::PathBuf;
use std::sync::Arc;

use agent::histogram::Histogram;
use agent::objects::{ObjectMap, ObjectStore};
use api::pod::PodUid;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use crate::certificates::rotation::{Rotations, server_certificate_expiry};
use crate::client::{ApiClient, RequestCounts};
use crate::node::startup::{NodeStartup, StartupDurations};
use crate::pods::KnownPods;
use crate::pods::mirror::{is_mirror, reported_uid};
use crate::pods::writer::WriteDelays;

/// A view of a [`crate::ClusterNode`]. Clones share it.
#[derive(Clone, Debug)]
pub struct ClusterView {
    pub(crate) client: ApiClient,
    pub(crate) known: watch::Receiver<Arc<KnownPods>>,
    pub(crate) store: Arc<ObjectStore>,
    pub(crate) delays: WriteDelays,
    pub(crate) startup: NodeStartup,
    /// The rotations of the client certificate, if it is rotated.
    pub(crate) client_rotations: Option<Rotations>,
    /// The path of the serving certificate and its rotations, if the cluster signs it.
    pub(crate) server: Option<(PathBuf, Rotations)>,
}

/// The state of a node's certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CertificateState {
    /// Expiry of the client certificate; `None`: no certificate.
    pub client_expiry: Option<Timestamp>,
    /// Failed rotations of the client certificate; `None`: it is not rotated.
    pub client_failures: Option<u64>,
    /// Expiry of the serving certificate (`None` until it is issued), and failed rotations; `None`: the cluster does not sign it.
    pub server: Option<(Option<Timestamp>, u64)>,
}

/// A pod's volume that is bound to a claim of the cluster, or that a driver provides for the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterVolume {
    /// The volume's name in the pod.
    pub volume: String,
    /// The claim, which is in the pod's namespace.
    pub claim: Option<String>,
    /// The volume's location.
    pub location: VolumeLocation,
}

/// The location of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeLocation {
    /// At a path of the node.
    Local(PathBuf),
    /// The mount point of its driver, by its [`agent::storage::drivers::DriverVolume::spec_name`].
    Driver(String),
}

impl ClusterView {
    /// The uid of the static pod that the mirror pod of this uid represents; `None` if there is no such mirror pod.
    #[must_use]
    pub fn static_pod_uid(&self, uid: &str) -> Option<PodUid> {
        let known = self.known.borrow();
        let pod = known.get(&PodUid::new(uid)).filter(|pod| is_mirror(pod))?;
        Some(reported_uid(pod))
    }

    /// The host and port of the API server.
    #[must_use]
    pub fn server_host(&self) -> &str {
        let server = self.client.server();
        let after = server.split_once("://").map_or(server, |(_, after)| after);
        after.split('/').next().unwrap_or_default()
    }

    /// The counts of requests to the API server.
    #[must_use]
    pub fn requests(&self) -> RequestCounts {
        self.client.counts()
    }

    /// The delays from status changes to their writes, in seconds.
    #[must_use]
    pub fn write_delays(&self) -> Histogram {
        self.delays.durations()
    }

    /// The durations of the steps of the node's start.
    #[must_use]
    pub fn startup(&self) -> StartupDurations {
        self.startup.durations()
    }

    /// The state of the node's certificates. Reads a file.
    #[must_use]
    pub fn certificates(&self) -> CertificateState {
        let of_server = |(directory, rotations): &(PathBuf, Rotations)| {
            (server_certificate_expiry(directory), rotations.failures())
        };
        CertificateState {
            client_expiry: self.client.certificate_expiry(),
            client_failures: self.client_rotations.as_ref().map(Rotations::failures),
            server: self.server.as_ref().map(of_server),
        }
    }

    /// The ages of replaced serving certificates in seconds; `None`: the cluster does not sign them.
    #[must_use]
    pub fn replaced_server_certificates(&self) -> Option<Histogram> {
        self.server.as_ref().map(|(_, rotations)| rotations.ages())
    }

    /// The pod's local volumes and CSI volumes. hostPath volumes are not measured, as in the kubelet.
    #[must_use]
    pub fn volumes(&self, pod: &Pod) -> Vec<ClusterVolume> {
        volumes(pod, &self.store.current())
    }
}

/// ◆ The local volumes and CSI volumes of a pod, according to these objects.
fn volumes(pod: &Pod, objects: &ObjectMap) -> Vec<ClusterVolume> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let found = volumes.filter_map(|volume| {
        let own_name = volume.name.clone();
        if volume.csi.is_some() {
            let location = VolumeLocation::Driver(own_name.clone());
            return Some(ClusterVolume { volume: own_name, claim: None, location });
        }
        let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => source.claim_name.clone(),
            (None, Some(_)) => format!("{name}-{own_name}"),
            (None, None) => return None,
        };
        let bound = objects.bound_claim(namespace, &claim)?.as_ref().ok()?;
        let spec = bound.volume.spec.as_ref()?;
        let location = match (&spec.local, &spec.csi) {
            (Some(local), _) => VolumeLocation::Local(PathBuf::from(&local.path)),
            (None, Some(_)) => VolumeLocation::Driver(bound.volume.metadata.name.clone()?),
            (None, None) => return None,
        };
        Some(ClusterVolume { volume: own_name, claim: Some(claim), location })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use agent::objects::BoundClaim;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn volumes_are_those_of_drivers_and_local_ones() {
        let mut objects = ObjectMap::default();
        let mut bind = |claim: &str, volume: &str, source: Value| {
            let volume = json!({"metadata": {"name": volume}, "spec": source});
            let volume = Arc::new(serde_json::from_value(volume).unwrap());
            let bound = BoundClaim { claim: Arc::default(), volume };
            objects.set_bound_claim("ns", claim, Ok(bound));
        };
        bind("data", "pv", json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
        bind("p-own", "of-pod", json!({"csi": {"driver": "d", "volumeHandle": "i"}}));
        bind("disk", "ssd", json!({"local": {"path": "/mnt/ssd"}}));
        bind("host", "tmp", json!({"hostPath": {"path": "/tmp"}}));
        let claimed =
            |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"containers": [], "volumes": [
                claimed("data"), claimed("disk"), claimed("host"), claimed("unbound"),
                {"name": "own", "ephemeral": {}}, {"name": "inline", "csi": {"driver": "d"}}, {"name": "e", "emptyDir": {}},
            ]},
        });
        let found = volumes(&serde_json::from_value(pod).unwrap(), &objects);
        let of_driver = |name: &str| VolumeLocation::Driver(name.to_owned());
        let expected = [
            ("data", Some("data"), of_driver("pv")),
            ("disk", Some("disk"), VolumeLocation::Local(PathBuf::from("/mnt/ssd"))),
            ("own", Some("p-own"), of_driver("of-pod")),
            ("inline", None, of_driver("inline")),
        ];
        let expected = expected.map(|(volume, claim, location)| ClusterVolume {
            volume: volume.to_owned(),
            claim: claim.map(str::to_owned),
            location,
        });
        assert_eq!(found, expected);
    }
}
