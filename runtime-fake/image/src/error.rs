//! ◆ Errors of images: [`ContentError`] for the content of an archive or image, [`ImageError`] for the callers of the store.

use std::io;
use std::path::{Path, PathBuf};

use crate::formats::digest::{Digest, DigestError};
use crate::formats::script::ScriptError;
use image_reference::ReferenceError;
mod registry;

pub(crate) use registry::Retryability;
pub use registry::{PullError, PullFailure};

/// Why an archive, or an image in it, was refused. Nothing of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// The data ends too early.
    #[error("{what} ends before it is complete")]
    Truncated {
        /// The member, layer or archive.
        what: String,
    },
    /// A tar header is malformed.
    #[error("the tar header at byte {at} is broken: {why}")]
    Header {
        /// Offset in the decompressed stream.
        at: u64,
        /// The reason.
        why: &'static str,
    },
    /// The feature is not supported.
    #[error("{what} is not supported")]
    Unsupported {
        /// The feature, with the member that needs it.
        what: String,
    },
    /// Decompression failed.
    #[error("{what} cannot be decompressed")]
    Compressed {
        /// The layer or archive.
        what: String,
        /// The decompressor's error.
        source: io::Error,
    },
    /// A document is not the expected JSON.
    #[error("{what} is not the document it should be")]
    Document {
        /// The member.
        what: String,
        /// The parser's error, with the position.
        source: serde_json::Error,
    },
    /// A digest that cannot be verified.
    #[error("{what} has an unusable digest")]
    Digest {
        /// The object with the digest.
        what: String,
        /// Why it cannot be verified.
        source: DigestError,
    },
    /// Neither an OCI layout nor a docker archive.
    #[error("it holds neither index.json (an OCI layout) nor manifest.json (a docker archive)")]
    NoImages,
    /// A document refers to a missing blob.
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
    /// The content does not have the promised digest.
    #[error("{what} has digest {actual} instead of {expected}")]
    DigestDiffers {
        /// The blob, or the layer once decompressed.
        what: String,
        /// The promised digest.
        expected: Digest,
        /// The digest of the content.
        actual: Digest,
    },
    /// The content does not have the promised length.
    #[error("{what} has {actual} bytes instead of {expected}")]
    SizeDiffers {
        /// The blob.
        what: String,
        /// The promised length.
        expected: u64,
        /// The actual length.
        actual: u64,
    },
    /// Manifest and configuration list different numbers of layers.
    #[error("the manifest lists {manifest} layers and the configuration {config}")]
    LayerCount {
        /// Layers of the manifest.
        manifest: usize,
        /// `rootfs.diff_ids` of the configuration.
        config: usize,
    },
    /// An index has no manifest for this machine.
    #[error("it has no image for linux/{wanted}, only for {offered}")]
    Platform {
        /// This machine's architecture, in Go's spelling.
        wanted: String,
        /// The architectures in the index, separated by commas.
        offered: String,
    },
    /// A count exceeds one of the [`Limits`](super::Limits).
    #[error("{what} has more than the {limit} {unit} allowed")]
    TooMuch {
        /// The object that exceeds the limit.
        what: String,
        /// The limit.
        limit: u64,
        /// bytes, entries, layers, directories.
        unit: &'static str,
    },
    /// A decompression bomb: the compression ratio exceeds its limit.
    #[error("{what} decompresses to more than {limit} times its size")]
    Ratio {
        /// The layer or archive.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// A name that would lead out of the layer, or could mislead a reader.
    #[error("the layer names {path:?}, {why}")]
    Name {
        /// The name as it is in the layer.
        path: String,
        /// The reason.
        why: &'static str,
    },
    /// A link would lead out of the image's root.
    #[error("the link {path:?} to {target:?} leads out of the image")]
    LinkLeadsOut {
        /// The link.
        path: String,
        /// Its target.
        target: String,
    },
    /// A hard link's target is not an earlier file of its layer.
    #[error("the hard link {path:?} to {target:?} does not point to an earlier file of its layer")]
    HardLink {
        /// The link.
        path: String,
        /// Its target.
        target: String,
    },
    /// A name is below a file that is not a directory.
    #[error("the layer puts {path:?} below a file")]
    NotADirectory {
        /// The name.
        path: String,
    },
    /// A device node in an image archive, which may only have documents and layers.
    #[error("{path:?} is a device node: an image archive holds files only")]
    Device {
        /// The name.
        path: String,
    },
    /// A device number is larger than Linux supports.
    #[error("the device node {path:?} has a number beyond 4095 and 1048575")]
    DeviceNumber {
        /// The name.
        path: String,
    },
    /// An extended attribute that overlayfs would interpret.
    #[error("{path:?} carries the reserved attribute {name}")]
    Attribute {
        /// The file.
        path: String,
        /// The attribute.
        name: String,
    },
    /// The download of the content failed.
    #[error("failed to read its data")]
    Lost {
        /// The cause.
        source: Box<PullError>,
    },
    /// An operation on this machine failed; the archive is not at fault.
    #[error("failed to {doing}")]
    Io {
        /// The operation and its object.
        doing: String,
        /// The operating system's error.
        source: io::Error,
    },
}

impl ContentError {
    /// An adapter for `map_err`: the I/O error while `doing` something, or the [`ContentError`] that an inner reader
    /// wrapped in an [`io::Error`].
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> ContentError {
        move |source| match source.downcast::<ContentError>() {
            Ok(problem) => problem,
            Err(source) => ContentError::Io { doing: doing.into(), source },
        }
    }

    /// [`Self::io`] for an errno value.
    pub(crate) fn errno<E: Into<io::Error>>(
        doing: impl Into<String>,
    ) -> impl FnOnce(E) -> ContentError {
        move |errno| ContentError::Io { doing: doing.into(), source: errno.into() }
    }

    /// Fails if `count` exceeds `limit`.
    pub(crate) fn within(
        what: impl Into<String>,
        count: u64,
        limit: u64,
        unit: &'static str,
    ) -> Result<(), ContentError> {
        if count <= limit {
            return Ok(());
        }
        let what = what.into();
        Err(ContentError::TooMuch { what, limit, unit })
    }

    /// Fails if the length is not the promised one.
    pub(crate) fn same_size(
        what: impl Into<String>,
        expected: u64,
        actual: u64,
    ) -> Result<(), ContentError> {
        if expected == actual {
            return Ok(());
        }
        Err(ContentError::SizeDiffers { what: what.into(), expected, actual })
    }

    /// Fails if the digest is not the promised one.
    pub(crate) fn same_digest(
        what: impl Into<String>,
        expected: Digest,
        actual: Digest,
    ) -> Result<(), ContentError> {
        if expected == actual {
            return Ok(());
        }
        Err(ContentError::DigestDiffers { what: what.into(), expected, actual })
    }
}

/// An error of the [`ImageStore`](super::ImageStore).
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not a reference.
    #[error("{text:?} is not an image reference")]
    Reference {
        /// The requested name.
        text: String,
        /// The reason.
        source: ReferenceError,
    },
    /// The name of a behaviour image has no valid script.
    #[error("image {reference} has no behaviour script")]
    Script {
        /// The full reference.
        reference: String,
        /// The reason.
        source: ScriptError,
    },
    /// No archive has the image, and every archive could be read.
    #[error(
        "image {reference} is {}, and no registry was asked: offer an archive that holds it, or use crib.local/host",
        match searched {
            0 => "not here, no image archive was offered".to_owned(),
            searched => format!("in none of the {searched} image archives offered"),
        }
    )]
    NotFound {
        /// The full reference.
        reference: String,
        /// The number of archives searched.
        searched: usize,
    },
    /// No readable archive has the image; the error of the first unreadable archive is the source.
    #[error(
        "image {reference} was not found: {unreadable} of the {searched} image archives offered could not be read, \
         and no registry was asked"
    )]
    NotFoundUnreadable {
        /// The full reference.
        reference: String,
        /// The number of archives.
        searched: usize,
        /// The number of unreadable archives.
        unreadable: usize,
        /// The error of the first unreadable one.
        source: Box<ImageError>,
    },
    /// An archive, or an image in it, was refused.
    #[error("image archive {} was refused", .path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// Why.
        source: ContentError,
    },
    /// The pull from the registries failed.
    #[error(transparent)]
    Registry(Box<PullFailure>),
    /// This machine failed to unpack the image.
    #[error("failed to unpack the image")]
    Unpack {
        /// The cause.
        source: ContentError,
    },
    /// The disk is full.
    #[error(
        "the disk of {} is full (failed to {doing}): remove images or other files there and pull again",
        .directory.display()
    )]
    Full {
        /// The store's directory.
        directory: PathBuf,
        /// The operation that failed.
        doing: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The store has no such image.
    #[error("image {name} is not present: pull it first")]
    Absent {
        /// The requested name.
        name: String,
    },
    /// The store itself failed.
    #[error("failed to {doing} {}", .path.display())]
    Store {
        /// The operation that failed.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl ImageError {
    /// Turns an error caused by a full disk into [`ImageError::Full`]: neither the image, the archive nor the
    /// registry is at fault.
    pub(crate) fn or_full(self, directory: &Path) -> Self {
        let full = self.cause().filter(|(_, source)| is_full(source));
        match full.map(|(doing, source)| (doing, again(source))) {
            Some((doing, source)) => Self::Full { directory: directory.to_owned(), doing, source },
            None => self,
        }
    }

    /// The failed operation and the operating system's error, if there is one.
    fn cause(&self) -> Option<(String, &io::Error)> {
        match self {
            Self::Archive { source: ContentError::Io { doing, source }, .. }
            | Self::Unpack { source: ContentError::Io { doing, source } } => {
                Some((doing.clone(), source))
            }
            Self::Store { doing, path, source } => {
                Some((format!("{doing} {}", path.display()), source))
            }
            Self::Registry(failure) => {
                if let PullError::Io { doing, source } = &failure.source {
                    Some(((*doing).to_owned(), source))
                } else {
                    None
                }
            }
            Self::NotFoundUnreadable { source, .. } => source.cause(),
            Self::Reference { .. }
            | Self::Script { .. }
            | Self::NotFound { .. }
            | Self::Archive { .. }
            | Self::Unpack { .. }
            | Self::Full { .. }
            | Self::Absent { .. } => None,
        }
    }
}

/// Whether the file system is full, or the user's quota is exhausted.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A copy of the error, which cannot be cloned.
fn again(error: &io::Error) -> io::Error {
    let told = || io::Error::new(error.kind(), error.to_string());
    error.raw_os_error().map_or_else(told, io::Error::from_raw_os_error)
}
