//! Copies files as tar streams between two trees, one of which may belong to an untrusted process: a container's root.
//!
//! [`pack`] writes a file or directory as an archive, [`unpack`] makes files from one. Both use one buffer, regardless of the
//! size of a file. [`Root`] resolves a path once; below that no link is followed, so that neither a container nor an archive can
//! lead a copy out of its destination. File systems of the kernel (`/proc`, `/sys`) are neither read nor written: a container's
//! link into them would act on the caller, with the caller's privileges.
//!
//! - `place`: resolves paths, and decides the name of an archive in the destination
//! - `pack`: the archive of a tree
//! - `unpack`: the files of an archive; `member` ◆ decides where each belongs and which links lead out
//! - `chunks`: an archive between a blocking thread and a task
//! - `error`: errors of a copy, and notes about skipped files

mod chunks;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod member;
mod pack;
mod place;
mod unpack;

pub use chunks::{ChunkReader, ChunkWriter};
pub use error::{CopyError, Notes};
pub use member::Top;
pub use pack::pack;
pub use place::{Destination, Root, Source};
pub use unpack::{Side, unpack};
