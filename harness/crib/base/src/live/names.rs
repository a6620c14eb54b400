//! The names of background runs (`crib run --name`): a locked file for each name, in the same directory as the entries of the
//! runtimes.
//!
//! The file `name.NAME` contains the path of the run's directory. The command holds a lock on it while it runs, so the name is free
//! again after the command has ended, however it ended.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FlockOperation, flock};

use super::{lock, make_and_lock, sweep};

/// The prefix of the files' names. The names of entries contain no dot.
const PREFIX: &str = "name.";

/// The name of a run: a DNS label (RFC 1123), as in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunName(String);

impl RunName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RunName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_label = !text.is_empty()
            && text.len() <= 63
            && text.chars().all(is_inner)
            && !text.starts_with('-')
            && !text.ends_with('-');
        match is_label {
            true => Ok(Self(text.to_owned())),
            false => Err(
                "expected at most 63 lower-case letters, digits and hyphens, with a letter or digit at both ends"
                    .to_owned(),
            ),
        }
    }
}

/// Why a name cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// Another run uses it.
    #[error("a run named {name} exists: end it with `crib down {name}`, or choose another name")]
    InUse {
        /// The name.
        name: RunName,
    },
    /// The file could not be created.
    #[error("failed to register the name {name} in {directory}")]
    Io {
        /// The name.
        name: RunName,
        /// The directory of the entries.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The name of this process's run. Dropping it frees the name.
#[derive(Debug)]
pub struct ReservedName {
    directory: PathBuf,
    path: PathBuf,
    /// Keeps the file locked.
    _file: File,
}

impl ReservedName {
    /// Reserves a name for the run in this directory.
    pub fn take(directory: &Path, name: &RunName, run: &Path) -> Result<Self, NameError> {
        let failed =
            |source| NameError::Io { name: name.clone(), directory: directory.to_owned(), source };
        let _lock = make_and_lock(directory).map_err(failed)?;
        let path = directory.join(format!("{PREFIX}{name}"));
        // The file is truncated only after its lock shows that no run uses it.
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = file.map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(NameError::InUse { name: name.clone() });
            }
            Err(errno) => return Err(failed(errno.into())),
        }
        file.set_len(0)
            .and_then(|()| file.write_all(run.as_os_str().as_bytes()))
            .map_err(failed)?;
        Ok(Self { directory: directory.to_owned(), path, _file: file })
    }
}

impl Drop for ReservedName {
    fn drop(&mut self) {
        // The next reader removes a file that cannot be removed here.
        let _lock = lock(&self.directory);
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// A background run whose command is running.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedRun {
    /// Its name.
    pub name: RunName,
    /// Its directory.
    pub directory: PathBuf,
}

/// The running runs with names, sorted by name.
pub fn named_runs(directory: &Path) -> io::Result<Vec<NamedRun>> {
    let _lock = match lock(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        lock => lock?,
    };
    let mut runs = Vec::new();
    for (path, mut file) in sweep(directory)? {
        let Some(name) = of_file(&path) else { continue };
        let mut run = Vec::new();
        if file.read_to_end(&mut run).is_ok() {
            runs.push(NamedRun { name, directory: std::ffi::OsString::from_vec(run).into() });
        }
    }
    runs.sort();
    Ok(runs)
}

/// The name of the run that a file belongs to.
pub(super) fn of_file(path: &Path) -> Option<RunName> {
    let name = path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::args::UnixEndpoint;
    use crate::live::{Entry, endpoints};

    #[rstest]
    #[case("web", true)]
    #[case("web-2", true)]
    #[case("2", true)]
    #[case("", false)]
    #[case("-web", false)]
    #[case("web-", false)]
    #[case("Web", false)]
    #[case("we_b", false)]
    #[case("a.b", false)]
    #[case("../x", false)]
    #[case("wéb", false)]
    fn run_name_must_be_dns_label(#[case] text: &str, #[case] is_label: bool) {
        assert_eq!(text.parse::<RunName>().is_ok(), is_label);
    }

    #[test]
    fn run_name_has_at_most_63_characters() {
        "a".repeat(63).parse::<RunName>().unwrap();
        "a".repeat(64).parse::<RunName>().unwrap_err();
    }

    #[test]
    fn name_is_taken_once_and_free_when_dropped() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("runs");
        let name: RunName = "web".parse().unwrap();
        let taken = ReservedName::take(&directory, &name, Path::new("/run/1")).unwrap();
        assert!(matches!(
            ReservedName::take(&directory, &name, Path::new("/run/2")),
            Err(NameError::InUse { .. })
        ));
        let run = NamedRun { name: name.clone(), directory: "/run/1".into() };
        assert_eq!(named_runs(&directory).unwrap(), [run]);
        drop(taken);
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
        drop(ReservedName::take(&directory, &name, Path::new("/run/2")).unwrap());
    }

    #[test]
    fn names_and_endpoints_do_not_mix() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("runs");
        let name: RunName = "web".parse().unwrap();
        let endpoint = UnixEndpoint::at("/a".into());
        let entry = Entry::add(&directory, &endpoint).unwrap();
        let taken = ReservedName::take(&directory, &name, Path::new("/run/1")).unwrap();
        assert_eq!(endpoints(&directory).unwrap(), [endpoint]);
        drop(entry);
        assert_eq!(endpoints(&directory).unwrap(), []);
        assert_eq!(named_runs(&directory).unwrap().len(), 1, "it is kept");
        drop(taken);
        // A killed command leaves a file without a lock.
        make_and_lock(&directory).unwrap();
        std::fs::write(directory.join("name.dead"), "/run/dead").unwrap();
        assert_eq!(named_runs(&directory).unwrap(), []);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    }
}
