//! Writes a container's changes to its image, the upper directory of its overlay, as an OCI layer (image
//! specification 1.1, layer.md): a tar archive with whiteouts.
//!
//! Only the processes of the checkpointed container are frozen. Its execs, and other containers that share its `/dev/shm`, may
//! replace files meanwhile: each name is looked up below the open top directory, and no link is followed.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata},
    io::{self, BufWriter, Read as _, Write},
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{FileTypeExt as _, MetadataExt as _},
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};
use tar::{Builder, EntryType, Header};

/// The prefix of overlayfs's own attributes.
const OVERLAY: &str = "trusted.overlay.";
/// The prefix of PAX records for extended attributes.
const PAX_ATTRIBUTE: &str = "SCHILY.xattr.";

/// Writes the layer of `upper` to the new file `to`.
pub(crate) fn write(upper: &Path, to: &Path) -> io::Result<()> {
    let top = file_tree::open(upper)?;
    let tar = Builder::new(BufWriter::new(File::create_new(to)?));
    let mut layer = Layer { top, tar, links: BTreeMap::new() };
    layer.directory(Path::new("."))?;
    layer.tar.into_inner()?.flush()
}

/// Opens `/dev/shm` in a process's root, `/proc/PID/root`. A container may have replaced `/dev` by a link, which would lead to a
/// directory of the host.
pub(crate) fn shared_memory(root: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(file_tree::open_scoped(&root, Path::new("dev/shm"), flags, Mode::empty(), resolve)?)
}

/// Writes the layer of an open directory to the new file `to`.
pub(crate) fn write_open(directory: &OwnedFd, to: &Path) -> io::Result<()> {
    write(&path_of(directory).join("."), to)
}

/// A directory that is being written.
struct Level {
    name: PathBuf,
    /// The entries that are not written yet, the next one last.
    left: Vec<OsString>,
}

struct Layer<W: Write> {
    top: OwnedFd,
    tar: Builder<W>,
    /// The first name of each file with several names.
    links: BTreeMap<(u64, u64), PathBuf>,
}

impl<W: Write> Layer<W> {
    /// Adds a directory with its contents. If it is nested deeper than `PATH_MAX` allows, the kernel refuses it and
    /// the checkpoint fails.
    fn directory(&mut self, name: &Path) -> io::Result<()> {
        let mut levels = vec![self.begin(name)?];
        while let Some(level) = levels.last_mut() {
            let Some(next) = level.left.pop() else {
                levels.pop();
                continue;
            };
            let parent = self.open(&level.name, OFlags::PATH | OFlags::DIRECTORY)?;
            let (path, name) = (path_of(&parent).join(&next), level.name.join(&next));
            let meta = fs::symlink_metadata(&path)?;
            if meta.is_dir() {
                levels.push(self.begin(&name)?);
            } else {
                self.file(&path, &name, &meta)?;
            }
        }
        Ok(())
    }

    /// Opens a file or directory below the top directory. Refuses links.
    fn open(&self, name: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        Ok(file_tree::open_scoped(&self.top, name, flags, Mode::empty(), resolve)?)
    }

    /// Opens the regular file that was found under a name, with `meta`.
    fn body(&self, name: &Path, meta: &Metadata) -> io::Result<File> {
        // Opened with O_PATH first: a FIFO in its place would block, and a device may have side effects.
        let found = File::from(self.open(name, OFlags::PATH)?);
        let now = found.metadata()?;
        if !now.is_file() || (now.dev(), now.ino()) != (meta.dev(), meta.ino()) {
            return Err(io::Error::other(format!("{} was replaced meanwhile", name.display())));
        }
        File::open(path_of(&found))
    }

    fn begin(&mut self, name: &Path) -> io::Result<Level> {
        let directory = File::from(self.open(name, OFlags::RDONLY | OFlags::DIRECTORY)?);
        let (meta, path) = (directory.metadata()?, path_of(&directory).join("."));
        let attributes = attributes(&path, name)?;
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
        Ok(Level { name: name.to_owned(), left })
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
        let attributes = attributes(path, name)?;
        if kind.is_symlink() {
            let mut header = header(meta, EntryType::Symlink);
            let target = fs::read_link(path)?;
            return self.tar.append_link(&mut header, name, target);
        }
        if kind.is_file() {
            let body = self.body(name, meta)?;
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
        // If a process changes its length meanwhile, the archive stays valid.
        let body = body.chain(io::repeat(0)).take(header.size()?);
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

/// The path of an open file.
fn path_of(file: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// The extended attributes of the file at `path`, called `name` in the archive. Of overlayfs's own only `opaque` is kept, under that
/// name.
fn attributes(path: &Path, name: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for attribute in names(path)? {
        let Some(value) = value(path, &attribute)? else {
            continue;
        };
        match attribute.strip_prefix(OVERLAY) {
            None => found.push((attribute, value)),
            Some("opaque") => found.push(("opaque".to_owned(), value)),
            // The file was renamed, or changed without its content: both attributes refer to the lower layers.
            Some(own @ ("redirect" | "metacopy")) => {
                let message = format!(
                    "{} has overlayfs's mark {own:?}, which no layer can hold: switch redirect_dir and metacopy of overlayfs off",
                    name.display()
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use rstest::rstest;
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    fn layer(top: &Path) -> Layer<Vec<u8>> {
        Layer {
            top: file_tree::open(top).unwrap(),
            tar: Builder::new(Vec::new()),
            links: BTreeMap::new(),
        }
    }

    /// A directory `top`, and a directory `host` beside it with a file `secret`.
    fn place() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("top")).unwrap();
        fs::create_dir(place.path().join("host")).unwrap();
        fs::write(place.path().join("host/secret"), "secret").unwrap();
        place
    }

    #[rstest]
    #[case::link(|at: &Path| symlink("../host/secret", at).unwrap())]
    #[case::link_inside(|at: &Path| symlink("other", at).unwrap())]
    #[case::fifo(|at: &Path| mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap())]
    #[case::another_file(|at: &Path| fs::write(at, "new").unwrap())]
    fn file_replaced_after_it_was_found_is_not_read(#[case] replace: fn(&Path)) {
        let place = place();
        let top = place.path().join("top");
        let at = top.join("file");
        fs::write(&at, "own").unwrap();
        let layer = layer(&top);
        let meta = fs::symlink_metadata(&at).unwrap();
        let mut text = String::new();
        layer.body(Path::new("./file"), &meta).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "own");
        // It keeps its inode, which another file could get otherwise.
        fs::rename(&at, top.join("other")).unwrap();
        replace(&at);
        layer.body(Path::new("./file"), &meta).unwrap_err();
    }

    #[test]
    fn directory_replaced_by_a_link_is_not_entered() {
        let place = place();
        let top = place.path().join("top");
        symlink("../host", top.join("directory")).unwrap();
        let mut layer = layer(&top);
        assert!(layer.begin(Path::new("./directory")).is_err());
        let meta = fs::metadata(place.path().join("host/secret")).unwrap();
        layer.body(Path::new("./directory/secret"), &meta).unwrap_err();
    }

    #[test]
    fn shared_memory_behind_a_link_is_not_read() {
        let place = place();
        let top = place.path().join("top");
        fs::create_dir_all(top.join("dev/shm")).unwrap();
        fs::write(top.join("dev/shm/file"), "own").unwrap();
        let shm = shared_memory(&top).unwrap();
        write_open(&shm, &place.path().join("shm.tar")).unwrap();
        fs::rename(top.join("dev"), top.join("other")).unwrap();
        fs::create_dir(place.path().join("host/shm")).unwrap();
        symlink("../host", top.join("dev")).unwrap();
        shared_memory(&top).unwrap_err();
    }

    #[test]
    fn layer_has_links_as_links_and_files_with_contents() {
        let place = place();
        let top = place.path().join("top");
        fs::create_dir(top.join("a")).unwrap();
        fs::write(top.join("a/file"), "own").unwrap();
        symlink("../host/secret", top.join("link")).unwrap();
        symlink("../host", top.join("to-directory")).unwrap();
        let to = place.path().join("layer.tar");
        write(&top, &to).unwrap();
        let mut tar = tar::Archive::new(File::open(&to).unwrap());
        let members = tar.entries().unwrap().map(|member| {
            let mut member = member.unwrap();
            let mut text = String::new();
            member.read_to_string(&mut text).unwrap();
            let name = member.path().unwrap().display().to_string();
            (name.trim_start_matches("./").to_owned(), member.header().entry_type(), text)
        });
        let members: Vec<_> = members.filter(|(_, kind, _)| !kind.is_dir()).collect();
        let link = |name: &str| (name.to_owned(), EntryType::Symlink, String::new());
        let file = ("a/file".to_owned(), EntryType::Regular, "own".to_owned());
        assert_eq!(members, [file, link("link"), link("to-directory")]);
    }
}
