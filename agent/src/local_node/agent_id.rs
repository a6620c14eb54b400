//! The agent's id, which is created once and stored in its root directory.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// The file in the root directory.
const FILE: &str = "agent-id";

/// An id that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentIdError {
    /// It is not valid as a label value.
    #[error("{id:?} is not an agent id: expected 1 to 63 letters, digits, '-', '_' or '.'")]
    Malformed {
        /// The given id.
        id: String,
    },
    /// The file could not be read or written.
    #[error("failed to read or write the agent id in {path}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
}

/// Checks that an id can be a label's value.
pub fn check(id: &str) -> Result<(), AgentIdError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends_well = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_sound = id.len() <= 63
        && id.chars().all(allowed)
        && ends_well(id.chars().next())
        && ends_well(id.chars().last());
    if is_sound { Ok(()) } else { Err(AgentIdError::Malformed { id: id.to_owned() }) }
}

/// Returns the id in the directory, or creates and stores a new one.
pub fn kept_in(root_dir: &Path) -> Result<String, AgentIdError> {
    let path = root_dir.join(FILE);
    let failed = |source| AgentIdError::File { path: path.display().to_string(), source };
    match fs::read_to_string(&path) {
        Ok(id) => {
            let id = id.trim();
            check(id)?;
            return Ok(id.to_owned());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let mut random = [0; 16];
    let mut id = String::new();
    fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut random))
        .map_err(failed)?;
    for byte in random {
        let _ = write!(id, "{byte:02x}");
    }
    // Renamed into place, so that a killed agent does not leave a partial file.
    let new = root_dir.join(format!("{FILE}.new"));
    fs::write(&new, format!("{id}\n")).and_then(|()| fs::rename(&new, &path)).map_err(failed)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn id_is_made_once() {
        let root = tempfile::tempdir().unwrap();
        let id = kept_in(root.path()).unwrap();
        assert_eq!(id.len(), 32);
        assert_eq!(kept_in(root.path()).unwrap(), id);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(kept_in(other.path()).unwrap(), id);
    }

    #[test]
    fn ids_are_values_of_labels() {
        assert!(check("node-1.example").is_ok());
        for id in ["", "-a", "a b", "ü", &"x".repeat(64)] {
            assert!(check(id).is_err(), "{id}");
        }
    }
}
