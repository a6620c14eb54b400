//! ◆ The files of volumes that show API objects, fields of the pod and tokens. Pure.
//!
//! Source: Kubernetes 1.36, pkg/volume/{configmap,secret,downwardapi,projected} and pkg/volume/util/atomic_writer.go.

use std::path::{Component, Path, PathBuf};

use api::pod::Pod;
use compact::Map;
use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, Container, DownwardAPIVolumeFile, KeyToPath,
    ServiceAccountTokenProjection, Volume, VolumeProjection,
};

use super::token::TokenError;
use crate::node::Node;
use crate::objects::{ObjectKind, ObjectMap};
use crate::pod_spec::env::{FieldError, ResourceError, field, resource};
use crate::pod_spec::references;

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileContent {
    pub(crate) data: Vec<u8>,
    pub(crate) mode: u32,
    /// Its owner; `None`: the agent's user.
    pub(crate) owner: Option<u32>,
}

/// The files of a volume by their relative paths.
pub(crate) type Payload = Map<PathBuf, FileContent>;

/// The maximum size of a volume's files. Its paths may show the same entry of an object again and again.
const MOST_BYTES: usize = 64 << 20;
/// The number of volumes whose files may have the maximum size in a pod.
pub(super) const POD_VOLUMES: usize = 4;
/// The maximum size of the files of a pod's volumes together.
pub(super) const POD_BYTES: u64 = 256 << 20;

/// Files of a volume, up to [`MOST_BYTES`].
#[derive(Default)]
struct Files {
    files: Payload,
    bytes: usize,
}

impl Files {
    /// Adds a file, or replaces the one with this path.
    fn insert(&mut self, path: PathBuf, content: FileContent) -> Result<(), ContentError> {
        let replaced = self.files.get(&path).map_or(0, |former| former.data.len());
        let bytes = self.bytes - replaced + content.data.len();
        if bytes > MOST_BYTES {
            return Err(ContentError::TooLarge);
        }
        self.bytes = bytes;
        self.files.insert(path, content);
        Ok(())
    }
}

/// Why a volume has no files: part of the message of a `FailedMount` event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ContentError {
    /// The object does not exist.
    #[error("{kind} {name:?} not found")]
    NoObject {
        /// Its kind.
        kind: ObjectKind,
        /// Its name.
        name: String,
    },
    /// Whether the object exists is unknown.
    #[error("{why}")]
    Unknown {
        /// The cause.
        why: String,
    },
    /// The ConfigMap does not have a key.
    #[error("configmap references non-existent config key: {key}")]
    NoConfigKey {
        /// The key.
        key: String,
    },
    /// The Secret does not have a key.
    #[error("references non-existent secret key: {key}")]
    NoSecretKey {
        /// The key.
        key: String,
    },
    /// A field has no value.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A resource has no value.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// A token could not be issued.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The ClusterTrustBundle does not exist.
    #[error(
        "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
    )]
    NoTrustBundle {
        /// Its name.
        name: String,
    },
    /// No bundle of the signer has the labels.
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoTrustBundleOfSigner,
    /// The agent does not support this source.
    #[error("{kind} projections are not supported")]
    Unsupported {
        /// The kind of source.
        kind: &'static str,
    },
    /// A path leaves the volume.
    #[error("invalid path: must be relative and must not contain or start with '..': {path}")]
    Path {
        /// The path.
        path: String,
    },
    /// The files are too large together.
    #[error("the files of the volume have more than {} MiB", MOST_BYTES >> 20)]
    TooLarge,
    /// The files of the pod's volumes are too large together.
    #[error("the files of the pod's volumes have more than {} MiB together", POD_BYTES >> 20)]
    PodTooLarge,
    /// Several sources of the volume failed.
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<ContentError>),
}

impl ContentError {
    /// True if every retry fails with this manifest; false if an object may appear or change.
    pub(crate) fn is_of_manifest(&self) -> bool {
        match self {
            Self::NoObject { .. }
            | Self::Unknown { .. }
            | Self::NoConfigKey { .. }
            | Self::NoSecretKey { .. }
            | Self::NoTrustBundle { .. }
            | Self::NoTrustBundleOfSigner
            | Self::Token(_)
            | Self::TooLarge
            | Self::PodTooLarge => false,
            Self::Field(_) | Self::Resource(_) | Self::Unsupported { .. } | Self::Path { .. } => {
                true
            }
            Self::Several(errors) => errors.iter().any(Self::is_of_manifest),
        }
    }
}

/// Returns the token that a projected volume requests.
pub(crate) type TokenSource<'a> =
    &'a dyn Fn(&ServiceAccountTokenProjection) -> Result<String, TokenError>;

/// The inputs of volumes' content beside the pod.
#[derive(Clone, Copy)]
pub(crate) struct ContentInputs<'a> {
    pub(crate) node: &'a Node,
    pub(crate) objects: &'a ObjectMap,
    pub(crate) token: TokenSource<'a>,
}

/// Whether the agent writes the files of this volume, and updates them.
pub(crate) fn is_written(volume: &Volume) -> bool {
    kind(volume).is_some()
}

/// The name of the kubelet's plugin that writes the volume's files, which names its directory.
pub(crate) fn kind(volume: &Volume) -> Option<&'static str> {
    if volume.config_map.is_some() {
        Some("kubernetes.io~configmap")
    } else if volume.secret.is_some() {
        Some("kubernetes.io~secret")
    } else if volume.downward_api.is_some() {
        Some("kubernetes.io~downward-api")
    } else {
        volume.projected.is_some().then_some("kubernetes.io~projected")
    }
}

/// The number of entries of objects, and of fields, that the volume names. Without items, all entries of an object count as one.
pub(crate) fn entries(volume: &Volume) -> usize {
    fn named<T>(items: &Option<Vec<T>>) -> usize {
        items.as_ref().map_or(1, |items| items.len().max(1))
    }
    let of_source = |source: &VolumeProjection| {
        if let Some(secret) = &source.secret {
            named(&secret.items)
        } else if let Some(map) = &source.config_map {
            named(&map.items)
        } else if let Some(api) = &source.downward_api {
            named(&api.items)
        } else {
            1
        }
    };
    if let Some(map) = &volume.config_map {
        named(&map.items)
    } else if let Some(secret) = &volume.secret {
        named(&secret.items)
    } else if let Some(api) = &volume.downward_api {
        named(&api.items)
    } else if let Some(projected) = &volume.projected {
        projected.sources.iter().flatten().map(of_source).sum()
    } else {
        0
    }
}

/// The files of a volume; none if it does not show objects or fields.
pub(crate) fn payload(
    pod: &Pod,
    volume: &Volume,
    inputs: ContentInputs<'_>,
) -> Result<Payload, ContentError> {
    let writer = Writer { pod, inputs };
    let found = if let Some(map) = &volume.config_map {
        let wanted = Wanted::new(&map.items, map.default_mode, map.optional);
        writer.config_map(&map.name, wanted)?
    } else if let Some(secret) = &volume.secret {
        let name = secret.secret_name.as_deref().unwrap_or_default();
        let wanted = Wanted::new(&secret.items, secret.default_mode, secret.optional);
        writer.secret(name, wanted)?
    } else if let Some(api) = &volume.downward_api {
        let files = api.items.as_deref().unwrap_or_default();
        writer.downward(files, mode(None, api.default_mode))?
    } else if let Some(projected) = &volume.projected {
        let sources = projected.sources.as_deref().unwrap_or_default();
        writer.projected(sources, projected.default_mode)?
    } else {
        Payload::new()
    };
    found.into_iter().map(|(path, content)| Ok((checked(&path)?, content))).collect()
}

/// The path without `.` and doubled slashes, if it stays in the volume and does not conflict with the writer's own names.
fn checked(path: &Path) -> Result<PathBuf, ContentError> {
    let invalid = || ContentError::Path { path: path.display().to_string() };
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(invalid());
            }
        }
    }
    let first = clean.iter().next().ok_or_else(invalid)?;
    if first.as_encoded_bytes().starts_with(b"..") {
        return Err(invalid());
    }
    Ok(clean)
}

fn mode(own: Option<i32>, default: Option<i32>) -> u32 {
    // Validation allows 0 to 0777.
    u32::try_from(own.or(default).unwrap_or(0o644)).unwrap_or(0o644) & 0o777
}

/// Which entries of an object become files, and how.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    items: &'a [KeyToPath],
    default_mode: Option<i32>,
    optional: bool,
}

impl<'a> Wanted<'a> {
    fn new(
        items: &'a Option<Vec<KeyToPath>>,
        default_mode: Option<i32>,
        optional: Option<bool>,
    ) -> Self {
        Self {
            items: items.as_deref().unwrap_or_default(),
            default_mode,
            optional: optional == Some(true),
        }
    }

    /// The files of an object's entries. Without items, every entry becomes a file.
    fn files(
        self,
        entries: Map<&str, &[u8]>,
        missing: impl Fn(String) -> ContentError,
    ) -> Result<Payload, ContentError> {
        let file = |data: &[u8], own: Option<i32>| FileContent {
            data: data.to_vec(),
            mode: mode(own, self.default_mode),
            owner: None,
        };
        let mut files = Files::default();
        if self.items.is_empty() {
            for (key, data) in entries {
                files.insert(PathBuf::from(key), file(data, None))?;
            }
            return Ok(files.files);
        }
        for item in self.items {
            match entries.get(item.key.as_str()) {
                Some(data) => files.insert(PathBuf::from(&item.path), file(data, item.mode))?,
                None if self.optional => {}
                None => return Err(missing(item.key.clone())),
            }
        }
        Ok(files.files)
    }
}

struct Writer<'a> {
    pod: &'a Pod,
    inputs: ContentInputs<'a>,
}

impl Writer<'_> {
    /// The result for an object that was not found: an optional one may be missing only if it is known not to exist.
    fn missing(&self, kind: ObjectKind, name: &str, optional: bool) -> Result<(), ContentError> {
        if let Some(why) = self.inputs.objects.unknown(kind, self.pod.namespace(), name) {
            return Err(ContentError::Unknown { why: why.to_owned() });
        }
        let name = name.to_owned();
        if optional { Ok(()) } else { Err(ContentError::NoObject { kind, name }) }
    }

    fn config_map(&self, name: &str, wanted: Wanted<'_>) -> Result<Payload, ContentError> {
        let found = self.inputs.objects.config_map(self.pod.namespace(), name);
        if found.is_none() {
            self.missing(ObjectKind::ConfigMap, name, wanted.optional)?;
        }
        let mut entries = Map::new();
        if let Some(map) = &found {
            let binary = map.binary_data.iter().flatten();
            entries.extend(binary.map(|(key, data)| (key.as_str(), data.0.as_slice())));
            let text = map.data.iter().flatten();
            entries.extend(text.map(|(key, text)| (key.as_str(), text.as_bytes())));
        }
        wanted.files(entries, |key| ContentError::NoConfigKey { key })
    }

    fn secret(&self, name: &str, wanted: Wanted<'_>) -> Result<Payload, ContentError> {
        let found = self.inputs.objects.secret(self.pod.namespace(), name);
        if found.is_none() {
            self.missing(ObjectKind::Secret, name, wanted.optional)?;
        }
        let entries = found.iter().flat_map(|secret| secret.data.iter().flatten());
        let entries = entries.map(|(key, data)| (key.as_str(), data.0.as_slice())).collect();
        wanted.files(entries, |key| ContentError::NoSecretKey { key })
    }

    fn downward(
        &self,
        items: &[DownwardAPIVolumeFile],
        default_mode: u32,
    ) -> Result<Payload, ContentError> {
        let default_mode = i32::try_from(default_mode).ok();
        let mut errors = Vec::new();
        let mut files = Files::default();
        for item in items {
            match self.downward_text(item) {
                Ok(text) => {
                    let content = FileContent {
                        data: text.into_bytes(),
                        mode: mode(item.mode, default_mode),
                        owner: None,
                    };
                    files.insert(PathBuf::from(&item.path), content)?;
                }
                Err(error) => errors.push(error),
            }
        }
        joined(errors).map_or(Ok(files.files), Err)
    }

    fn downward_text(&self, item: &DownwardAPIVolumeFile) -> Result<String, ContentError> {
        if let Some(wanted) = &item.field_ref {
            Ok(field::in_volume(self.pod, &wanted.field_path)?)
        } else if let Some(wanted) = &item.resource_field_ref {
            Ok(resource::of_named(self.pod, self.inputs.node, wanted)?)
        } else {
            Ok(String::new())
        }
    }

    /// The files of all sources. A later source replaces files of an earlier one.
    fn projected(
        &self,
        sources: &[VolumeProjection],
        default_mode: Option<i32>,
    ) -> Result<Payload, ContentError> {
        let mut errors = Vec::new();
        let mut files = Files::default();
        for source in sources {
            match self.source(source, default_mode) {
                Ok(found) => {
                    for (path, content) in found {
                        files.insert(path, content)?;
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        joined(errors).map_or(Ok(files.files), Err)
    }

    fn source(
        &self,
        source: &VolumeProjection,
        default_mode: Option<i32>,
    ) -> Result<Payload, ContentError> {
        if let Some(secret) = &source.secret {
            let wanted = Wanted::new(&secret.items, default_mode, secret.optional);
            self.secret(&secret.name, wanted)
        } else if let Some(map) = &source.config_map {
            let wanted = Wanted::new(&map.items, default_mode, map.optional);
            self.config_map(&map.name, wanted)
        } else if let Some(api) = &source.downward_api {
            let items = api.items.as_deref().unwrap_or_default();
            self.downward(items, mode(None, default_mode))
        } else if let Some(token) = &source.service_account_token {
            let data = (self.inputs.token)(token)?.into_bytes();
            let content = self.of_user(data, default_mode);
            Ok(Payload::from([(PathBuf::from(&token.path), content)]))
        } else if let Some(bundle) = &source.cluster_trust_bundle {
            let data = self.trust_bundle(bundle)?;
            let content = self.of_user(data, default_mode);
            Ok(Payload::from([(PathBuf::from(&bundle.path), content)]))
        } else if source.pod_certificate.is_some() {
            Err(ContentError::Unsupported { kind: "podCertificate" })
        } else {
            Ok(Payload::new())
        }
    }

    fn trust_bundle(&self, wanted: &ClusterTrustBundleProjection) -> Result<Vec<u8>, ContentError> {
        let found = references::matching_bundles(wanted, self.inputs.objects);
        if found.is_empty() && wanted.optional != Some(true) {
            return Err(match &wanted.name {
                Some(name) => ContentError::NoTrustBundle { name: name.clone() },
                None => ContentError::NoTrustBundleOfSigner,
            });
        }
        Ok(references::bundle_certificates(&found).into_bytes())
    }

    /// A file that only the containers' user, and the volume's group, may read, if there is either.
    fn of_user(&self, data: Vec<u8>, default_mode: Option<i32>) -> FileContent {
        let owner = only_user(self.pod);
        let security = self.pod.spec().security_context.as_ref();
        let group = security.and_then(|security| security.fs_group);
        FileContent {
            data,
            mode: if owner.is_some() || group.is_some() { 0o600 } else { mode(None, default_mode) },
            owner,
        }
    }
}

fn joined(mut errors: Vec<ContentError>) -> Option<ContentError> {
    if errors.len() < 2 {
        return errors.pop();
    }
    Some(ContentError::Several(errors))
}

/// The user of all containers, if the manifest specifies the same one for each. pkg/volume/util/util.go FsUserFrom.
fn only_user(pod: &Pod) -> Option<u32> {
    let shared = pod.spec().security_context.as_ref();
    let shared = shared.and_then(|security| security.run_as_user);
    let user = |container: &Container| {
        let own = container.security_context.as_ref();
        own.and_then(|security| security.run_as_user).or(shared)
    };
    let mut users = pod.all_containers().map(|(_, container)| user(container));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

#[cfg(test)]
mod tests;
