//! Parts of volumes that containers mount (subPath), and files of environment variables in volumes.
//!
//! Source: Kubernetes 1.36, pkg/volume/util/subpath. A kubelet bind-mounts the part; the agent makes no mounts, and creates a link
//! to it. crib's own runtime does not follow that link: an annotation of the container has the volume and the part, which the
//! runtime opens without following links.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use file_tree::part::{self, Part};
use serde_json::json;

use crate::pod_spec::spec::SubPath;

/// Annotation of containers: a list of parts in JSON, each with the host path by which a mount refers to it, its volume, and its
/// path in the volume (docs/cri.md).
pub(crate) const ANNOTATION: &str = "crib.local/sub-paths";

/// Why a part of a volume cannot be mounted. The message reveals nothing about the node's files, because the pod's author reads it.
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    /// It cannot be created.
    #[error(
        "failed to create subPath directory for volumeMount {volume:?} of container {container:?}"
    )]
    Create {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is not in the volume, or cannot be linked to.
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    Prepare {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A part of a volume that can be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    link: PathBuf,
    part: Part,
}

/// The annotation for a container with these parts of volumes.
pub(crate) fn annotation(prepared: &[Prepared]) -> String {
    let parts = prepared.iter().map(|Prepared { link, part }| {
        json!({
            "path": link.to_string_lossy(),
            "volume": part.tree.to_string_lossy(),
            "sub_path": part.path.to_string_lossy(),
        })
    });
    parts.collect::<serde_json::Value>().to_string()
}

/// Creates the missing directories of a part of a volume, with the mode of the volume, and a link to the part.
///
/// # Errors
/// If the part is outside of the volume or below a file, or the file system fails.
pub fn prepare(wanted: &SubPath) -> Result<Prepared, SubPathError> {
    let (volume, container) = (wanted.volume.clone(), wanted.container.clone());
    // Any error other than NotFound occurs again below.
    let path = wanted.volume_path.join(part::without_dots(&wanted.path));
    let missing = fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if missing && let Err(source) = part::make_directories(&wanted.volume_path, &wanted.path) {
        return Err(SubPathError::Create { volume, container, source });
    }
    let link = wanted.link.clone();
    match make_link(wanted) {
        Ok(part) => Ok(Prepared { link, part }),
        Err(source) => Err(SubPathError::Prepare { volume, container, source }),
    }
}

/// Creates a link to the resolved path in the volume.
fn make_link(wanted: &SubPath) -> io::Result<Part> {
    let part = part::find(&wanted.volume_path, &wanted.path)?;
    let found = part.full_path();
    if found.to_str().is_none() {
        let problem = "the path is not UTF-8";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    if fs::read_link(&wanted.link).is_ok_and(|target| target == found) {
        return Ok(part);
    }
    if let Some(parent) = wanted.link.parent() {
        fs::create_dir_all(parent)?;
    }
    let new = wanted.link.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    symlink(&found, &new)?;
    fs::rename(&new, &wanted.link)?;
    Ok(part)
}

/// The path of a file in a volume as messages show it, and its content if it is a regular file of at most a megabyte.
pub(crate) fn read_file(volume: &Path, path: &Path) -> (PathBuf, Option<String>) {
    const MOST: u64 = 1 << 20;
    let read = || -> io::Result<String> {
        let file = part::open_file(volume, path)?;
        if file.metadata()?.len() > MOST {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    (volume.join(part::without_dots(path)), read().ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    fn part(root: &Path, path: &str) -> SubPath {
        SubPath {
            volume: "v".to_owned(),
            container: "c".to_owned(),
            volume_path: root.join("volume"),
            path: path.into(),
            link: root.join("pod/volume-subpaths/v/c/0"),
        }
    }

    fn volume() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volume");
        fs::create_dir_all(volume.join("dir")).unwrap();
        fs::create_dir(root.path().join("outside")).unwrap();
        fs::write(volume.join("file"), "x").unwrap();
        symlink("dir", volume.join("inward")).unwrap();
        symlink("../outside", volume.join("outward")).unwrap();
        symlink("nowhere", volume.join("dangling")).unwrap();
        root
    }

    #[rstest]
    #[case("dir", "dir")]
    #[case("./dir//", "dir")]
    #[case("file", "file")]
    #[case("inward", "dir")]
    #[case(".", "")]
    #[case("new/deep", "new/deep")]
    #[case("inward/new", "dir/new")]
    fn part_is_made_and_linked(#[case] path: &str, #[case] target: &str) {
        let root = volume();
        let part = part(root.path(), path);
        prepare(&part).unwrap();
        let prepared = prepare(&part).unwrap();
        let volume = fs::canonicalize(root.path().join("volume")).unwrap();
        let found = fs::canonicalize(volume.join(target)).unwrap();
        assert_eq!(fs::read_link(&part.link).unwrap(), found);
        let expected = json!([{"path": part.link, "volume": volume, "sub_path": target}]);
        assert_eq!(annotation(&[prepared]), expected.to_string());
    }

    #[rstest]
    #[case("outward", "failed to prepare")]
    #[case("outward/new", "failed to create")]
    #[case("dangling", "failed to create")]
    #[case("dangling/new", "failed to create")]
    #[case("file/new", "failed to prepare")]
    fn part_outside_of_volume_is_refused(#[case] path: &str, #[case] message: &str) {
        let root = volume();
        let part = part(root.path(), path);
        let error = prepare(&part).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
        assert!(fs::read_link(&part.link).is_err());
        let mut outside = fs::read_dir(root.path().join("outside")).unwrap();
        assert!(outside.next().is_none());
    }

    #[test]
    fn files_are_read_inside_of_volume() {
        let root = volume();
        let volume = root.path().join("volume");
        fs::write(root.path().join("outside/secret"), "x").unwrap();
        let read = |path: &str| read_file(&volume, Path::new(path));
        assert_eq!(read("file"), (volume.join("file"), Some("x".to_owned())));
        assert_eq!(read("outward/secret").1, None);
        assert_eq!(read("dir").1, None);
    }
}
