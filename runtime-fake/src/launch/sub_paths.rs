//! ◆ Mounts of parts of volumes (subPath), which a client names by an annotation of the container. Pure.
//!
//! A container with the volume may replace the part by a link while the mount is made, and a path in `host_path` would follow
//! that link. So the annotation names the volume and the part separately: the keeper opens them without following links, and
//! mounts the opened file or directory.

use std::path::{Component, Path, PathBuf};

use cri::v1::ContainerConfig;
use keeper::contract::plan::{IsolationMode, MountPlan, MountSource};
use serde::Deserialize;

use super::paths;
use super::{Invalid, invalid};

/// The annotation: a list of parts in JSON.
pub(crate) const ANNOTATION: &str = "crib.local/sub-paths";

/// A part of a volume, as the client names it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubPathRequest {
    /// The host path of the mounts of this part.
    path: String,
    /// The host path of the volume.
    volume: String,
    /// The part, relative to the volume; empty for all of it.
    sub_path: String,
}

/// Replaces the source of mounts of the annotation's host paths by the parts of volumes.
pub(super) fn redirect(
    mounts: &mut [MountPlan],
    config: &ContainerConfig,
    isolation: IsolationMode,
) -> Result<(), Invalid> {
    let Some(text) = config.annotations.get(ANNOTATION) else {
        return Ok(());
    };
    let wanted: Vec<SubPathRequest> = match serde_json::from_str(text) {
        Ok(wanted) => wanted,
        Err(error) => {
            return invalid(format!(
                "annotation {ANNOTATION}: expected [{{\"path\": PATH, \"volume\": PATH, \"sub_path\": PATH}}]: {error}"
            ));
        }
    };
    for SubPathRequest { path, volume, sub_path } in wanted {
        for path in [&path, &volume, &sub_path] {
            paths::path(&format!("annotation {ANNOTATION}: path"), path)?;
        }
        if !Path::new(&volume).is_absolute() || !is_plain(&volume) {
            return invalid(format!(
                "annotation {ANNOTATION}: volume {volume:?} is not an absolute path without `..`"
            ));
        }
        if Path::new(&sub_path).is_absolute() || !is_plain(&sub_path) {
            return invalid(format!(
                "annotation {ANNOTATION}: sub_path {sub_path:?} is not a relative path without `..`"
            ));
        }
        let source = MountSource::SubPath {
            volume: PathBuf::from(volume),
            sub_path: PathBuf::from(sub_path),
        };
        let mut found = false;
        for mount in mounts.iter_mut() {
            if matches!(&mount.source, MountSource::Host(host) if host.as_os_str() == path.as_str())
            {
                mount.source = source.clone();
                found = true;
            }
        }
        // Without mount namespaces there are no mounts.
        if !found && isolation != IsolationMode::Process {
            return invalid(format!(
                "annotation {ANNOTATION}: no mount has the host_path {path:?}"
            ));
        }
    }
    Ok(())
}

/// Whether a path has no `..`, and no `.` at its beginning.
fn is_plain(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    parts.all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use keeper::contract::plan::Propagation;
    use rstest::rstest;

    use super::*;

    fn redirected(text: &str, isolation: IsolationMode) -> Result<MountSource, String> {
        let config = ContainerConfig {
            annotations: [(ANNOTATION.to_owned(), text.to_owned())].into(),
            ..ContainerConfig::default()
        };
        let mut mounts = [MountPlan {
            source: MountSource::Host("/pod/part".into()),
            destination: "/mnt".into(),
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
            flags: Vec::new(),
            ids: None,
            relabel: false,
        }];
        redirect(&mut mounts, &config, isolation).map_err(|error| error.0)?;
        let [mount] = mounts;
        Ok(mount.source)
    }

    #[rstest]
    #[case("a/b")]
    #[case("")]
    fn mount_of_the_path_has_the_part_as_source(#[case] sub_path: &str) {
        let text =
            format!(r#"[{{"path": "/pod/part", "volume": "/v", "sub_path": "{sub_path}"}}]"#);
        let expected = MountSource::SubPath { volume: "/v".into(), sub_path: sub_path.into() };
        let found = redirected(&text, IsolationMode::Rootless);
        assert_eq!(found, Ok(expected));
    }

    #[rstest]
    #[case("{}", "expected [")]
    #[case(r#"[{"path": "/pod/part", "volume": "/v"}]"#, "missing field `sub_path`")]
    #[case(r#"[{"path": "/pod/part", "volume": "v", "sub_path": ""}]"#, "is not an absolute path")]
    #[case(
        r#"[{"path": "/pod/part", "volume": "/v/../w", "sub_path": ""}]"#,
        "is not an absolute path"
    )]
    #[case(
        r#"[{"path": "/pod/part", "volume": "/v", "sub_path": "/a"}]"#,
        "is not a relative path"
    )]
    #[case(
        r#"[{"path": "/pod/part", "volume": "/v", "sub_path": "a/../.."}]"#,
        "is not a relative path"
    )]
    #[case(r#"[{"path": "/pod/part", "volume": "/v", "sub_path": "\u0000"}]"#, "NUL byte")]
    #[case(
        r#"[{"path": "/other", "volume": "/v", "sub_path": "a"}]"#,
        "no mount has the host_path"
    )]
    fn bad_annotations_are_refused(#[case] text: &str, #[case] reason: &str) {
        let error = redirected(text, IsolationMode::Root).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}
