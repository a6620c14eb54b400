//! Copies the compiled contract from `proto/generated/`, or compiles it if `proto/` has changed or the feature `compile-protos`
//! is enabled.
//!
//! The compiler is run through cargo: as build dependencies, its many packages would be built before everything else.

#[path = "proto/compiler/src/sources.rs"]
mod sources;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let (proto, generated) = (Path::new("proto"), Path::new("proto/generated"));
    for source in sources::SOURCES {
        println!("cargo:rerun-if-changed=proto/{source}");
    }
    println!("cargo:rerun-if-changed=proto/generated");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let requested = env::var_os("CARGO_FEATURE_COMPILE_PROTOS").is_some();
    let recorded = fs::read_to_string(generated.join(sources::RECORD))?;
    if requested || sources::digest(proto)? != recorded {
        return compile(&out);
    }
    for entry in fs::read_dir(generated)? {
        let entry = entry?;
        fs::copy(entry.path(), out.join(entry.file_name()))?;
    }
    Ok(())
}

/// Builds and runs the compiler in `proto/compiler/`.
fn compile(out: &Path) -> Result<(), Box<dyn Error>> {
    // The cargo that runs this script has locked its own directories.
    let directory = out.join("compiler");
    let status = Command::new(env::var_os("CARGO").ok_or("CARGO is not set")?)
        .args(["run", "--quiet", "--locked", "--manifest-path=proto/compiler/Cargo.toml"])
        .args(["--example=compile", "--"])
        .arg(out)
        .env("CARGO_TARGET_DIR", &directory)
        .env("CARGO_BUILD_BUILD_DIR", &directory)
        // The compiler runs on this machine, regardless of the target of `cri`.
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()?;
    if !status.success() {
        return Err(format!("failed to compile proto/: {status}").into());
    }
    Ok(())
}
