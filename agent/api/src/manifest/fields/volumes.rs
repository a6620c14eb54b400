//! ◆ The fields of volumes.

use super::{Type, all, done, refused, some};

const KINDS: &str = "this kind of volume is not supported yet: use a persistentVolumeClaim, which gets a directory, or mount it on this \
                     machine and name its directory in hostPath";
const REPOSITORY: &str = "this kind of volume is not supported yet: use an emptyDir, and an init container that clones into it";
const CERTIFICATE: &str =
    "not supported yet without an API server: put a certificate and its key into a secret";

pub(super) const TYPES: &[Type] = &[
    some(
        "Volume",
        "configMap downwardAPI emptyDir ephemeral hostPath image name persistentVolumeClaim projected secret",
        &[
            refused(
                "awsElasticBlockStore azureDisk azureFile cephfs cinder csi fc flexVolume flocker gcePersistentDisk glusterfs \
                 iscsi nfs photonPersistentDisk portworxVolume quobyte rbd scaleIO storageos vsphereVolume",
                KINDS,
            ),
            refused("gitRepo", REPOSITORY),
        ],
    ),
    all("ConfigMapVolumeSource", "defaultMode items name optional"),
    all("DownwardAPIVolumeSource", "defaultMode items"),
    all("DownwardAPIVolumeFile", "fieldRef mode path resourceFieldRef"),
    some(
        "EmptyDirVolumeSource",
        "sizeLimit",
        &[done(
            "medium",
            "`Memory` with crib's own runtime and namespaces, else the pod is refused; `HugePages` is refused",
        )],
    ),
    all("HostPathVolumeSource", "path type"),
    all("ImageVolumeSource", "pullPolicy reference"),
    all("KeyToPath", "key mode path"),
    all("ProjectedVolumeSource", "defaultMode sources"),
    some(
        "VolumeProjection",
        "clusterTrustBundle configMap downwardAPI secret serviceAccountToken",
        &[refused("podCertificate", CERTIFICATE)],
    ),
    all("ClusterTrustBundleProjection", "labelSelector name optional path signerName"),
    all("ConfigMapProjection", "items name optional"),
    all("DownwardAPIProjection", "items"),
    all("SecretProjection", "items name optional"),
    all("ServiceAccountTokenProjection", "audience expirationSeconds path"),
    all("SecretVolumeSource", "defaultMode items optional secretName"),
];
