//! Manifests: reading, checks against this machine, watching, and applying changes.

pub(crate) mod archived_images;
pub(crate) mod claims;
pub(crate) mod cluster_fields;
pub(crate) mod inputs;
pub(crate) mod manifest_objects;
pub(crate) mod node_fields;
pub(crate) mod skipped;
pub(crate) mod storage_limits;
pub(crate) mod unsupported_storage;
pub(crate) mod watched;
