//! Copies files as tar streams, between trees of which one may belong to an untrusted process: a container's root.
//!
//! [`pack`] writes a file or directory as an archive, [`unpack`] makes files of one. Both hold one buffer, whatever the size
//! of a file. What a path leads to is decided by [`Root`] once; below that no link is followed, so that neither a container
//! nor an archive leads a copy out of its destination. File systems of the kernel (`/proc`, `/sys`) are neither read nor
//! written: with the rights of the caller, a container's link into them would change the caller.
//!
//! - `place`: what a path leads to, and what an archive is called there
//! - `pack`: the archive of a tree
//! - `unpack`: the files of an archive; `member` ◆ decides where each belongs and which links lead out
//! - `chunks`: an archive between a blocking thread and a task
//! - `error`: why a copy ends, and what it leaves out

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
