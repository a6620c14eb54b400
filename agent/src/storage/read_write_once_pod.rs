//! Which pod uses a ReadWriteOncePod claim: the file `only-pod` beside the claim's volume has the path of the pod's directory, so
//! that a restarted agent, and other agents, find it. A pod whose directory was removed uses no claim.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use api::claims::ClaimName;
use file_tree::private;

use super::claim_directories::{ClaimDirectories, DirectoryError};

const FILE: &str = "only-pod";

impl ClaimDirectories {
    /// Assigns a claim to the pod with this directory, unless another pod has it. Returns whether this pod has it now.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(crate) fn acquire(&self, claim: &ClaimName, pod: &Path) -> Result<bool, DirectoryError> {
        private::make(self.base())?;
        let path = self.directory(claim).join(FILE);
        let acquired = open(&path).and_then(|file| acquire(file, pod));
        acquired.map_err(DirectoryError::io("write", &path))
    }

    /// Releases a claim of the pod with this directory, if the pod has it.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(crate) fn release(&self, claim: &ClaimName, pod: &Path) -> Result<(), DirectoryError> {
        let path = self.directory(claim).join(FILE);
        if !path.exists() {
            return Ok(());
        }
        let released = open(&path).and_then(|file| release(file, pod));
        released.map_err(DirectoryError::io("write", &path))
    }
}

/// Opens the file and locks it until it is closed: the agents of several runs share a claim.
fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    file.lock()?;
    Ok(file)
}

fn acquire(mut file: File, pod: &Path) -> io::Result<bool> {
    let pod = std::path::absolute(pod)?;
    let owner = owner(&mut file)?;
    if owner == pod {
        return Ok(true);
    }
    if owner.is_dir() {
        return Ok(false);
    }
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(pod.as_os_str().as_bytes())?;
    Ok(true)
}

fn release(mut file: File, pod: &Path) -> io::Result<()> {
    if owner(&mut file)? == std::path::absolute(pod)? {
        file.set_len(0)?;
    }
    Ok(())
}

/// The directory of the pod that has the claim, which may have been removed; empty: no pod.
fn owner(file: &mut File) -> io::Result<PathBuf> {
    let mut owner = Vec::new();
    file.read_to_end(&mut owner)?;
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&owner)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_pod_has_the_claim_until_it_ends() {
        let root = tempfile::tempdir().unwrap();
        let directories = ClaimDirectories::new(root.path().join("volumes"));
        let claim = ClaimName::new("default", "data");
        let [one, other] = ["one", "other"].map(|name| root.path().join(name));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&other).unwrap();
        let acquires = |pod: &Path| directories.acquire(&claim, pod).unwrap();
        assert!(acquires(&one));
        assert!(acquires(&one), "again");
        assert!(!acquires(&other));
        // A pod cannot release a claim that it does not have.
        directories.release(&claim, &other).unwrap();
        assert!(!acquires(&other));
        directories.release(&claim, &one).unwrap();
        assert!(acquires(&other));
        assert!(!acquires(&one));
        fs::remove_dir(&other).unwrap();
        assert!(acquires(&one), "the directory of the other pod is gone");
        let unknown = ClaimName::new("default", "unknown");
        directories.release(&unknown, &one).unwrap();
        assert_eq!(directories.list().unwrap(), [], "no volume is made for it");
    }
}
