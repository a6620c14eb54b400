//! Compiles `proto/cri.proto`, its extensions and the contracts of a node's plugins with a compiler written in Rust, so that no `protoc` is needed.
//!
//! It writes to `OUT_DIR`: the Rust types, and `cri.bin`, the encoded descriptors of the first one, which `proto/contract.rs`
//! checks.

use std::{env, fs, path::PathBuf};

/// The messages that a runtime keeps in its records: they have a JSON form.
const RECORDED: [&str; 33] = [
    "CDIDevice",
    "Capability",
    "ContainerConfig",
    "ContainerMetadata",
    "DNSConfig",
    "Device",
    "HugepageLimit",
    "IDMapping",
    "ImageSpec",
    "Int64Value",
    "KeyValue",
    "LinuxContainerConfig",
    "LinuxContainerResources",
    "LinuxContainerSecurityContext",
    "LinuxContainerUser",
    "LinuxPodSandboxConfig",
    "LinuxSandboxSecurityContext",
    "Mount",
    "NamespaceOption",
    "PodSandboxConfig",
    "PodSandboxMetadata",
    "PortMapping",
    "SELinuxOption",
    "SecurityProfile",
    "UserNamespace",
    "WindowsContainerConfig",
    "WindowsContainerResources",
    "WindowsContainerSecurityContext",
    "WindowsCpuGroupAffinity",
    "WindowsNamespaceOption",
    "WindowsPodSandboxConfig",
    "WindowsSandboxSecurityContext",
    "ContainerUser",
];

/// How messages are encoded and decoded.
const CODEC: &str = "crate::codec::ShortMessages";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../cri.proto");
    let mut compiler = protox::Compiler::new([".."])?;
    compiler.include_source_info(true).open_file("cri.proto")?;
    let mut generator = tonic_prost_build::configure().codec_path(CODEC);
    for message in RECORDED {
        generator = generator.message_attribute(
            format!("runtime.v1.{message}"),
            "#[derive(serde::Serialize, serde::Deserialize)] #[serde(default)]",
        );
    }
    generator
        .field_attribute("runtime.v1.KeyValue.value", "#[serde(with = \"crate::text\")]")
        // It contains secrets: `proto/redact.rs` implements Debug.
        .skip_debug(["runtime.v1.AuthConfig"])
        .compile_fds(compiler.file_descriptor_set())?;
    // The compiler encodes the descriptors itself: `prost_types` does not know `debug_redact` and would lose it.
    let descriptors = compiler.include_source_info(false).encode_file_descriptor_set();
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("cri.bin"), descriptors)?;
    for other in [
        "csi.proto",
        "deviceplugin.proto",
        "files.proto",
        "pluginregistration.proto",
        "podresources.proto",
        "services.proto",
    ] {
        println!("cargo:rerun-if-changed=../{other}");
        let mut compiler = protox::Compiler::new([".."])?;
        compiler.include_source_info(true).open_file(other)?;
        let generator = tonic_prost_build::configure().codec_path(CODEC).bytes(".crib.files");
        // They contain secrets: `proto/redact.rs` implements Debug.
        let generator = generator
            .skip_debug(["csi.v1.NodePublishVolumeRequest", "csi.v1.NodeStageVolumeRequest"]);
        generator.compile_fds(compiler.file_descriptor_set())?;
    }
    Ok(())
}
