//! The disk usage of container logs.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use agent::cri::stats::LayerStats;
use jiff::Timestamp;

use super::summary::PodReference;

/// The unit of [`MetadataExt::blocks`].
const BLOCK: u64 = 512;

/// The directory of a container's logs; `None` if a name from the runtime is not a valid file name.
pub(super) fn log_directory(logs: &Path, pod: &PodReference, container: &str) -> Option<PathBuf> {
    let of_pod = format!("{}_{}_{}", pod.namespace, pod.name, pod.uid);
    let names = [of_pod.as_str(), container];
    let is_name = |name: &&str| {
        let mut components = Path::new(name).components();
        matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
    };
    names.iter().all(is_name).then(|| logs.join(&of_pod).join(container))
}

/// The disk usage of the files in a directory; `None` if it cannot be read.
pub(super) fn logs(directory: &Path) -> Option<LayerStats> {
    let files = std::fs::read_dir(directory).ok()?;
    let mut sum = LayerStats { at: Timestamp::now(), ..LayerStats::default() };
    let (mut bytes, mut inodes) = (0_u64, 0_u64);
    for file in files {
        // A file may have been rotated away; it counts as empty. Symbolic links are not followed.
        if let Ok(metadata) = file.and_then(|file| file.metadata()) {
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(BLOCK));
            inodes += 1;
        }
    }
    (sum.used_bytes, sum.inodes_used) = (Some(bytes), Some(inodes));
    Some(sum)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("ns", "app", Some("/logs/ns_p_u/app"))]
    #[case("ns", "..", None)]
    #[case("ns", "a/b", None)]
    #[case("../ns", "app", None)]
    #[case("ns", "", None)]
    fn names_of_other_directories_are_refused(
        #[case] namespace: &str,
        #[case] container: &str,
        #[case] expected: Option<&str>,
    ) {
        let pod = PodReference {
            name: "p".to_owned(),
            namespace: namespace.to_owned(),
            uid: "u".to_owned(),
        };
        let directory = log_directory(Path::new("/logs"), &pod, container);
        assert_eq!(directory.as_deref(), expected.map(Path::new));
    }

    #[test]
    fn logs_take_the_blocks_of_their_files() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("0.log"), vec![b'x'; 5000]).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link")).unwrap();
        let used = logs(directory.path()).unwrap();
        assert!(used.used_bytes >= Some(5000), "{used:?}");
        assert_eq!(used.inodes_used, Some(2));
        assert_eq!(logs(&directory.path().join("none")), None);
    }
}
