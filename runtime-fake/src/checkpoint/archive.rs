//! Writes the archive of a checkpoint atomically, and reads one as untrusted input.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read as _},
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use image::{ContentError, Kind, SeekFile, TarReader};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
};
use serde::{Serialize, de::DeserializeOwned};
use tar::Builder;
use tempfile::TempPath;

/// Limit on a document in an archive.
const DOCUMENT: u64 = 16 << 20;
/// Limit on the files of an archive, more than any checkpoint has.
const MEMBERS: usize = 100_000;
/// Limit on an extension header for a file's name.
const EXTENSION: u64 = 64 << 10;

/// An archive that is being written. Dropping it, or killing the process, leaves no file.
pub(crate) struct Writer {
    tar: Builder<BufWriter<File>>,
    /// Its temporary name, if the file system requires one.
    name: Option<TempPath>,
    place: PathBuf,
}

impl Writer {
    /// Creates an archive for `place`, readable by its owner only: it contains the memory of the processes.
    pub(crate) fn new(place: &Path) -> io::Result<Self> {
        let directory = directory_of(place);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let (file, name) = match rustix::fs::open(directory, flags, mode) {
            Ok(file) => (File::from(file), None),
            // Not every file system supports O_TMPFILE.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let file = beside().tempfile_in(directory)?;
                let (file, name) = file.into_parts();
                (file, Some(name))
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { tar: Builder::new(BufWriter::new(file)), name, place: place.to_owned() })
    }

    /// Adds the contents of `directory`, below `below` (which may be empty).
    pub(crate) fn add(&mut self, directory: &Path, below: &str) -> io::Result<()> {
        let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
        compact::sort_by_key(&mut entries, fs::DirEntry::file_name);
        for entry in entries {
            let name = Path::new(below).join(entry.file_name());
            if entry.file_type()?.is_dir() {
                self.tar.append_dir_all(name, entry.path())?;
            } else {
                self.tar.append_path_with_name(entry.path(), name)?;
            }
        }
        Ok(())
    }

    /// Adds a document.
    pub(crate) fn add_document(&mut self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(value)?;
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(text.len() as u64);
        self.tar.append_data(&mut header, name, text.as_slice())
    }

    /// Moves the archive to its place.
    pub(crate) fn finish(self) -> io::Result<()> {
        let file = self.tar.into_inner()?;
        let file = file.into_inner().map_err(|error| error.into_error())?;
        file.sync_all()?;
        let name = match self.name {
            Some(name) => name,
            None => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let link = |name: &Path| {
                    rustix::fs::linkat(CWD, &path, CWD, name, AtFlags::SYMLINK_FOLLOW)
                        .map_err(io::Error::from)
                };
                beside().make_in(directory_of(&self.place), link)?.into_temp_path()
            }
        };
        name.persist(&self.place).map_err(|error| error.error)
    }
}

fn directory_of(place: &Path) -> &Path {
    place.parent().unwrap_or(Path::new("/"))
}

fn beside() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".checkpoint-");
    builder
}

/// Why an archive is invalid, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    /// The archive is invalid; the client has to change it.
    #[error("{0}")]
    Invalid(String),
    /// The operating system failed.
    #[error("failed to {what}")]
    Io { what: &'static str, source: io::Error },
}

impl CheckpointError {
    /// Whether the archive or the operating system is at fault: `what` is the operation, and `wrong` describes the
    /// invalid archive.
    pub(crate) fn of(problem: ContentError, what: &'static str, wrong: &str) -> Self {
        if let ContentError::Io { source, .. } = problem {
            if source.kind() != io::ErrorKind::UnexpectedEof {
                return Self::Io { what, source };
            }
            return Self::Invalid(format!("{wrong}: it is truncated"));
        }
        Self::Invalid(format!("{wrong}: {}", crate::chain(&problem)))
    }
}

fn wrong<T>(message: impl Into<String>) -> Result<T, CheckpointError> {
    Err(CheckpointError::Invalid(message.into()))
}

fn io(what: &'static str) -> impl Fn(io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { what, source }
}

/// An indexed archive: the position of each file.
#[derive(Debug)]
pub(crate) struct Archive {
    file: File,
    /// Offset and length of each file.
    files: BTreeMap<String, (u64, u64)>,
}

impl Archive {
    /// Opens and indexes the archive at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        // A pipe may never end.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return wrong(format!("there is no checkpoint at {}", path.display()));
            }
            file => file.map_err(io("open the checkpoint"))?,
        };
        let meta = file.metadata().map_err(io("open the checkpoint"))?;
        if !meta.is_file() {
            return wrong(format!("{} is not a file", path.display()));
        }
        let copy = file.try_clone().map_err(io("read the checkpoint"))?;
        let reader = SeekFile::new(copy).map_err(io("read the checkpoint"))?;
        let files = index_members(TarReader::new(reader, "the checkpoint", EXTENSION))?;
        if files.is_empty() {
            return wrong(format!(
                "{} holds nothing: a checkpoint is a tar archive that is not compressed",
                path.display()
            ));
        }
        Ok(Self { file, files })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// Reads and parses a document.
    pub(crate) fn document<T: DeserializeOwned>(&self, name: &str) -> Result<T, CheckpointError> {
        let Some((offset, size)) = self.files.get(name).copied() else {
            return wrong(format!(
                "the checkpoint has no {name}: it was not made by this runtime, or is not whole"
            ));
        };
        if size > DOCUMENT {
            return wrong(format!("{name} of the checkpoint has {size} bytes"));
        }
        let mut text = vec![0; usize::try_from(size).unwrap_or_default()];
        self.file.read_exact_at(&mut text, offset).map_err(io("read the checkpoint"))?;
        serde_json::from_slice(&text).map_err(|error| {
            CheckpointError::Invalid(format!("{name} of the checkpoint is invalid: {error}"))
        })
    }

    /// Writes the files of the directory `name` into the new directory `to`; files in subdirectories are skipped.
    pub(crate) fn extract(&self, name: &str, to: &Path) -> Result<(), CheckpointError> {
        fs::create_dir(to).map_err(io("make a directory for the checkpoint"))?;
        let below = format!("{name}/");
        for (member, (offset, size)) in &self.files {
            match member.strip_prefix(&below) {
                Some(name) if !name.contains('/') => self.copy(*offset, *size, &to.join(name))?,
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Writes one file to the new file `to`.
    pub(crate) fn extract_file(&self, name: &str, to: &Path) -> Result<(), CheckpointError> {
        match self.files.get(name) {
            Some((offset, size)) => self.copy(*offset, *size, to),
            None => wrong(format!("the checkpoint has no {name}: it is not whole")),
        }
    }

    fn copy(&self, offset: u64, size: u64, to: &Path) -> Result<(), CheckpointError> {
        let what = "copy the files of the checkpoint";
        let mut from = self.file.try_clone().map_err(io(what))?;
        io::Seek::seek(&mut from, io::SeekFrom::Start(offset)).map_err(io(what))?;
        let mut file = File::create_new(to).map_err(io(what))?;
        let copied = io::copy(&mut from.take(size), &mut file).map_err(io(what))?;
        if copied < size {
            return wrong("the checkpoint is truncated within a file");
        }
        Ok(())
    }
}

/// Indexes the archive. It may have files and directories only, each with a unique name inside the archive.
fn index_members(
    mut tar: TarReader<SeekFile>,
) -> Result<BTreeMap<String, (u64, u64)>, CheckpointError> {
    let mut files = BTreeMap::new();
    let not_one = |problem| CheckpointError::of(problem, "read the checkpoint", "not a checkpoint");
    while let Some(member) = tar.next_member().map_err(not_one)? {
        let shown = String::from_utf8_lossy(&member.path).into_owned();
        let Some(name) = inside(&member.path) else {
            return wrong(format!("the checkpoint names a file outside it: {shown:?}"));
        };
        match member.kind {
            Kind::Directory => continue,
            Kind::File => {}
            Kind::Sparse
            | Kind::HardLink
            | Kind::Symlink
            | Kind::Char
            | Kind::Block
            | Kind::Fifo => {
                return wrong(format!(
                    "{shown:?} in the checkpoint is neither a plain file nor a directory"
                ));
            }
        }
        if files.len() >= MEMBERS {
            return wrong(format!("the checkpoint has more than {MEMBERS} files"));
        }
        if files.insert(name, (member.offset, member.size)).is_some() {
            return wrong(format!("{shown:?} is in the checkpoint twice"));
        }
    }
    Ok(files)
}

/// A member's name without `./`; `None` if it leads outside.
fn inside(path: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(path).ok()?;
    if text.starts_with('/') || text.contains('\0') {
        return None;
    }
    let parts: Vec<&str> = text.split('/').filter(|p| !matches!(*p, "" | ".")).collect();
    (!parts.contains(&"..")).then(|| parts.join("/"))
}
