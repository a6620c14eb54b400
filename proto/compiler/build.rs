//! Compiles `proto/cri.proto`, its extensions and the contracts of a node's plugins with a compiler written in Rust, so that no `protoc` is needed.
//!
//! It writes to `OUT_DIR`: the Rust types, and `cri.bin`, the encoded descriptors of the first one, which `proto/contract.rs`
//! checks.

mod services;

use std::{env, fs, path::PathBuf};

use prost_build::Config;
use services::Services;

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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=services.rs");
    println!("cargo:rerun-if-changed=../cri.proto");
    let mut compiler = protox::Compiler::new([".."])?;
    compiler.include_source_info(true).open_file("cri.proto")?;
    let mut contract = config();
    for message in RECORDED {
        contract.message_attribute(
            format!("runtime.v1.{message}"),
            "#[derive(serde::Serialize, serde::Deserialize)] #[serde(default)]",
        );
    }
    contract
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
        "dra.proto",
        "drahealth.proto",
        "files.proto",
        "pluginregistration.proto",
        "podresources.proto",
        "services.proto",
    ] {
        println!("cargo:rerun-if-changed=../{other}");
        let mut compiler = protox::Compiler::new([".."])?;
        compiler.include_source_info(true).open_file(other)?;
        config()
            .bytes([".crib.files"])
            // They contain secrets: `proto/redact.rs` implements Debug.
            .skip_debug(["csi.v1.NodePublishVolumeRequest", "csi.v1.NodeStageVolumeRequest"])
            .compile_fds(compiler.file_descriptor_set())?;
    }
    Ok(())
}

fn config() -> Config {
    let mut config = Config::new();
    config.service_generator(Box::<Services>::default());
    config
}
