//! ◆ The fields of volumes, claims and persistent volumes.

use super::{Type, all, done, no_effect, refused, some, warned};

const STATUS: &str = "crib determines the status";
const COPIES: &str = "not supported yet: copy the data into the volume with a pod, or bind a PersistentVolume that contains the data";
const SOURCE: &str = "this kind of PersistentVolume is not supported: mount the volume on this machine and use its directory as \
                      hostPath; or leave the PersistentVolume out, and crib creates a directory for the claim";

const KINDS: &str = "this kind of volume is not supported yet: use a persistentVolumeClaim, for which crib creates a directory, or mount \
                     the volume on this machine and use its directory as hostPath";
const REPOSITORY: &str = "this kind of volume is not supported yet: use an emptyDir, and an init container that clones the repository \
                          into it";
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
            "with crib's runtime, `Memory` needs isolation `root` or `rootless`; with another runtime, `Memory` needs the agent's directory on tmpfs. Otherwise the pod does not start. crib refuses `HugePages`",
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
    some("PersistentVolumeClaim", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "PersistentVolumeClaimSpec",
        "accessModes selector volumeMode volumeName",
        &[
            refused("dataSource dataSourceRef", COPIES),
            done(
                "resources",
                "crib selects a PersistentVolume with at least the requested capacity; crib does not limit the volume's size",
            ),
            done(
                "storageClassName",
                "crib selects a PersistentVolume of this class. If no PersistentVolume fits, crib creates a directory for the claim, \
                 unless the class is the empty string or the claim has a `selector`",
            ),
            no_effect("volumeAttributesClassName", "directories have no volume attributes"),
        ],
    ),
    all("VolumeResourceRequirements", "limits requests"),
    all("PersistentVolumeClaimVolumeSource", "claimName readOnly"),
    all("EphemeralVolumeSource", "volumeClaimTemplate"),
    all("PersistentVolumeClaimTemplate", "metadata spec"),
    some("PersistentVolume", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "PersistentVolumeSpec",
        "accessModes capacity claimRef hostPath local storageClassName volumeMode",
        &[
            refused(
                "awsElasticBlockStore azureDisk azureFile cephfs cinder csi fc flexVolume flocker gcePersistentDisk glusterfs \
                 iscsi nfs photonPersistentDisk portworxVolume quobyte rbd scaleIO storageos vsphereVolume",
                SOURCE,
            ),
            warned(
                "mountOptions",
                "has no effect: crib mounts the directory without these options",
            ),
            done(
                "nodeAffinity",
                "a node of a cluster does not mount volumes of other nodes; without an API server, crib does not check this field",
            ),
            no_effect(
                "persistentVolumeReclaimPolicy",
                "crib never removes data of a PersistentVolume",
            ),
            no_effect("volumeAttributesClassName", "directories have no volume attributes"),
        ],
    ),
    some("LocalVolumeSource", "path", &[no_effect("fsType", "crib formats no device")]),
    all("VolumeNodeAffinity", "required"),
    some(
        "ObjectReference",
        "name namespace",
        &[
            no_effect("apiVersion fieldPath kind", "the reference always names a claim"),
            no_effect("resourceVersion uid", "crib identifies claims by name"),
        ],
    ),
];
