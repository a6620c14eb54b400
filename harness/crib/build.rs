//! Links `crib` at a fixed address, and sets its version.
//!
//! A position-independent executable must be relocated at every start: of the daemon, of the zygote from which keepers are forked,
//! and of each command.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The startup code of a static musl program is always position-independent.
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("musl") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
    // Cargo 1.95 ignores the profile's `strip` for a package with an override in that profile, such as this one.
    if env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-all");
    }
    println!("cargo:rerun-if-env-changed=CRIB_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let commit = env::var("CRIB_COMMIT").ok().or_else(commit);
    match commit.filter(|commit| !commit.is_empty()) {
        Some(commit) => {
            println!("cargo:rustc-env=CRIB_COMMIT={commit}");
            println!("cargo:rustc-env=CRIB_VERSION={version} ({commit})");
        }
        None => println!("cargo:rustc-env=CRIB_VERSION={version}"),
    }
}

/// The commit and its date, for a release build in a checkout. Other builds omit them, because they would have to be rebuilt after
/// each commit.
fn commit() -> Option<String> {
    if env::var("PROFILE").as_deref() != Ok("release") {
        return None;
    }
    // An unpacked source archive may be inside a checkout of another project.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // Git appends a line to this file for each commit. If the file does not exist, Cargo would rerun this script for every build.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["log", "-1", "--format=%h %cs", "--abbrev=12"])
}

/// The output of git, unless it fails.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
