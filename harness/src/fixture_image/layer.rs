//! A layer of an image: its files and its compression.

use std::fs;
use std::io::{self, Write as _};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

/// The compression of a layer in an OCI layout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Packing {
    /// Gzip.
    #[default]
    Gzip,
    /// Gzip in consecutive members of 10 kB, as parallel compressors and estargz write it.
    GzipMembers,
    /// Zstd.
    Zstd,
    /// Uncompressed.
    Plain,
}

impl Packing {
    /// The suffix of its media type.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Gzip | Self::GzipMembers => "+gzip",
            Self::Zstd => "+zstd",
            Self::Plain => "",
        }
    }
}

fn gzip(tar: &[u8]) -> io::Result<Vec<u8>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(tar)?;
    packer.finish()
}

/// One layer: files, in the order they were added. Paths are relative to the image's root.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    pub(super) entries: Vec<Entry>,
    pub(super) stream: Option<Vec<u8>>,
    pub(super) packing: Packing,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    kind: EntryType,
    path: String,
    link: String,
    body: Vec<u8>,
    mode: u32,
    owner: (u64, u64),
    /// Major and minor number of a device node.
    device: (u32, u32),
    /// An extended attribute.
    attribute: Option<(String, Vec<u8>)>,
}

impl Layer {
    /// An empty layer.
    pub fn new() -> Self {
        Self::default()
    }

    /// A layer from a raw tar stream, which is not validated.
    pub fn of_stream(stream: Vec<u8>) -> Self {
        Self { stream: Some(stream), ..Self::default() }
    }

    fn entry(mut self, kind: EntryType, path: &str, mode: u32) -> Self {
        self.entries.push(Entry {
            kind,
            path: path.trim_start_matches('/').to_owned(),
            link: String::new(),
            body: Vec::new(),
            mode,
            owner: (0, 0),
            device: (0, 0),
            attribute: None,
        });
        self
    }

    fn change(mut self, change: impl FnOnce(&mut Entry)) -> Self {
        if let Some(entry) = self.entries.last_mut() {
            change(entry);
        }
        self
    }

    /// A file with its permission bits (0o4755 for a setuid one).
    pub fn file(self, path: &str, mode: u32, body: impl Into<Vec<u8>>) -> Self {
        self.entry(EntryType::Regular, path, mode).change(|entry| entry.body = body.into())
    }

    /// A directory with its permission bits.
    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path, mode)
    }

    /// A symbolic link.
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path, 0o777).change(|entry| entry.link = target.to_owned())
    }

    /// A FIFO, or a device node with its major and minor number.
    pub fn node(self, path: &str, kind: EntryType, device: (u32, u32)) -> Self {
        self.entry(kind, path, 0o666).change(|entry| entry.device = device)
    }

    /// Another name for an earlier file of this layer.
    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path, 0o644).change(|entry| entry.link = target.to_owned())
    }

    /// Sets the compression, gzip by default, for forms of images that have a choice.
    pub fn packed(mut self, packing: Packing) -> Self {
        self.packing = packing;
        self
    }

    /// Sets the owner and group of the entry added last.
    pub fn owned_by(self, uid: u64, gid: u64) -> Self {
        self.change(|entry| entry.owner = (uid, gid))
    }

    /// Hides `path` in the layers below.
    pub fn whiteout(self, path: &str) -> Self {
        let (directory, name) = path.rsplit_once('/').map_or(("", path), |(d, n)| (d, n));
        let separator = if directory.is_empty() { "" } else { "/" };
        self.file(&format!("{directory}{separator}.wh.{name}"), 0o644, "")
    }

    /// Hides the contents of the directory `path` in the layers below.
    pub fn opaque(self, path: &str) -> Self {
        self.file(&format!("{path}/.wh..wh..opq"), 0o644, "")
    }

    /// A program of this machine, under the same absolute path, with the libraries that `ldd` lists.
    ///
    /// # Errors
    /// The program or a library cannot be read, or `ldd` cannot be run.
    pub fn host_program(mut self, path: &str) -> io::Result<Self> {
        let output = Command::new("ldd").arg(path).output()?;
        // `ldd` fails for a static program, which needs no libraries.
        let listing = String::from_utf8_lossy(&output.stdout);
        let libraries = listing
            .lines()
            .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
        for file in libraries.chain([path]) {
            let name = file.trim_start_matches('/');
            if !self.entries.iter().any(|entry| entry.path == name) {
                self = self.file(name, 0o755, fs::read(file)?);
            }
        }
        Ok(self)
    }

    /// Compresses a tar stream of the layer.
    pub(super) fn pack(&self, tar: &[u8]) -> io::Result<Vec<u8>> {
        match self.packing {
            Packing::Gzip => gzip(tar),
            Packing::GzipMembers => {
                let members = tar.chunks(10_000).map(gzip);
                Ok(members.collect::<io::Result<Vec<_>>>()?.concat())
            }
            Packing::Zstd => zstd::encode_all(tar, 1),
            Packing::Plain => Ok(tar.to_vec()),
        }
    }

    /// Gives the entry added last an extended attribute, such as `security.capability`.
    pub fn with_attribute(self, name: &str, value: &[u8]) -> Self {
        self.change(|entry| entry.attribute = Some((name.to_owned(), value.to_vec())))
    }

    /// The layer as a tar stream; equal for equal entries.
    ///
    /// # Errors
    /// A path does not fit in a tar file.
    pub fn tar(&self) -> io::Result<Vec<u8>> {
        if let Some(stream) = &self.stream {
            return Ok(stream.clone());
        }
        let mut tar = tar::Builder::new(Vec::new());
        for entry in &self.entries {
            if let Some((name, value)) = &entry.attribute {
                let key = format!("SCHILY.xattr.{name}");
                tar.append_pax_extensions([(key.as_str(), value.as_slice())])?;
            }
            let mut header = Header::new_gnu();
            header.set_entry_type(entry.kind);
            header.set_mode(entry.mode);
            header.set_uid(entry.owner.0);
            header.set_gid(entry.owner.1);
            header.set_mtime(1_600_000_000);
            header.set_size(entry.body.len() as u64);
            if entry.kind == EntryType::Char {
                header.set_device_major(entry.device.0)?;
                header.set_device_minor(entry.device.1)?;
            }
            match entry.kind {
                EntryType::Link | EntryType::Symlink => {
                    tar.append_link(&mut header, &entry.path, &entry.link)?
                }
                EntryType::Regular
                | EntryType::Char
                | EntryType::Block
                | EntryType::Directory
                | EntryType::Fifo
                | EntryType::Continuous
                | EntryType::GNULongName
                | EntryType::GNULongLink
                | EntryType::GNUSparse
                | EntryType::XGlobalHeader
                | EntryType::XHeader
                | EntryType::__Nonexhaustive(_) => {
                    tar.append_data(&mut header, &entry.path, &entry.body[..])?
                }
            }
        }
        tar.into_inner()
    }
}
