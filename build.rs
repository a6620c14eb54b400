//! Compiles `proto/cri.proto` with a compiler written in Rust, so that no `protoc` is needed.
//!
//! Two results in `OUT_DIR`: the Rust types, and `cri.bin`, the encoded descriptors that `proto/contract.rs` checks.

use std::{env, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/cri.proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).open_file("cri.proto")?;
    tonic_prost_build::configure()
        // It holds secrets: `proto/redact.rs` writes its Debug form by hand.
        .skip_debug(["runtime.v1.AuthConfig"])
        .compile_fds(compiler.file_descriptor_set())?;
    // Encoded by the compiler itself, not through `prost_types`, which knows no `debug_redact` and would lose it.
    let descriptors = compiler
        .include_source_info(false)
        .encode_file_descriptor_set();
    fs::write(
        PathBuf::from(env::var("OUT_DIR")?).join("cri.bin"),
        descriptors,
    )?;
    Ok(())
}
