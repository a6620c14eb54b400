//! Writes all files of a volume atomically: readers see the old files or the new ones.
//!
//! Source: Kubernetes 1.36, pkg/volume/util/atomic_writer.go. The layout of a volume:
//!
//! | name | content |
//! |---|---|
//! | `..2026_11_22_10_00_00.000000001` | the directory with the files |
//! | `..data` | a link to it, which an update replaces |
//! | `config`, `certs` | links to `..data/config` and `..data/certs`: each first part of a path |
//! | `mounted` | a directory, where a container mounts another volume |
//!
//! Containers cannot write to such a volume, so that all of its content is the agent's.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use compact::Set;
use jiff::Timestamp;

use super::content::Payload;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// Whether files were written before. A container's mount point below `..data` does not count.
pub(super) fn is_written(volume: &Path) -> bool {
    let data = volume.join(DATA);
    data.is_symlink() && data.is_dir()
}

/// The size of the files that were written before. Unreadable ones count as empty.
pub(super) fn size(volume: &Path) -> u64 {
    let data = volume.join(DATA);
    let found = paths(&data).unwrap_or_else(|_| Set::new());
    let sizes = found.iter().map(|path| fs::symlink_metadata(data.join(path)));
    sizes.map(|found| found.map_or(0, |found| found.len())).sum()
}

/// Writes a volume's files, if they changed. `own` sets groups and modes before the new files can be seen.
pub(super) fn write(
    volume: &Path,
    files: &Payload,
    now: Timestamp,
    own: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let old = match fs::read_link(volume.join(DATA)) {
        Ok(name) => Some(volume.join(name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let present = match &old {
        Some(old) => paths(old)?,
        None => Set::new(),
    };
    let changed = match &old {
        Some(old) => differs(old, &present, files)?,
        None => true,
    };
    if changed {
        let new = new_directory(volume, now)?;
        let switched = fill(&new, files).and_then(|()| own()).and_then(|()| switch(volume, &new));
        if let Err(error) = switched {
            // The error of the write is the one to return.
            let _ = file_tree::remove(&new);
            return Err(error);
        }
    }
    // If an agent was killed, links may be missing although the files are unchanged.
    link(volume, files)?;
    if changed {
        let kept: Set<&Path> = files.keys().filter_map(|path| first(path)).collect();
        for name in present.iter().filter_map(|path| first(path)) {
            let link = volume.join(name);
            // A mount point below the volume may hide the file.
            if !kept.contains(name)
                && !fs::symlink_metadata(&link).is_ok_and(|found| found.is_dir())
            {
                ignore_not_found(fs::remove_file(link))?;
            }
        }
        if let Some(old) = old {
            file_tree::remove(&old)?;
        }
    }
    Ok(())
}

fn first(path: &Path) -> Option<&Path> {
    path.iter().next().map(Path::new)
}

fn ignore_not_found(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The files below a directory, as relative paths.
fn paths(directory: &Path) -> io::Result<Set<PathBuf>> {
    let mut found = Set::new();
    let mut open = vec![PathBuf::new()];
    while let Some(part) = open.pop() {
        for entry in fs::read_dir(directory.join(&part))? {
            let entry = entry?;
            let path = part.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                open.push(path);
            } else {
                found.insert(path);
            }
        }
    }
    Ok(found)
}

/// Whether the files differ from those in a directory. Modes are ignored, as in a kubelet.
fn differs(directory: &Path, present: &Set<PathBuf>, files: &Payload) -> io::Result<bool> {
    if !present.iter().eq(files.keys()) {
        return Ok(true);
    }
    for (path, content) in files {
        if fs::read(directory.join(path))? != content.data {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Creates a directory named after the time. An update in the same nanosecond uses the next one.
fn new_directory(volume: &Path, now: Timestamp) -> io::Result<PathBuf> {
    let time = now.strftime("..%Y_%m_%d_%H_%M_%S");
    let mut number = now.subsec_nanosecond();
    loop {
        let path = volume.join(format!("{time}.{number:09}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => {
                made?;
                set_mode(&path, 0o755)?;
                return Ok(path);
            }
        }
    }
}

/// Sets the mode, regardless of the umask.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn fill(directory: &Path, files: &Payload) -> io::Result<()> {
    for (path, content) in files {
        let mut parent = directory.to_owned();
        for part in path.parent().into_iter().flatten() {
            parent.push(part);
            match fs::create_dir(&parent) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    made?;
                    set_mode(&parent, 0o755)?;
                }
            }
        }
        let path = directory.join(path);
        fs::write(&path, &content.data)?;
        set_mode(&path, content.mode)?;
        if let Some(owner) = content.owner {
            lchown(&path, Some(owner), None)?;
        }
    }
    Ok(())
}

/// Atomically points the link to the new directory.
fn switch(volume: &Path, new: &Path) -> io::Result<()> {
    let link = volume.join(NEW_DATA);
    ignore_not_found(fs::remove_file(&link))?;
    symlink(new.file_name().unwrap_or_default(), &link)?;
    fs::rename(&link, volume.join(DATA))
}

fn link(volume: &Path, files: &Payload) -> io::Result<()> {
    for (path, content) in files {
        let Some(name) = first(path) else { continue };
        let link = volume.join(name);
        if fs::symlink_metadata(&link).is_ok() {
            continue;
        }
        symlink(Path::new(DATA).join(name), &link)?;
        if let Some(owner) = content.owner {
            lchown(&link, Some(owner), None)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::storage::volumes::content::FileContent;

    fn files(pairs: &[(&str, &str)]) -> Payload {
        let file = |text: &str| FileContent { data: text.into(), mode: 0o440, owner: None };
        pairs.iter().map(|(path, text)| (PathBuf::from(path), file(text))).collect()
    }

    fn update(volume: &Path, pairs: &[(&str, &str)]) {
        let now = "2026-11-22T10:00:00.000000001Z".parse().unwrap();
        write(volume, &files(pairs), now, || Ok(())).unwrap();
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_links_into_the_data_directory() {
        let root = tempfile::tempdir().unwrap();
        update(root.path(), &[("a", "1"), ("d/b", "2"), ("d/e/c", "3")]);
        assert_eq!(names(root.path()), ["..2026_11_22_10_00_00.000000001", "..data", "a", "d"]);
        assert_eq!(fs::read_link(root.path().join("d")).unwrap(), Path::new("..data/d"));
        let file = root.path().join("d/e/c");
        assert_eq!(fs::read_to_string(&file).unwrap(), "3");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&file), 0o440);
        assert_eq!(mode(&root.path().join("d/e")), 0o755);
    }

    #[test]
    fn update_replaces_all_files_and_removes_the_old_ones() {
        let root = tempfile::tempdir().unwrap();
        update(root.path(), &[("a", "1"), ("d/b", "2")]);
        let first = fs::read_link(root.path().join(DATA)).unwrap();
        update(root.path(), &[("a", "1"), ("d/b", "2")]);
        assert_eq!(fs::read_link(root.path().join(DATA)).unwrap(), first);
        update(root.path(), &[("a", "2"), ("c", "3")]);
        let second = fs::read_link(root.path().join(DATA)).unwrap();
        assert_eq!(names(root.path()), [second.to_str().unwrap(), "..data", "a", "c"]);
        assert_eq!(fs::read_to_string(root.path().join("a")).unwrap(), "2");
        update(root.path(), &[]);
        assert_eq!(names(root.path()).len(), 2);
    }

    #[test]
    fn files_stay_when_the_group_cannot_be_set() {
        let root = tempfile::tempdir().unwrap();
        update(root.path(), &[("a", "1")]);
        let before = names(root.path());
        let refused = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let now = "2026-11-22T10:00:01Z".parse().unwrap();
        write(root.path(), &files(&[("a", "2")]), now, refused).unwrap_err();
        assert_eq!(names(root.path()), before);
        assert_eq!(fs::read_to_string(root.path().join("a")).unwrap(), "1");
    }

    /// Kubernetes 1.36, pkg/volume/util/atomic_writer.go Write, step 2: it fails to read the link.
    #[test]
    fn directory_in_place_of_the_link_is_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("..data/y")).unwrap();
        let now = "2026-11-22T10:00:01Z".parse().unwrap();
        let error = write(root.path(), &files(&[("a", "1")]), now, || Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(!is_written(root.path()));
        assert_eq!(names(root.path()), ["..data"]);
    }

    #[test]
    fn missing_link_is_made_again() {
        let root = tempfile::tempdir().unwrap();
        update(root.path(), &[("a", "1")]);
        fs::remove_file(root.path().join("a")).unwrap();
        update(root.path(), &[("a", "1")]);
        assert_eq!(fs::read_to_string(root.path().join("a")).unwrap(), "1");
    }
}
