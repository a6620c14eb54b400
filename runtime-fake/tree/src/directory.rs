//! Makes directories that a user names, with errors that name the obstacle.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::Path;

/// Creates the directory at `path` and its parents with `mode`. An existing directory is not changed.
///
/// # Errors
/// If it cannot be created. If a name in the path is taken, the error describes by what, and a remedy; the kernel's `File exists`
/// does not.
pub fn make(path: &Path, mode: u32) -> io::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|error| match obstacle(path) {
        Some(obstacle) => io::Error::new(error.kind(), obstacle),
        None => error,
    })
}

/// Describes the entry at `path`, or at a directory above it, that is not a directory.
fn obstacle(path: &Path) -> Option<String> {
    let above: Vec<&Path> = path.ancestors().collect();
    let found = above.into_iter().rev().find_map(|path| {
        let found = fs::symlink_metadata(path).ok()?;
        (!path.is_dir()).then_some((path, found))
    });
    let (at, found) = found?;
    let remedy = match found.uid() == rustix::process::geteuid().as_raw() {
        true => "remove it, or name another directory".to_owned(),
        false => format!("it belongs to user {}: name another directory", found.uid()),
    };
    let at_shown = at.display();
    if !found.is_symlink() {
        return Some(format!("{at_shown} is {} and no directory: {remedy}", kind(&found)));
    }
    let target = fs::read_link(at).unwrap_or_default();
    let target_shown = target.display();
    Some(match fs::metadata(at) {
        Ok(of) => format!(
            "{at_shown} is a link to {target_shown}, which is {} and no directory: {remedy}",
            kind(&of)
        ),
        Err(_) => format!(
            "{at_shown} is a link to {target_shown}, which is not there: make that directory, or name another one"
        ),
    })
}

fn kind(found: &fs::Metadata) -> &'static str {
    let kind = found.file_type();
    match (kind.is_fifo(), kind.is_socket(), kind.is_file()) {
        (true, ..) => "a FIFO",
        (_, true, _) => "a socket",
        (.., true) => "a file",
        _ => "a device",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn make_names_what_is_in_the_way() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("file"), "").unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, 0o600.into(), 0).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        symlink("file", at("to-file")).unwrap();
        symlink("real", at("to-directory")).unwrap();
        fs::create_dir(at("real")).unwrap();
        for (name, words) in [
            ("file", "file is a file and no directory: remove it, or name another directory"),
            ("fifo", "fifo is a FIFO and no directory: remove it, or name another directory"),
            ("socket", "socket is a socket and no directory: remove it, or name another directory"),
            ("dangling", "dangling is a link to nowhere, which is not there: make that directory"),
            ("to-file", "to-file is a link to file, which is a file and no directory: remove it"),
        ] {
            for path in [at(name), at(name).join("a/b")] {
                let error = make(&path, 0o700).unwrap_err().to_string();
                assert!(error.starts_with(&at(words).display().to_string()), "{error}");
            }
        }
        for name in ["real", "to-directory", "to-directory/x/y"] {
            make(&at(name), 0o700).unwrap();
            assert!(at(name).is_dir());
        }
    }
}
