//! What others may know of the node's cluster: the node's server, for what it shows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::objects::ObjectStore;
use api::pod::PodUid;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use crate::certificates::rotation::{Failures, server_ends};
use crate::client::{ApiClient, RequestCounts};
use crate::pods::KnownPods;
use crate::pods::mirror::{is_mirror, reported_uid};

/// A view of a [`crate::ClusterNode`]. Clones see the same.
#[derive(Clone, Debug)]
pub struct ClusterView {
    pub(crate) client: ApiClient,
    pub(crate) known: watch::Receiver<Arc<KnownPods>>,
    pub(crate) store: Arc<ObjectStore>,
    /// Those of the client's certificate, if it is replaced.
    pub(crate) client_failures: Option<Failures>,
    /// Where the server's certificate is and its failures, if the cluster signs it.
    pub(crate) server: Option<(PathBuf, Failures)>,
}

/// What is known of the certificates of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CertificateState {
    /// Expiry of the client certificate; `None`: no certificate.
    pub client_ends: Option<Timestamp>,
    /// Failed rotations of the client certificate; `None`: it is not rotated.
    pub client_failures: Option<u64>,
    /// Expiry of the serving certificate (`None` until it is issued), and failed rotations; `None`: the cluster does not sign it.
    pub server: Option<(Option<Timestamp>, u64)>,
}

/// A volume of a pod that a claim of the cluster is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedVolume {
    /// The volume's name in the pod.
    pub volume: String,
    /// The claim, which is in the pod's namespace.
    pub claim: String,
    /// Where it is on the node.
    pub path: PathBuf,
}

impl ClusterView {
    /// The uid of the static pod that the mirror pod of this uid shows; `None`: it is no mirror pod's.
    #[must_use]
    pub fn shown_by(&self, uid: &str) -> Option<PodUid> {
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

    /// The requests to the API server so far.
    #[must_use]
    pub fn requests(&self) -> RequestCounts {
        self.client.counts()
    }

    /// What is known of the node's certificates. It reads a file.
    #[must_use]
    pub fn certificates(&self) -> CertificateState {
        let of_server = |(directory, failures): &(PathBuf, Failures)| {
            (server_ends(directory), failures.count())
        };
        CertificateState {
            client_ends: self.client.certificate_ends(),
            client_failures: self.client_failures.as_ref().map(Failures::count),
            server: self.server.as_ref().map(of_server),
        }
    }

    /// The local volumes and those of drivers that the claims of a pod are bound to, whose agent has this directory. Volumes of
    /// hostPaths are not measured, as by a kubelet.
    #[must_use]
    pub fn claimed_volumes(&self, root_dir: &Path, pod: &Pod) -> Vec<ClaimedVolume> {
        let objects = self.store.current();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let claimed = volumes.filter_map(|volume| {
            let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(source), _) => source.claim_name.clone(),
                (None, Some(_)) => format!("{name}-{}", volume.name),
                (None, None) => return None,
            };
            let bound = objects.bound_claim(namespace, &claim)?.as_ref().ok()?;
            let spec = bound.volume.spec.as_ref()?;
            let path = match (&spec.local, &spec.csi) {
                (Some(local), _) => PathBuf::from(&local.path),
                (None, Some(_)) => {
                    let uid = pod.metadata.uid.as_deref()?;
                    csi::mount_point(root_dir, uid, bound.volume.metadata.name.as_deref()?)
                }
                (None, None) => return None,
            };
            Some(ClaimedVolume { volume: volume.name.clone(), claim, path })
        });
        claimed.collect()
    }
}
