//! The files of one container's log: the one that is written to, and the rotated ones beside it.

use std::io;
use std::path::Path;

/// Removes a log with its rotated files (Kubernetes 1.36, pkg/kubelet/logs/container_log_manager.go Clean). They may not
/// exist. Blocks on the file system.
pub(crate) fn remove(log: &Path) {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name()) else {
        return;
    };
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    let files = entries.flatten().filter(|entry| {
        let file = entry.file_name();
        file.as_encoded_bytes().starts_with(name.as_encoded_bytes())
    });
    for file in files {
        match std::fs::remove_file(file.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %file.path().display(), %error, "failed to remove log");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rotated_files_are_removed_with_the_log() {
        let root = tempfile::tempdir().unwrap();
        for name in
            ["1.log", "1.log.20260301-120000.gz", "1.log.20260301-130000", "2.log", "11.log"]
        {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        remove(&root.path().join("1.log"));
        remove(&root.path().join("7.log"));
        remove(&root.path().join("none/1.log"));
        let left = std::fs::read_dir(root.path()).unwrap();
        let mut left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["11.log", "2.log"]);
    }
}
