//! ◆ In-memory volumes of a pod, which its client requests by an annotation of the sandbox. Pure.
//!
//! The CRI has no such volumes: a kubelet mounts them itself. The keeper mounts these in the pod's mount namespace. A container's
//! mount whose host path is such a volume's path, or below it, uses the volume as its source.

use std::path::{Component, Path, PathBuf};

use cri::v1::PodSandboxConfig;
use keeper::contract::plan::{IsolationMode, MemoryVolume, MountPlan, MountSource};
use serde::Deserialize;

use super::{Invalid, invalid};

/// The annotation: a list of volumes in JSON.
pub(crate) const ANNOTATION: &str = "crib.local/memory-volumes";

/// Limit on the in-memory volumes of a pod.
const MOST: usize = 256;

/// A volume, as the client requests it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeRequest {
    /// The host path by which mounts of containers name it. It need not exist.
    path: PathBuf,
    /// Its size in bytes.
    size: u64,
    /// The group that owns it.
    #[serde(default)]
    group: Option<u32>,
}

/// The in-memory volumes of a pod. They are mounted below the sandbox's directory.
pub(super) fn volumes(
    config: &PodSandboxConfig,
    isolation: IsolationMode,
    directory: &Path,
) -> Result<Vec<MemoryVolume>, Invalid> {
    let Some(text) = config.annotations.get(ANNOTATION) else {
        return Ok(Vec::new());
    };
    let wanted: Vec<VolumeRequest> = match serde_json::from_str(text) {
        Ok(wanted) => wanted,
        Err(error) => {
            return invalid(format!(
                "annotation {ANNOTATION}: expected [{{\"path\": PATH, \"size\": BYTES}}]: {error}"
            ));
        }
    };
    if !wanted.is_empty() && isolation == IsolationMode::Process {
        return invalid(
            "volumes in memory (emptyDir medium Memory) need a mount namespace, which isolation process lacks: leave medium out",
        );
    }
    if wanted.len() > MOST {
        return invalid(format!("annotation {ANNOTATION}: more than {MOST} volumes"));
    }
    let mut volumes = Vec::new();
    for (index, volume) in wanted.into_iter().enumerate() {
        let VolumeRequest { path, size, group } = volume;
        let is_plain =
            |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !path.is_absolute() || !path.components().all(is_plain) || path == Path::new("/") {
            return invalid(format!(
                "annotation {ANNOTATION}: path {path:?} is not an absolute path without `..`"
            ));
        }
        if size == 0 {
            return invalid(format!("annotation {ANNOTATION}: size of {path:?} is 0"));
        }
        volumes.push(MemoryVolume {
            path,
            at: directory.join("memory").join(index.to_string()),
            size,
            group,
        });
    }
    Ok(volumes)
}

/// Replaces the source of mounts that name an in-memory volume, or a part of one, by that volume.
pub(super) fn redirect(mounts: &mut [MountPlan], volumes: &[MemoryVolume]) {
    for mount in mounts {
        let MountSource::Host(path) = &mount.source else {
            continue;
        };
        let found = volumes.iter().find_map(|volume| {
            let sub_path = path.strip_prefix(&volume.path).ok()?;
            Some(MountSource::Memory { at: volume.at.clone(), sub_path: sub_path.to_owned() })
        });
        if let Some(found) = found {
            mount.source = found;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use keeper::contract::plan::Propagation;
    use rstest::rstest;

    use super::*;

    fn planned(text: &str, isolation: IsolationMode) -> Result<Vec<MemoryVolume>, String> {
        let config = PodSandboxConfig {
            annotations: [(ANNOTATION.to_owned(), text.to_owned())].into(),
            ..PodSandboxConfig::default()
        };
        volumes(&config, isolation, Path::new("/s")).map_err(|error| error.0)
    }

    #[rstest]
    #[case("{}", "expected [")]
    #[case(r#"[{"path": "/v"}]"#, "missing field `size`")]
    #[case(r#"[{"path": "/v", "size": 1, "mode": 1}]"#, "unknown field `mode`")]
    #[case(r#"[{"path": "/v", "size": -1}]"#, "invalid value")]
    #[case(r#"[{"path": "/v", "size": 0}]"#, "is 0")]
    #[case(r#"[{"path": "v", "size": 1}]"#, "not an absolute path")]
    #[case(r#"[{"path": "/", "size": 1}]"#, "not an absolute path")]
    #[case(r#"[{"path": "/v/../w", "size": 1}]"#, "not an absolute path")]
    fn bad_annotations_are_refused(#[case] text: &str, #[case] reason: &str) {
        let error = planned(text, IsolationMode::Root).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn process_isolation_has_no_volumes_in_memory() {
        let error = planned(r#"[{"path": "/v", "size": 1}]"#, IsolationMode::Process).unwrap_err();
        assert!(error.ends_with("leave medium out"), "{error}");
        assert_eq!(planned("[]", IsolationMode::Process), Ok(Vec::new()));
    }

    #[rstest]
    #[case("/v", Some(""))]
    #[case("/v/a/b", Some("a/b"))]
    #[case("/vv", None)]
    #[case("/", None)]
    fn mounts_below_the_path_have_the_volume_as_source(
        #[case] path: &str,
        #[case] sub_path: Option<&str>,
    ) {
        let volumes =
            planned(r#"[{"path": "/v", "size": 4096, "group": 7}]"#, IsolationMode::Rootless);
        let volumes = volumes.unwrap();
        assert_eq!((volumes[0].size, volumes[0].group), (4096, Some(7)));
        let host = MountSource::Host(path.into());
        let mut mounts = [MountPlan {
            source: host.clone(),
            destination: "/mnt".into(),
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
            flags: Vec::new(),
            ids: None,
            relabel: false,
        }];
        redirect(&mut mounts, &volumes);
        let expected = sub_path.map_or(host, |sub_path| MountSource::Memory {
            at: "/s/memory/0".into(),
            sub_path: sub_path.into(),
        });
        assert_eq!(mounts[0].source, expected);
    }
}
