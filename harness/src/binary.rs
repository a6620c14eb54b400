//! Finds the `crib` binary that tests run, or builds it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The manifest of `crib`, below this package, even in cargo's checkout of a git dependency.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crib/Cargo.toml");

/// No `crib` binary was found.
#[derive(Debug, thiserror::Error)]
pub enum NoBinary {
    /// No file was found.
    #[error(
        "found no crib command: install it with `cargo install --path harness/crib`, name one with CRIB_BIN, or set \
         CRIB_BUILD=1 to build it from the sources of this harness"
    )]
    Missing,
    /// `CRIB_BIN` or the test names a file that does not exist.
    #[error("found no crib command at {}, which CRIB_BIN or the test names", .0.display())]
    Named(PathBuf),
    /// The build failed.
    #[error("failed to build crib from {SOURCES}: {0}")]
    Build(String),
}

/// Finds the `crib` command: `CRIB_BIN`, or the one that cargo built for this test, or the first one on the `PATH`. If none exists
/// and `CRIB_BUILD` is 1, [`build`] builds it.
///
/// # Errors
/// If none of them exists.
pub fn crib() -> Result<PathBuf, NoBinary> {
    if let Some(named) = env::var_os("CRIB_BIN") {
        let named = PathBuf::from(named);
        return if named.is_file() { Ok(named) } else { Err(NoBinary::Named(named)) };
    }
    if let Some(built) = env::var_os("CARGO_BIN_EXE_crib") {
        return Ok(built.into());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|directory| directory.join("crib"));
    // Cargo builds tests into target/PROFILE/deps and commands into target/PROFILE.
    let beside = profile_directory().map(|directory| directory.join("crib"));
    let found = beside.into_iter().chain(on_path).find(|path| path.is_file());
    match found {
        Some(path) => Ok(path),
        None if env::var_os("CRIB_BUILD").is_some_and(|value| value == "1") => build(),
        None => Err(NoBinary::Missing),
    }
}

/// Builds `crib` in a directory beside this test's build output, with the cargo that runs the test. The first build takes minutes,
/// and shows cargo's progress on standard error; later ones only check for changes.
///
/// # Errors
/// When cargo fails, or the sources are not there.
pub fn build() -> Result<PathBuf, NoBinary> {
    let failed = |why: String| NoBinary::Build(why);
    let profile =
        profile_directory().ok_or_else(|| failed("this test is in no directory".into()))?;
    let target = profile.join("crib-build");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--locked", "--manifest-path", SOURCES, "--target-dir"])
        .arg(&target)
        .stdin(Stdio::null())
        .status()
        .map_err(|error| failed(format!("cargo could not be run: {error}")))?;
    if !status.success() {
        return Err(failed(format!("cargo build ended with {status}")));
    }
    Ok(target.join("debug/crib"))
}

fn profile_directory() -> Option<PathBuf> {
    let test = env::current_exe().ok()?;
    test.parent().and_then(Path::parent).map(Path::to_owned)
}
