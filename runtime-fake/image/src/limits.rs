//! ◆ The limits on an image.

/// Limits on one image, against resource exhaustion. Every field is an inclusive maximum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a manifest, an index or a configuration.
    pub document_bytes: u64,
    /// Bytes of all layers of one image once decompressed, and of an archive once decompressed.
    pub unpacked_bytes: u64,
    /// Decompressed bytes for each compressed one, checked once [`Limits::ratio_from`] is exceeded.
    pub ratio: u64,
    /// Decompressed bytes up to which the ratio is not checked: small files of zeros compress well.
    pub ratio_from: u64,
    /// Files, directories and links of all layers of one image, and members of an archive.
    pub entries: u64,
    /// Layers of one image. The kernel supports 500 lower directories in one overlay mount.
    pub layers: usize,
    /// Directories above a file.
    pub depth: usize,
    /// Bytes of one extension header: a long name, or a set of extended attributes.
    pub extension_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            document_bytes: 4 << 20,
            unpacked_bytes: 64 << 30,
            ratio: 200,
            ratio_from: 1 << 30,
            entries: 1_000_000,
            layers: 256,
            depth: 256,
            extension_bytes: 1 << 20,
        }
    }
}
