//! ◆ The record of an image, as callers see it and as it is stored on disk.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::formats::Configuration;
use crate::formats::digest::Digest;
use crate::formats::script::Script;

/// The label of an embedded image's configuration for its behaviour script.
pub(crate) const SCRIPT_LABEL: &str = "crib.local/behave";

/// An image's ID: the digest of its configuration, `sha256:…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ImageId(pub Digest);

impl std::fmt::Display for ImageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The container defaults of an image (OCI image specification 1.1, config.md). An empty field is unset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// `KEY=value`, in order.
    pub env: Vec<String>,
    /// The first part of the command line.
    pub entrypoint: Vec<String>,
    /// The rest of the command line, or all of it without an entrypoint.
    pub cmd: Vec<String>,
    /// `user`, `uid`, `user:group` or `uid:gid`.
    pub user: String,
    /// Absolute path in the image.
    pub working_dir: String,
    /// `SIGTERM`, `TERM` or a number.
    pub stop_signal: String,
    /// Paths for volumes.
    pub volumes: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

impl ImageConfig {
    /// Extracts the defaults from an image configuration.
    pub(crate) fn of(config: &Configuration) -> Self {
        let config = config.config.clone().unwrap_or_default();
        Self {
            env: config.env.unwrap_or_default(),
            entrypoint: config.entrypoint.unwrap_or_default(),
            cmd: config.cmd.unwrap_or_default(),
            user: config.user.unwrap_or_default(),
            working_dir: config.working_dir.unwrap_or_default(),
            stop_signal: config.stop_signal.unwrap_or_default(),
            volumes: config.volumes.unwrap_or_default().into_keys().collect(),
            labels: config.labels.unwrap_or_default(),
        }
    }

    /// The user in the form of a CRI `Image`: a number or a name, never both, without the group (CRI v1, message
    /// Image, fields uid and username; critest "image should have uid/username").
    pub fn user(&self) -> UserName {
        let user = self.user.split(':').next().unwrap_or_default();
        match user.parse::<u32>() {
            Ok(uid) => UserName::Uid(uid),
            Err(_) if user.is_empty() => UserName::Unset,
            Err(_) => UserName::Name(user.to_owned()),
        }
    }
}

/// The user part of [`ImageConfig::user`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserName {
    /// The image sets no user.
    Unset,
    /// A number.
    Uid(u32),
    /// A name, to be looked up in the image's own `/etc/passwd`.
    Name(String),
}

/// The source of an image's root file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Content {
    /// The host's own root.
    Host,
    /// Unpacked layers by their chain IDs, from the bottom up.
    Layers(Vec<Digest>),
}

/// One image in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Its ID.
    pub id: ImageId,
    /// `repository:tag`, sorted.
    pub tags: BTreeSet<String>,
    /// `repository@sha256:…`, sorted. An image from a docker archive has none.
    pub digests: BTreeSet<String>,
    /// Bytes: the lengths of all files of its layers, its manifest and its configuration. More than 0. For the host's image only
    /// its configuration, because the store keeps nothing else of it.
    pub size: u64,
    /// Whether it is pinned, apart from the names pinned in the configuration.
    pub pinned: bool,
    /// Its container defaults.
    pub config: ImageConfig,
    /// Its root file system.
    pub(crate) content: Content,
    /// Digests of the index and manifest that it was pulled by, and its ID.
    pub(crate) targets: BTreeSet<Digest>,
    /// Digests of its stored documents.
    pub(crate) blobs: BTreeSet<Digest>,
    /// Increases with each write: of two records with the same name, the one with the higher serial keeps it.
    pub(crate) serial: u64,
}

impl ImageRecord {
    /// The behaviour script of its containers. A pulled image has none, even if a label contains one.
    pub fn script(&self) -> Option<Script> {
        match &self.content {
            Content::Host => self.config.labels.get(SCRIPT_LABEL)?.parse().ok(),
            Content::Layers(_) => None,
        }
    }

    /// The chain IDs of its layers.
    pub fn chains(&self) -> &[Digest] {
        match &self.content {
            Content::Host => &[],
            Content::Layers(chains) => chains,
        }
    }
}

/// The record beside an unpacked layer. Its existence means that the layer is complete and verified. Only an image record that
/// names the layer guarantees that it is synced to disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    /// Digest of the tar stream.
    pub(crate) diff_id: Digest,
    /// How owners and whiteouts are stored: a daemon with other privileges cannot use the layer.
    pub(crate) style: String,
    /// Sum of the lengths of its files.
    pub(crate) file_bytes: u64,
    /// Its disk usage in bytes.
    pub(crate) disk_bytes: u64,
    /// Files, directories and links.
    pub(crate) inodes: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", UserName::Unset)]
    #[case("0", UserName::Uid(0))]
    #[case("1002", UserName::Uid(1002))]
    #[case("1002:1002", UserName::Uid(1002))]
    #[case("1002:www-data", UserName::Uid(1002))]
    #[case("www-data", UserName::Name("www-data".to_owned()))]
    #[case("www-data:33", UserName::Name("www-data".to_owned()))]
    #[case("-1", UserName::Name("-1".to_owned()))]
    fn image_user_is_parsed(#[case] user: &str, #[case] want: UserName) {
        assert_eq!(ImageConfig { user: user.to_owned(), ..ImageConfig::default() }.user(), want);
    }

    #[test]
    fn docker_configuration_accepts_nulls() {
        let text = r#"{"architecture":"amd64","os":"linux","created":"2020-01-01T00:00:00Z","history":null,
            "config":{"Hostname":"","User":"7","Env":["A=b"],"Cmd":null,"Entrypoint":["/x"],"Volumes":{"/data":{}},
            "Labels":null,"OnBuild":null,"ExposedPorts":{"80/tcp":{}},"StopSignal":"SIGINT","WorkingDir":"/w"},
            "rootfs":{"type":"layers","diff_ids":[]}}"#;
        let config = ImageConfig::of(&serde_json::from_str(text).unwrap());
        let want = ImageConfig {
            env: vec!["A=b".to_owned()],
            entrypoint: vec!["/x".to_owned()],
            user: "7".to_owned(),
            working_dir: "/w".to_owned(),
            stop_signal: "SIGINT".to_owned(),
            volumes: vec!["/data".to_owned()],
            ..ImageConfig::default()
        };
        assert_eq!(config, want);
    }
}
