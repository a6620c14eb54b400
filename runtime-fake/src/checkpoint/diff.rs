//! Writes a container's changes to its image, the upper directory of its overlay, as an OCI layer (image
//! specification 1.1, layer.md): a tar archive with whiteouts.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata},
    io::{self, BufWriter, Write},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

/// The prefix of overlayfs's own attributes.
const OVERLAY: &str = "trusted.overlay.";
/// The prefix of PAX records for extended attributes.
const PAX_ATTRIBUTE: &str = "SCHILY.xattr.";

/// Writes the layer of `upper` to the new file `to`.
pub(crate) fn write(upper: &Path, to: &Path) -> io::Result<()> {
    let mut layer =
        Layer { tar: Builder::new(BufWriter::new(File::create_new(to)?)), links: BTreeMap::new() };
    layer.directory(upper, Path::new("."))?;
    layer.tar.into_inner()?.flush()
}

/// A directory that is being written.
struct Level {
    path: PathBuf,
    name: PathBuf,
    /// The entries that are not written yet, the next one last.
    left: Vec<OsString>,
}

struct Layer<W: Write> {
    tar: Builder<W>,
    /// The first name of each file with several names.
    links: BTreeMap<(u64, u64), PathBuf>,
}

impl<W: Write> Layer<W> {
    /// Adds a directory with its contents. If it is nested deeper than `PATH_MAX` allows, the kernel refuses it and
    /// the checkpoint fails.
    fn directory(&mut self, path: &Path, name: &Path) -> io::Result<()> {
        let mut levels = vec![self.begin(path, name)?];
        while let Some(level) = levels.last_mut() {
            let Some(next) = level.left.pop() else {
                levels.pop();
                continue;
            };
            let (path, name) = (level.path.join(&next), level.name.join(&next));
            let meta = fs::symlink_metadata(&path)?;
            if meta.is_dir() {
                levels.push(self.begin(&path, &name)?);
            } else {
                self.file(&path, &name, &meta)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, path: &Path, name: &Path) -> io::Result<Level> {
        let meta = fs::symlink_metadata(path)?;
        let attributes = attributes(path)?;
        let opaque = attributes.iter().any(|(n, v)| n == "opaque" && v == b"y");
        self.put(&meta, EntryType::Directory, name, &attributes, io::empty())?;
        if opaque {
            self.mark(&name.join(".wh..wh..opq"))?;
        }
        let mut left = Vec::new();
        for entry in fs::read_dir(path)? {
            left.push(entry?.file_name());
        }
        compact::sort_by(&mut left, |a, b| b.cmp(a));
        Ok(Level { path: path.to_owned(), name: name.to_owned(), left })
    }

    fn file(&mut self, path: &Path, name: &Path, meta: &Metadata) -> io::Result<()> {
        let kind = meta.file_type();
        if kind.is_char_device() && meta.rdev() == 0 {
            let gone = [b".wh.", name.file_name().unwrap_or_default().as_bytes()].concat();
            return self.mark(&name.with_file_name(OsStr::from_bytes(&gone)));
        }
        // criu recreates a socket's file together with the socket.
        if kind.is_socket() {
            return Ok(());
        }
        if meta.nlink() > 1 {
            let inode = (meta.dev(), meta.ino());
            if let Some(first) = self.links.get(&inode) {
                let mut header = header(meta, EntryType::Link);
                return self.tar.append_link(&mut header, name, first);
            }
            self.links.insert(inode, name.to_owned());
        }
        let attributes = attributes(path)?;
        if kind.is_symlink() {
            let mut header = header(meta, EntryType::Symlink);
            let target = fs::read_link(path)?;
            return self.tar.append_link(&mut header, name, target);
        }
        if kind.is_file() {
            let body = File::open(path)?;
            return self.put(meta, EntryType::Regular, name, &attributes, body);
        }
        let kind = if kind.is_fifo() {
            EntryType::Fifo
        } else if kind.is_char_device() {
            EntryType::Char
        } else {
            EntryType::Block
        };
        self.put(meta, kind, name, &attributes, io::empty())
    }

    fn put(
        &mut self,
        meta: &Metadata,
        kind: EntryType,
        name: &Path,
        attributes: &[(String, Vec<u8>)],
        body: impl io::Read,
    ) -> io::Result<()> {
        let records = attributes.iter().filter(|(n, _)| n.contains('.'));
        let records: Vec<_> = records.map(|(n, v)| (format!("{PAX_ATTRIBUTE}{n}"), v)).collect();
        if !records.is_empty() {
            self.tar
                .append_pax_extensions(records.iter().map(|(n, v)| (n.as_str(), v.as_slice())))?;
        }
        let mut header = header(meta, kind);
        if kind == EntryType::Regular {
            header.set_size(meta.len());
        }
        if matches!(kind, EntryType::Char | EntryType::Block) {
            header.set_device_major(rustix::fs::major(meta.rdev()))?;
            header.set_device_minor(rustix::fs::minor(meta.rdev()))?;
        }
        // No process writes to it meanwhile; if one does, the archive stays valid.
        let body = io::Read::take(body, header.size()?);
        self.tar.append_data(&mut header, name, body)
    }

    /// Adds an empty file as a whiteout.
    fn mark(&mut self, name: &Path) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o600);
        header.set_size(0);
        self.tar.append_data(&mut header, name, io::empty())
    }
}

fn header(meta: &Metadata, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(meta.mode() & 0o7777);
    header.set_uid(meta.uid().into());
    header.set_gid(meta.gid().into());
    header.set_mtime(u64::try_from(meta.mtime()).unwrap_or(0));
    header.set_size(0);
    header
}

/// A file's extended attributes. Of overlayfs's own only `opaque` is kept, under that name.
fn attributes(path: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for name in names(path)? {
        let Some(value) = value(path, &name)? else {
            continue;
        };
        match name.strip_prefix(OVERLAY) {
            None => found.push((name, value)),
            Some("opaque") => found.push(("opaque".to_owned(), value)),
            // The file was renamed, or changed without its content: both attributes refer to the lower layers.
            Some(own @ ("redirect" | "metacopy")) => {
                let message = format!(
                    "{} has overlayfs's mark {own:?}, which no layer can hold: switch redirect_dir and metacopy of overlayfs off",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
            Some(_) => {}
        }
    }
    Ok(found)
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut buffer = vec![0; 64 << 10];
    let length = match rustix::fs::llistxattr(path, buffer.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => 0,
        Err(error) => return Err(error.into()),
    };
    let names = buffer[..length].split(|byte| *byte == 0);
    // Names that are not UTF-8 do not fit into a PAX record, and do not occur in practice.
    Ok(names
        .filter_map(|name| String::from_utf8(name.to_vec()).ok())
        .filter(|name| !name.is_empty())
        .collect())
}

fn value(path: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; 64 << 10];
    match rustix::fs::lgetxattr(path, name, buffer.as_mut_slice()) {
        Ok(length) => {
            buffer.truncate(length);
            Ok(Some(buffer))
        }
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
