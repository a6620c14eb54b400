//! A pod's files on the node: emptyDir and hostPath volumes, its `etc-hosts` file, termination messages, logs.
//!
//! Paths as in Kubernetes 1.36, pkg/kubelet/kubelet_getters.go. All functions block on the file system; call them from a
//! blocking thread.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use file_tree::Trash;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Volume};

use crate::config::Config;
use crate::pod::{Pod, PodUid};

pub(crate) mod termination;

/// The directories of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodDirs {
    /// `<root>/pods/<uid>`
    pub(crate) pod: PathBuf,
    /// `<logs>/<namespace>_<name>_<uid>`
    pub(crate) logs: PathBuf,
}

/// An error of a volume or pod directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    /// An I/O error.
    #[error("failed to {action} {path}")]
    Io {
        /// The failed operation.
        action: &'static str,
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The path is not of the volume's type.
    #[error("hostPath volume {volume}: {path} is not {expected}")]
    WrongType {
        /// The volume's name.
        volume: String,
        /// Its path.
        path: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The volume's type is unknown.
    #[error("hostPath volume {volume}: unknown type {kind:?}")]
    UnknownType {
        /// The volume's name.
        volume: String,
        /// The type.
        kind: String,
    },
    /// The agent does not support this kind of volume.
    #[error("volume {volume}: only emptyDir and hostPath are supported")]
    Unsupported {
        /// The volume's name.
        volume: String,
    },
}

impl VolumeError {
    /// True if the manifest asks for what no attempt can give.
    pub(crate) fn is_of_manifest(&self) -> bool {
        match self {
            Self::UnknownType { .. } | Self::Unsupported { .. } => true,
            Self::Io { .. } | Self::WrongType { .. } => false,
        }
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.display().to_string();
    move |source| VolumeError::Io {
        action,
        path,
        source,
    }
}

impl PodDirs {
    /// Computes the directories of a pod without creating them.
    pub(crate) fn new(config: &Config, uid: &PodUid, namespace: &str, name: &str) -> Self {
        Self {
            pod: config.root_dir.join("pods").join(component(uid.as_str())),
            logs: config
                .pod_logs_dir
                .join(component(&format!("{namespace}_{name}_{uid}"))),
        }
    }

    /// The pod's `/etc/hosts`.
    pub(crate) fn etc_hosts(&self) -> PathBuf {
        self.pod.join("etc-hosts")
    }

    /// The termination message file of a container's attempt.
    pub(crate) fn termination_message(&self, container: &str, attempt: u32) -> PathBuf {
        self.pod
            .join("containers")
            .join(container)
            .join(format!("{attempt:08x}"))
    }

    /// Creates the directories and volumes of a pod and returns each volume's path. Existing ones are left unchanged.
    ///
    /// # Errors
    /// Returns the error of the first volume that fails.
    pub(crate) fn prepare(&self, pod: &Pod) -> Result<BTreeMap<String, PathBuf>, VolumeError> {
        make_dir(&self.pod, 0o750)?;
        make_dir(&self.logs, 0o750)?;
        let volumes = pod.spec().volumes.as_deref().unwrap_or_default();
        volumes
            .iter()
            .map(|volume| Ok((volume.name.clone(), self.volume(volume)?)))
            .collect()
    }

    fn volume(&self, volume: &Volume) -> Result<PathBuf, VolumeError> {
        if let Some(empty) = &volume.empty_dir {
            if empty
                .medium
                .as_deref()
                .is_some_and(|medium| !medium.is_empty())
            {
                tracing::warn!(volume = %volume.name, medium = empty.medium, "emptyDir medium is not supported; using a directory");
            }
            let path = self
                .pod
                .join("volumes")
                .join("kubernetes.io~empty-dir")
                .join(&volume.name);
            make_dir(&path, 0o777)?;
            return Ok(path);
        }
        match &volume.host_path {
            Some(source) => host_path(&volume.name, source),
            None => Err(VolumeError::Unsupported {
                volume: volume.name.clone(),
            }),
        }
    }

    /// Writes the pod's hosts file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn write_etc_hosts(&self, text: &str) -> Result<PathBuf, VolumeError> {
        let path = self.etc_hosts();
        fs::write(&path, text).map_err(failed("write", &path))?;
        set_mode(&path, 0o644)?;
        Ok(path)
    }

    /// Creates the empty termination message file of a container, writable by every user, and removes that of the attempt
    /// before the last one.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub(crate) fn make_termination_message(
        &self,
        container: &str,
        attempt: u32,
    ) -> Result<PathBuf, VolumeError> {
        let path = self.termination_message(container, attempt);
        if let Some(parent) = path.parent() {
            make_dir(parent, 0o750)?;
        }
        if let Some(old) = attempt.checked_sub(2) {
            // Ignore errors: an obsolete file is harmless.
            let _ = fs::remove_file(self.termination_message(container, old));
        }
        fs::write(&path, "").map_err(failed("create", &path))?;
        set_mode(&path, 0o666)?;
        Ok(path)
    }

    /// The restart count of a container that the runtime does not have: one more than its newest log file `<n>.log`.
    /// Kubernetes 1.36, pkg/kubelet/kuberuntime, calcRestartCountByLogDir.
    pub(crate) fn restart_count_by_logs(&self, container: &str) -> u32 {
        let Ok(entries) = fs::read_dir(self.logs.join(container)) else {
            return 0;
        };
        let number = |name: &str| {
            name.split_once(".log")
                .and_then(|(number, _)| number.parse::<u32>().ok())
        };
        let newest = entries
            .flatten()
            .filter_map(|entry| number(entry.file_name().to_str()?))
            .max();
        newest.map_or(0, |newest| newest.saturating_add(1))
    }

    /// Removes the log of a removed attempt, if it is in the pod's own log directory.
    pub(crate) fn remove_log(&self, log: &Path) {
        if log.starts_with(&self.logs)
            && !log
                .components()
                .any(|part| part == std::path::Component::ParentDir)
        {
            // It may not exist.
            let _ = fs::remove_file(log);
        }
    }

    /// Removes the pod's directory, and its logs if `logs`.
    ///
    /// # Errors
    /// Fails if anything cannot be removed; the rest is removed.
    pub(crate) fn remove(&self, trash: &Trash, logs: bool) -> Result<(), VolumeError> {
        // Deleting the volumes' content may take long, so move it to the trash.
        let pod = trash.put(&self.pod).map_err(failed("remove", &self.pod));
        let logs = if logs {
            file_tree::remove(&self.logs)
                .map_err(|error| failed("remove", &self.logs)(error.into()))
        } else {
            Ok(())
        };
        pod.and(logs)
    }
}

/// Converts a name from a manifest or label to a single path component, so that it cannot escape its directory.
pub(crate) fn component(name: &str) -> String {
    match name {
        "" | "." | ".." => format!("_{name}"),
        _ => name.replace('/', "_"),
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<(), VolumeError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(failed("set the mode of", path))
}

/// Creates a directory and its parents. A new directory gets exactly this mode, regardless of the umask.
fn make_dir(path: &Path, mode: u32) -> Result<(), VolumeError> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path).map_err(failed("create", path))?;
    set_mode(path, mode)
}

/// Checks the path of a hostPath volume, and creates it if its type says so. Kubernetes 1.36, pkg/volume/hostpath.
fn host_path(volume: &str, source: &HostPathVolumeSource) -> Result<PathBuf, VolumeError> {
    let path = PathBuf::from(&source.path);
    let kind = source.type_.as_deref().unwrap_or_default();
    let found = fs::metadata(&path).ok().map(|found| found.file_type());
    match (kind, &found) {
        ("DirectoryOrCreate", None) => make_dir(&path, 0o755)?,
        ("FileOrCreate", None) => {
            fs::write(&path, "").map_err(failed("create", &path))?;
            set_mode(&path, 0o644)?;
        }
        _ => {}
    }
    let is = |test: fn(&fs::FileType) -> bool| found.as_ref().is_some_and(test);
    let (fits, expected) = match kind {
        "" => (true, ""),
        "DirectoryOrCreate" => (found.is_none() || is(fs::FileType::is_dir), "a directory"),
        "Directory" => (is(fs::FileType::is_dir), "a directory"),
        "FileOrCreate" => (found.is_none() || is(fs::FileType::is_file), "a file"),
        "File" => (is(fs::FileType::is_file), "a file"),
        "Socket" => (is(FileTypeExt::is_socket), "a socket"),
        "CharDevice" => (is(FileTypeExt::is_char_device), "a character device"),
        "BlockDevice" => (is(FileTypeExt::is_block_device), "a block device"),
        other => {
            return Err(VolumeError::UnknownType {
                volume: volume.to_owned(),
                kind: other.to_owned(),
            });
        }
    };
    if fits {
        Ok(path)
    } else {
        Err(VolumeError::WrongType {
            volume: volume.to_owned(),
            path: source.path.clone(),
            expected,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn pod(volumes: serde_json::Value) -> Pod {
        let pod = json!({"metadata": {"name": "p", "uid": "u1"}, "spec": {"containers": [], "volumes": volumes}});
        Pod::new(serde_json::from_value(pod).unwrap())
    }

    fn dirs(root: &Path) -> PodDirs {
        PodDirs::new(
            &Config::new(root.join("root"), root.join("logs")),
            &PodUid::new("u1"),
            "default",
            "p",
        )
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn empty_dir_is_world_writable_and_keeps_content() {
        let root = tempfile::tempdir().unwrap();
        let (dirs, pod) = (
            dirs(root.path()),
            pod(json!([{"name": "shared", "emptyDir": {}}])),
        );
        let path = dirs.prepare(&pod).unwrap()["shared"].clone();
        assert_eq!(
            path,
            root.path()
                .join("root/pods/u1/volumes/kubernetes.io~empty-dir/shared")
        );
        assert_eq!(mode(&path), 0o777);
        fs::write(path.join("f"), "x").unwrap();
        dirs.prepare(&pod).unwrap();
        assert_eq!(fs::read_to_string(path.join("f")).unwrap(), "x");
        let trash = Trash::new(root.path().join("root/trash"));
        dirs.remove(&trash, true).unwrap();
        assert!(!root.path().join("root/pods/u1").exists());
        assert!(!root.path().join("logs/default_p_u1").exists());
        dirs.remove(&trash, true).unwrap();
    }

    #[rstest]
    #[case("", "missing", true)]
    #[case("Directory", "dir", true)]
    #[case("Directory", "file", false)]
    #[case("Directory", "missing", false)]
    #[case("DirectoryOrCreate", "missing", true)]
    #[case("DirectoryOrCreate", "file", false)]
    #[case("File", "file", true)]
    #[case("File", "dir", false)]
    #[case("FileOrCreate", "missing", true)]
    #[case("Socket", "socket", true)]
    #[case("Socket", "file", false)]
    #[case("CharDevice", "file", false)]
    #[case("BlockDevice", "dir", false)]
    #[case("Nonsense", "dir", false)]
    fn host_path_type_is_checked(#[case] kind: &str, #[case] name: &str, #[case] fits: bool) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("dir")).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        let path = root.path().join(name);
        let pod = pod(json!([{"name": "v", "hostPath": {"path": path, "type": kind}}]));
        assert_eq!(dirs(root.path()).prepare(&pod).is_ok(), fits);
        assert_eq!(
            path.exists(),
            name != "missing" || kind.ends_with("OrCreate")
        );
        if kind == "DirectoryOrCreate" && fits {
            assert_eq!(mode(&path), 0o755);
        }
    }

    #[rstest]
    #[case("..", "_..")]
    #[case("", "_")]
    #[case("../../etc", ".._.._etc")]
    #[case("u1", "u1")]
    fn uid_cannot_escape_root_directory(#[case] uid: &str, #[case] name: &str) {
        let config = Config::new("/r".into(), "/l".into());
        assert_eq!(
            PodDirs::new(&config, &PodUid::new(uid), "n", "p").pod,
            Path::new("/r/pods").join(name)
        );
    }

    #[test]
    fn unsupported_volume_is_rejected_by_name() {
        let root = tempfile::tempdir().unwrap();
        let error = dirs(root.path())
            .prepare(&pod(json!([{"name": "s", "secret": {"secretName": "x"}}])))
            .unwrap_err();
        assert!(
            error.to_string().starts_with("volume s: only emptyDir"),
            "{error}"
        );
    }

    #[test]
    fn restart_count_is_taken_from_logs() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        assert_eq!(dirs.restart_count_by_logs("app"), 0);
        fs::create_dir_all(dirs.logs.join("app")).unwrap();
        for name in ["0.log", "4.log", "3.log.20260101-000000.gz", "x.log"] {
            fs::write(dirs.logs.join("app").join(name), "").unwrap();
        }
        assert_eq!(dirs.restart_count_by_logs("app"), 5);
    }

    #[test]
    fn termination_message_file_is_empty_and_world_writable() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let path = dirs.make_termination_message("app", 3).unwrap();
        assert!(path.ends_with("pods/u1/containers/app/00000003"));
        assert_eq!(
            (mode(&path), fs::read_to_string(&path).unwrap().len()),
            (0o666, 0)
        );
        dirs.make_termination_message("app", 4).unwrap();
        assert!(path.exists());
        dirs.make_termination_message("app", 5).unwrap();
        assert!(!path.exists(), "two attempts later it is forgotten");
    }
}
