//! The Kubernetes Container Runtime Interface, v1: messages, client and server; and those interfaces of a node's plugins that the
//! agent calls.
//!
//! It is the wire contract only: the runtime and the agent each convert these types into their own at their boundary.
//!
//! | where | what |
//! |---|---|
//! | `proto/cri.proto` | the contract, with the guarantees of each call; read this first |
//! | `proto/cri-v1.tsv` | the same contract as a table of facts, without comments |
//! | `proto/contract.rs` | the test that the two are equal, field by field |
//! | `proto/redact.rs` | the `Debug` form of credentials, without the secrets |
//! | `proto/codec.rs` | how messages are encoded and decoded, in short buffers |
//! | `proto/client.rs`, `proto/server.rs` | what the generated clients and servers have in common |
//! | `proto/calls.rs` | the test that these make calls, with the limits and errors of tonic |
//! | `proto/gathered.rs` | a client's connection that wakes a server once for each request |
//! | `proto/text.rs` | the JSON form of environment variables' values, for a runtime's records |
//! | `proto/services.proto` | an extension of crib's own runtime: Services in the pod network, compiled into [`services`] |
//! | `proto/files.proto` | another one: copies of containers' files, compiled into [`files`] |
//! | `proto/csi.proto` | the node half of the Container Storage Interface, compiled into [`csi`] |
//! | `proto/deviceplugin.proto` | the contract of device plugins, compiled into [`deviceplugin`] |
//! | `proto/dra.proto`, `proto/drahealth.proto` | the contracts of drivers for dynamic resource allocation, compiled into [`dra`] and [`drahealth`] |
//! | `proto/pluginregistration.proto` | how plugins of a node make themselves known, compiled into [`pluginregistration`] |
//! | `proto/podresources.proto` | what containers have for themselves, for monitoring agents: [`podresources`] |
//! | `proto/generated/` | what the contracts are compiled to: [`v1`], the other modules and [`DESCRIPTORS`] |
//! | `proto/compiler/` | the compiler, and the test that `proto/generated/` is up to date |
//! | `build.rs` | takes `proto/generated/`, or has `proto/` compiled if that is out of date |
//!
//! Clients start at [`v1::runtime_service_client::RuntimeServiceClient`] and
//! [`v1::image_service_client::ImageServiceClient`], servers implement [`v1::runtime_service_server::RuntimeService`]
//! and [`v1::image_service_server::ImageService`].

#[cfg(test)]
mod calls;
pub mod client;
pub mod codec;
#[cfg(test)]
mod contract;
pub mod gathered;
mod redact;
pub mod server;
mod text;

/// The generated types of package `runtime.v1`.
#[expect(missing_docs, reason = "the contract comments on the less obvious fields only")]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

/// The generated types of package `crib.files.v1`.
#[expect(missing_docs, reason = "the contract comments on the less obvious fields only")]
pub mod files {
    tonic::include_proto!("crib.files.v1");
}

/// The generated types of package `crib.services.v1`.
#[expect(missing_docs, reason = "the contract comments on the less obvious fields only")]
pub mod services {
    tonic::include_proto!("crib.services.v1");
}

/// The generated types of package `v1beta1` of device plugins.
#[expect(missing_docs, reason = "the contract comments on the less obvious fields only")]
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

/// The generated types of package `v1` of the pod resources API.
#[expect(missing_docs, reason = "the contract comments on the less obvious fields only")]
pub mod podresources {
    tonic::include_proto!("v1");
}

/// The generated types of package `csi.v1`, and its node service.
#[expect(missing_docs, reason = "the contract comments on the less obvious fields only")]
pub mod csi {
    tonic::include_proto!("csi.v1");
}

/// The generated types of package `k8s.io.kubelet.pkg.apis.dra.v1`, and its service.
#[expect(missing_docs, reason = "the contract comments on the less obvious fields only")]
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// The generated types of package `v1alpha1` of the health of devices, and its service.
#[expect(missing_docs, reason = "the contract comments on the less obvious fields only")]
pub mod drahealth {
    tonic::include_proto!("v1alpha1");
}

/// The generated types of package `pluginregistration`.
#[expect(missing_docs, reason = "the contract comments on the less obvious fields only")]
pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}

/// The compiled contract: an encoded `google.protobuf.FileDescriptorSet` of one file, without comments.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cri.bin"));
