//! The images that there are: imports, commits, records on disk, names, and who waits for whom.

pub(crate) mod archives;
pub(crate) mod commit;
pub(crate) mod disk;
pub(crate) mod import;
pub(crate) mod lookup;
pub(crate) mod metadata;
pub(crate) mod names;
pub(crate) mod readahead;
pub(crate) mod single_flight;
