//! Finds the `crib` binary that tests run.

use std::env;
use std::path::PathBuf;

/// No `crib` binary was found.
#[derive(Debug, thiserror::Error)]
#[error(
    "found no crib command: build it with `cargo build`, put it on the PATH, or name it with CRIB_BIN"
)]
pub struct NoBinary;

/// The `crib` command: the one that `CRIB_BIN` names, otherwise the one that cargo built for this test, otherwise the
/// first on the `PATH`.
///
/// # Errors
/// If none of them exists.
pub fn crib() -> Result<PathBuf, NoBinary> {
    let named = ["CRIB_BIN", "CARGO_BIN_EXE_crib"]
        .into_iter()
        .find_map(env::var_os);
    if let Some(path) = named {
        return Ok(path.into());
    }
    // Cargo builds tests into target/PROFILE/deps and commands into target/PROFILE.
    let beside = env::current_exe()
        .ok()
        .and_then(|test| Some(test.parent()?.parent()?.join("crib")));
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|directory| directory.join("crib"));
    beside
        .into_iter()
        .chain(on_path)
        .find(|candidate| candidate.is_file())
        .ok_or(NoBinary)
}
