//! ◆ The fields of volumes, claims and persistent volumes.

use super::{Type, all, done, no_effect, refused, some, warned};

const STATUS: &str = "the binding is decided when a pod uses the claim";
const COPIES: &str = "not supported yet: copy the data into the volume with a pod, or bind a PersistentVolume that has it";
const SOURCE: &str = "this kind of PersistentVolume is not supported: mount it on this machine and name its directory in hostPath, or leave \
                      the PersistentVolume out, and the claim gets a directory";

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
    some("PersistentVolumeClaim", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "PersistentVolumeClaimSpec",
        "accessModes selector volumeMode volumeName",
        &[
            refused("dataSource dataSourceRef", COPIES),
            done("resources", "the request chooses among PersistentVolumes; it limits nothing"),
            done(
                "storageClassName",
                "it chooses among PersistentVolumes; without one that fits, the claim of any class gets a directory, but for the \
                 empty class",
            ),
            no_effect("volumeAttributesClassName", "a directory has no attributes of a class"),
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
                "has no effect: the directory is not mounted with options of its own",
            ),
            done("nodeAffinity", "this machine counts as the node"),
            no_effect(
                "persistentVolumeReclaimPolicy",
                "nothing of a PersistentVolume is ever removed",
            ),
            no_effect("volumeAttributesClassName", "a directory has no attributes of a class"),
        ],
    ),
    some("LocalVolumeSource", "path", &[no_effect("fsType", "the path is a directory")]),
    all("VolumeNodeAffinity", "required"),
    some(
        "ObjectReference",
        "name namespace",
        &[
            no_effect("apiVersion fieldPath kind", "the reference is to a claim"),
            no_effect("resourceVersion", "objects have no versions here"),
            no_effect("uid", "claims are known by their names"),
        ],
    ),
];
