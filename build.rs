//! Compiles `proto/cri.proto` with a compiler written in Rust, so that no `protoc` is needed.

use std::{env, fs, path::PathBuf};

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/cri.proto");
    let descriptors = protox::compile(["cri.proto"], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("cri.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
