//! The files of one container's log: the current one, and the rotated ones beside it, which are removed and compressed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::plan::{self, COMPRESSED, UNFINISHED};

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

/// Removes rotated files of `log` until there is room for one more.
pub(super) fn remove_excess(log: &Path, max_files: usize) -> io::Result<()> {
    let (Some(directory), Some(name)) =
        (log.parent(), log.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    let prefix = format!("{name}.");
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        if let Ok(name) = entry?.file_name().into_string()
            && name.starts_with(&prefix)
        {
            names.push(name);
        }
    }
    let plan = plan::plan_rotation(names, max_files);
    for name in plan.remove {
        fs::remove_file(directory.join(name))?;
    }
    for name in plan.compress {
        compress(directory, &name)?;
    }
    Ok(())
}

/// Replaces a file by `NAME.gz` with the same mode. It is first written under another name, so that `NAME.gz` is always complete.
fn compress(directory: &Path, name: &str) -> io::Result<()> {
    let (from, unfinished) = (directory.join(name), directory.join(format!("{name}{UNFINISHED}")));
    let mut log = OpenOptions::new().read(true).open(&from)?;
    let written = write_compressed(&mut log, &unfinished);
    if written.is_err() {
        // If the removal fails, the next rotation removes the file.
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    fs::rename(&unfinished, directory.join(format!("{name}{COMPRESSED}")))?;
    fs::remove_file(from)
}

fn write_compressed(log: &mut File, to: &Path) -> io::Result<()> {
    let permissions = log.metadata()?.permissions();
    let out = create(to, permissions.mode())?;
    // The umask may have removed permissions.
    out.set_permissions(permissions)?;
    let mut encoder = GzEncoder::new(out, Compression::default());
    io::copy(log, &mut encoder)?;
    encoder.finish()?;
    Ok(())
}

/// Creates a file that is at no time readable by other users than this mode permits: a user who opens it earlier keeps it open.
fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(mode & 0o7777).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn compressed_log_is_created_without_permissions_that_the_log_lacks() {
        let root = tempfile::tempdir().unwrap();
        let file = create(&root.path().join("1.log.gz.tmp"), 0o100_600).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0);
    }

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
