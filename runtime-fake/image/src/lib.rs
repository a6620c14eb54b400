//! **image**: pulls images from archives and registries and unpacks them into directories for overlayfs.
//!
//! | module | contents |
//! |---|---|
//! | `formats` | external formats: archives, OCI documents, tar, digests; `resolve` ◆: from a name to verified documents; `script` ◆ |
//! | `layer` | unpacks one layer; `layer/tests/forms.rs` lists the forms of layers that are accepted |
//! | `local` | images without a registry: the host's root, and behaviour images |
//! | `store` | imports, commits, metadata, names, records on disk |
//! | `registry` | endpoints and mirrors, credentials, tokens, retries, downloads |
//!
//! The path of a pull: `image_reference` → `local`, or `archives` (selects the archives) → `archive` (named blobs) →
//! `archive_index` (names) → `resolve` (documents, each verified) → `import` (each layer once, `commit` for all of them) →
//! `stream` and `tar_stream` (one pass: decompress, `readahead`, count, hash) → `layer` (files) → `metadata` (records).
//! [`ImageStore`] owns all state; its calls block.
//!
//! A pull from a registry starts in `registry` ([`Puller`]) and ends in the same `resolve` and `import`. A download, one for each blob,
//! owns a file without a name; all pulls that need the blob read it while it grows.
//!
//! Durability: after a SIGKILL or a power cut at any instant, only complete images and garbage remain; the next
//! [`ImageStore::open`] removes the garbage. The files of an image's layers are synced to disk before its record is written, and
//! the record before PullImage returns: a pulled image survives a power cut with all of its files.
//!
//! This package uses no CRI type and no namespace. No path in an image is followed outside its root.

mod error;
mod flatten;
mod formats;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod layer;
mod local;
mod registry;
mod store;
#[cfg(any(test, fuzzing))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use self::error::{ContentError, ImageError, PullError, PullFailure};
pub use self::formats::digest::{Digest, DigestError};
pub use self::formats::limits::Limits;
pub use self::formats::record::{ImageConfig, ImageId, ImageRecord, UserName};
pub use self::formats::script::{FORMS, Form, Script, ScriptError, Step};
pub use self::formats::tar_stream::{Kind, Member, SeekFile, Sequential, Skip, TarReader};
pub use self::local::{NamedScript, NamedScriptError};
pub use self::registry::{
    Credentials, EVERY_HOST, Endpoint, Host, Login, Mirror, MirrorError, Puller, Registries,
    Rewrite, Secret, named_by_call,
};
pub use self::store::archives::archives_in;
pub use self::store::names::{ImageNames, names};
pub use self::store::{FsInfo, ImageOptions, ImageStore, Rootfs};
pub use image_reference::{Reference, ReferenceError, is_host};
