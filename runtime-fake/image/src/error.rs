//! ◆ What can be wrong with an image: one enum for what an archive holds, one for what a caller sees.

use std::io;
use std::path::{Path, PathBuf};

use super::digest::{Digest, DigestError};
use super::reference::ReferenceError;
mod registry;

pub(crate) use registry::Fault;
pub use registry::{PullError, PullFailure};

/// Why an archive or an image in it was refused. Nothing of it is kept.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The bytes end too early.
    #[error("{what} ends before it is complete")]
    Truncated {
        /// The member, layer or archive.
        what: String,
    },
    /// A tar header does not hold what it must.
    #[error("the tar header at byte {at} is broken: {why}")]
    Header {
        /// Offset in the decompressed stream.
        at: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Something this runtime does not read.
    #[error("{what} is not supported")]
    Unsupported {
        /// The feature, with the member that needs it.
        what: String,
    },
    /// The decompressor gave up.
    #[error("{what} cannot be decompressed")]
    Compressed {
        /// The layer or archive.
        what: String,
        /// The decompressor's word.
        source: io::Error,
    },
    /// A document is not the JSON it should be.
    #[error("{what} is not the document it should be")]
    Document {
        /// The member.
        what: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A digest that cannot be verified.
    #[error("{what} has an unusable digest")]
    Digest {
        /// What carries the digest.
        what: String,
        /// Why it cannot be used.
        source: DigestError,
    },
    /// Neither an OCI layout nor a docker archive.
    #[error("it holds neither index.json (an OCI layout) nor manifest.json (a docker archive)")]
    NoImages,
    /// A document points to a blob that is not there.
    #[error("{name} is missing, though a document of the archive points to it")]
    Missing {
        /// The member.
        name: String,
    },
    /// Two members of the archive share a name.
    #[error("{name:?} appears twice")]
    Twice {
        /// The member.
        name: String,
    },
    /// Two different images of the archive share a name.
    #[error("it gives the name {name} to two different images")]
    Ambiguous {
        /// The reference.
        name: String,
    },
    /// The bytes are not those that were promised.
    #[error("{what} has digest {actual} instead of {expected}")]
    DigestDiffers {
        /// The blob, or the layer once decompressed.
        what: String,
        /// What the document promised.
        expected: Digest,
        /// What was read.
        actual: Digest,
    },
    /// There are more or fewer bytes than promised.
    #[error("{what} has {actual} bytes instead of {expected}")]
    SizeDiffers {
        /// The blob.
        what: String,
        /// What the document promised.
        expected: u64,
        /// What is there.
        actual: u64,
    },
    /// Manifest and configuration disagree.
    #[error("the manifest lists {manifest} layers and the configuration {config}")]
    LayerCount {
        /// Layers of the manifest.
        manifest: usize,
        /// `rootfs.diff_ids` of the configuration.
        config: usize,
    },
    /// No manifest of an index is for this machine.
    #[error("it has no image for linux/{wanted}, only for {offered}")]
    Platform {
        /// This machine's architecture, in Go's spelling.
        wanted: String,
        /// What there is, separated by commas.
        offered: String,
    },
    /// One of the [`Limits`](super::Limits) is passed.
    #[error("{what} has more than the {limit} {unit} allowed")]
    TooMuch {
        /// What is too large.
        what: String,
        /// The limit.
        limit: u64,
        /// bytes, entries, layers, directories.
        unit: &'static str,
    },
    /// A decompression bomb.
    #[error("{what} decompresses to more than {limit} times its size")]
    Ratio {
        /// The layer or archive.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// A name that would lie outside, or could mislead whoever reads it.
    #[error("the layer names {path:?}, {why}")]
    Name {
        /// The name as it stands in the layer.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A link that would lead out of the image's root.
    #[error("the link {path:?} to {target:?} leads out of the image")]
    LinkLeadsOut {
        /// The link.
        path: String,
        /// Its target.
        target: String,
    },
    /// A hard link to something that its layer does not hold.
    #[error("the hard link {path:?} to {target:?} does not point to an earlier file of its layer")]
    HardLink {
        /// The link.
        path: String,
        /// Its target.
        target: String,
    },
    /// A name below something that is no directory.
    #[error("the layer puts {path:?} below a file")]
    NotADirectory {
        /// The name.
        path: String,
    },
    /// A device node in an image archive, where there are documents and layers only.
    #[error("{path:?} is a device node: an image archive holds files only")]
    Device {
        /// The name.
        path: String,
    },
    /// A device node that Linux cannot have.
    #[error("the device node {path:?} has a number beyond 4095 and 1048575")]
    DeviceNumber {
        /// The name.
        path: String,
    },
    /// An attribute that would steer the overlay file system.
    #[error("{path:?} carries the reserved attribute {name}")]
    Attribute {
        /// The file.
        path: String,
        /// The attribute.
        name: String,
    },
    /// The bytes did not come.
    #[error("its bytes did not come")]
    Lost {
        /// Why.
        source: Box<PullError>,
    },
    /// Not the archive's fault: this machine could not do its part.
    #[error("could not {doing}")]
    Io {
        /// What was being done, to what.
        doing: String,
        /// The system's word.
        source: io::Error,
    },
}

impl Problem {
    /// An adapter for `map_err`: the I/O error while `doing` something, or the [`Problem`] that
    /// a reader below smuggled through [`io::Error`].
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Problem {
        move |source| match source.downcast::<Problem>() {
            Ok(problem) => problem,
            Err(source) => Problem::Io {
                doing: doing.into(),
                source,
            },
        }
    }

    /// The same for a bare system error number.
    pub(crate) fn errno<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Problem {
        move |errno| Problem::Io {
            doing: doing.into(),
            source: errno.into(),
        }
    }

    /// Refuses more than a limit allows.
    pub(crate) fn within(
        what: impl Into<String>,
        count: u64,
        limit: u64,
        unit: &'static str,
    ) -> Result<(), Problem> {
        if count <= limit {
            return Ok(());
        }
        let what = what.into();
        Err(Problem::TooMuch { what, limit, unit })
    }

    /// Refuses another length than was promised.
    pub(crate) fn same_size(
        what: impl Into<String>,
        expected: u64,
        actual: u64,
    ) -> Result<(), Problem> {
        if expected == actual {
            return Ok(());
        }
        Err(Problem::SizeDiffers {
            what: what.into(),
            expected,
            actual,
        })
    }

    /// Refuses another digest than was promised.
    pub(crate) fn same_digest(
        what: impl Into<String>,
        expected: Digest,
        actual: Digest,
    ) -> Result<(), Problem> {
        if expected == actual {
            return Ok(());
        }
        Err(Problem::DigestDiffers {
            what: what.into(),
            expected,
            actual,
        })
    }
}

/// What [`ImageStore`](super::ImageStore) answers when it cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not a reference.
    #[error("{text:?} is no image reference")]
    Reference {
        /// What was asked for.
        text: String,
        /// What is wrong with it.
        source: ReferenceError,
    },
    /// No archive offers it, and every archive could be read.
    #[error(
        "image {reference} is in none of the {searched} image archives offered, and no registry was asked: \
         offer an archive that holds it, or use crib.local/host"
    )]
    NotFound {
        /// The full reference.
        reference: String,
        /// How many archives were looked through.
        searched: usize,
    },
    /// No archive that could be read offers it; the first that could not be read is the source.
    #[error(
        "image {reference} was not found: {unreadable} of the {searched} image archives offered could not be read, \
         and no registry was asked"
    )]
    NotFoundUnreadable {
        /// The full reference.
        reference: String,
        /// How many archives there are.
        searched: usize,
        /// How many of them could not be read.
        unreadable: usize,
        /// The first of those.
        source: Box<ImageError>,
    },
    /// An archive, or an image in it, was refused.
    #[error("image archive {} was refused", .path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// Why.
        source: Problem,
    },
    /// No registry gave it.
    #[error(transparent)]
    Registry(Box<PullFailure>),
    /// This machine could not unpack what came.
    #[error("could not unpack the image")]
    Unpack {
        /// What went wrong.
        source: Problem,
    },
    /// There is no room for it.
    #[error(
        "the disk of {} is full (could not {doing}): remove images or other files there and pull again",
        .directory.display()
    )]
    Full {
        /// The store's directory.
        directory: PathBuf,
        /// What was being done.
        doing: String,
        /// The system's word.
        source: io::Error,
    },
    /// No such image in the store.
    #[error("image {name} is not present: pull it first")]
    Absent {
        /// What was asked for.
        name: String,
    },
    /// The store itself failed.
    #[error("could not {doing} {}", .path.display())]
    Store {
        /// What was being done.
        doing: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
}

impl ImageError {
    /// Calls it [`ImageError::Full`] when it comes of a full disk, which is the fault of no image, archive or registry.
    pub(crate) fn or_full(self, directory: &Path) -> Self {
        let full = self.cause().filter(|(_, source)| is_full(source));
        match full.map(|(doing, source)| (doing, again(source))) {
            Some((doing, source)) => Self::Full {
                directory: directory.to_owned(),
                doing,
                source,
            },
            None => self,
        }
    }

    /// What could not be done, and the system's word, where there is one.
    fn cause(&self) -> Option<(String, &io::Error)> {
        match self {
            Self::Archive {
                source: Problem::Io { doing, source },
                ..
            }
            | Self::Unpack {
                source: Problem::Io { doing, source },
            } => Some((doing.clone(), source)),
            Self::Store {
                doing,
                path,
                source,
            } => Some((format!("{doing} {}", path.display()), source)),
            Self::Registry(failure) => {
                if let PullError::Io { doing, source } = &failure.source {
                    Some(((*doing).to_owned(), source))
                } else {
                    None
                }
            }
            Self::NotFoundUnreadable { source, .. } => source.cause(),
            Self::Reference { .. }
            | Self::NotFound { .. }
            | Self::Archive { .. }
            | Self::Unpack { .. }
            | Self::Full { .. }
            | Self::Absent { .. } => None,
        }
    }
}

/// Whether there is no room: of the whole file system, or of its user's share.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The same error for somebody else.
fn again(error: &io::Error) -> io::Error {
    let told = || io::Error::new(error.kind(), error.to_string());
    error
        .raw_os_error()
        .map_or_else(told, io::Error::from_raw_os_error)
}
