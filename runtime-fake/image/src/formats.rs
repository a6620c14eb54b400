//! What images look like outside: archives and their indexes, OCI documents, tar with its extensions, digests and platforms.

pub(crate) mod archive;
pub(crate) mod archive_index;
pub(crate) mod digest;
pub(crate) mod file_name;
pub(crate) mod oci;
pub(crate) mod pax;
pub(crate) mod platform;
pub(crate) mod record;
pub(crate) mod resolve;
pub(crate) mod script;
pub(crate) mod sparse;
pub(crate) mod stream;
pub(crate) mod tar_stream;
