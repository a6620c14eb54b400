//! The Kubernetes Container Runtime Interface, v1: messages, client and server.

/// The generated types of package `runtime.v1`.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

/// The compiled contract: an encoded `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cri.bin"));
