//! Unpacks an archive below a directory, which it never leaves.
//!
//! Each name is looked up without following a link, so that no member is unpacked through a link of the archive. An existing file
//! with a member's name is overwritten, an existing link is replaced, and an existing directory is kept.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use file_tree::open_scoped;
use image::{Kind, Member, Sequential, TarReader};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, fchmod, fstat, futimens,
    linkat, mkdirat, openat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use crate::error::{CopyError, Notes};
use crate::member::{Names, Placement, Top};
use crate::place::{Destination, is_of_kernel};

/// Limit on the extension headers of a member: names, and attributes, which are ignored.
const EXTENSIONS: u64 = 1 << 20;
/// Limit on the bytes read after the last member: tar pads its last record, and senders wait until all is read.
const REST: u64 = 1 << 20;

/// The side of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This machine, with an archive from a container. Links that lead out of the copied tree are skipped, because they would
    /// lead to files of another root; set-user-ID, set-group-ID and sticky bits are dropped.
    Host,
    /// A container, in which all links are kept.
    Container,
}

/// Unpacks an archive whose members are named as `top` requires. The files belong to the calling thread's user and have the
/// archive's modes and times; devices, FIFOs and attributes are skipped.
///
/// # Errors
/// The archive is malformed, a member belongs outside the destination, or a file cannot be made. Files made until then stay.
pub fn unpack(
    mut archive: impl Read,
    to: Destination,
    top: Top,
    side: Side,
) -> Result<Notes, CopyError> {
    let Destination { directory, name } = to;
    let mut unpacker = Unpacker {
        directory,
        placement: Placement::new(top, name),
        side,
        notes: Notes::default(),
        made: Vec::new(),
        buffer: vec![0; 64 << 10],
    };
    let mut reader = TarReader::new(Sequential(&mut archive), "the archive", EXTENSIONS);
    while let Some(member) = reader.next_member()? {
        unpacker.member(&member, &mut reader)?;
    }
    unpacker.finish(&Names::new())?;
    io::copy(&mut archive.take(REST), &mut io::sink()).map_err(|source| {
        CopyError::Archive(image::ContentError::Io { doing: "read the archive".to_owned(), source })
    })?;
    Ok(unpacker.notes)
}

/// A new directory, whose mode and time are set after its contents.
struct NewDirectory {
    names: Names,
    directory: OwnedFd,
    mode: u32,
    time: Timestamps,
}

struct Unpacker {
    directory: OwnedFd,
    placement: Placement,
    side: Side,
    notes: Notes,
    /// Each directory is inside the previous one.
    made: Vec<NewDirectory>,
    buffer: Vec<u8>,
}

impl Unpacker {
    fn member(
        &mut self,
        member: &Member,
        body: &mut TarReader<impl image::Skip>,
    ) -> Result<(), CopyError> {
        let names = self.placement.place(&member.path)?;
        self.finish(&names)?;
        let Some((name, above)) = names.split_last() else {
            // The destination itself, which exists.
            return Ok(());
        };
        let parent = self.parent(above)?;
        let path = &member.path;
        if is_of_kernel(parent.as_fd()).map_err(CopyError::errno("look at", path))? {
            return Err(CopyError::refused(path, "belongs into a file system of the kernel"));
        }
        match member.kind {
            Kind::Directory => self.make_directory(&parent, name, &names, member),
            Kind::File | Kind::Sparse => self.file(&parent, name, member, body),
            Kind::Symlink if self.leads_out(&names, member) => {
                let target = crate::error::lossy(&member.link);
                self.notes.add(path, &format!("the link to {target:?} may lead out of the copy"));
                Ok(())
            }
            Kind::Symlink => {
                let make = || symlinkat(as_path(&member.link), &parent, as_path(name));
                replacing(&parent, name, path, make)?;
                let times = times(member);
                utimensat(&parent, as_path(name), &times, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(CopyError::errno("set the time of", path))
            }
            Kind::HardLink => {
                let target = self.placement.place(&member.link)?;
                let Some((old, above)) = target.split_last() else {
                    return Err(CopyError::refused(path, "is a hard link to a directory"));
                };
                let from = self.parent(above)?;
                let make = || linkat(&from, as_path(old), &parent, as_path(name), AtFlags::empty());
                replacing(&parent, name, path, make)
            }
            Kind::Char | Kind::Block => {
                self.notes.add(path, "it is a device");
                Ok(())
            }
            Kind::Fifo => {
                self.notes.add(path, "it is a FIFO");
                Ok(())
            }
        }
    }

    fn leads_out(&self, names: &Names, member: &Member) -> bool {
        self.side == Side::Host && self.placement.leads_out(names, &member.link)
    }

    /// The directory for a member, made if the archive has none.
    fn parent(&self, names: &[Vec<u8>]) -> Result<OwnedFd, CopyError> {
        let path = names.join(&b'/');
        match self.open(&path) {
            Err(Errno::NOENT) => {}
            opened => return opened.map_err(|errno| not_entered(&path, errno)),
        }
        for depth in 1..=names.len() {
            let (name, above) = match names.get(..depth).and_then(<[_]>::split_last) {
                Some(split) => split,
                None => continue,
            };
            let above = above.join(&b'/');
            let parent = self.open(&above).map_err(|errno| not_entered(&above, errno))?;
            match mkdirat(&parent, as_path(name), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(CopyError::errno("make the directory", &path)(errno)),
            }
        }
        self.open(&path).map_err(|errno| not_entered(&path, errno))
    }

    /// Opens a directory of the destination with `O_PATH`; no link is followed.
    fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if path.is_empty() {
            return openat(&self.directory, ".", flags, Mode::empty());
        }
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        open_scoped(&self.directory, as_path(path), flags, Mode::empty(), resolve)
    }

    fn make_directory(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        names: &Names,
        member: &Member,
    ) -> Result<(), CopyError> {
        let path = &member.path;
        // Until it is complete, no other user may enter it.
        match mkdirat(parent, as_path(name), Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let found = statat(parent, as_path(name), AtFlags::SYMLINK_NOFOLLOW);
                let found = found.map_err(CopyError::errno("look at", path))?;
                let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
                return match is_directory {
                    true => Ok(()),
                    false => Err(CopyError::refused(path, "exists and is not a directory")),
                };
            }
            Err(errno) => return Err(CopyError::errno("make the directory", path)(errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(parent, as_path(name), flags, Mode::empty());
        let directory = directory.map_err(CopyError::errno("open", path))?;
        let (mode, time) = (self.mode(member), times(member));
        self.made.push(NewDirectory { names: names.clone(), directory, mode, time });
        Ok(())
    }

    /// Sets the modes and times of directories that do not contain `next`: archives list a tree depth first.
    fn finish(&mut self, next: &Names) -> Result<(), CopyError> {
        while let Some(made) = self.made.pop_if(|made| !next.starts_with(&made.names)) {
            let path = made.names.join(&b'/');
            let set = || {
                fchmod(&made.directory, Mode::from_raw_mode(made.mode))?;
                futimens(&made.directory, &made.time)
            };
            set().map_err(CopyError::errno("set the mode and time of", &path))?;
        }
        Ok(())
    }

    fn file(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        member: &Member,
        body: &mut TarReader<impl image::Skip>,
    ) -> Result<(), CopyError> {
        let path = &member.path;
        let file = open_file(parent, name).map_err(|errno| match errno {
            Errno::ISDIR => CopyError::refused(path, "exists and is a directory"),
            errno => CopyError::errno("write", path)(errno),
        })?;
        let mut file = File::from(file);
        let written = match member.kind == Kind::Sparse {
            true => self.sparse(body, &mut file, member),
            false => self.copy(body, &mut file, path),
        };
        written?;
        let set = || {
            fchmod(&file, Mode::from_raw_mode(self.mode(member)))?;
            futimens(&file, &times(member))
        };
        set().map_err(CopyError::errno("set the mode and time of", path))
    }

    fn mode(&self, member: &Member) -> u32 {
        let kept = if self.side == Side::Host { 0o777 } else { 0o7777 };
        member.mode & kept
    }

    fn copy(&mut self, from: &mut impl Read, to: &mut File, path: &[u8]) -> Result<(), CopyError> {
        use std::io::Write as _;
        loop {
            let read = match from.read(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(|source| {
                    let doing = format!("read {:?} of the archive", crate::error::lossy(path));
                    CopyError::Archive(image::ContentError::Io { doing, source })
                })?,
            };
            let bytes = self.buffer.get(..read).unwrap_or_default();
            if bytes.is_empty() {
                return Ok(());
            }
            to.write_all(bytes).map_err(|source| {
                let path = crate::error::lossy(path);
                CopyError::Io { doing: "write", path, source }
            })?;
        }
    }

    /// Writes the data of a sparse file at its offsets.
    fn sparse(
        &mut self,
        from: &mut impl Read,
        to: &mut File,
        member: &Member,
    ) -> Result<(), CopyError> {
        let failed = |source| {
            let path = crate::error::lossy(&member.path);
            CopyError::Io { doing: "write", path, source }
        };
        for (offset, length) in &member.data {
            to.seek(SeekFrom::Start(*offset)).map_err(failed)?;
            self.copy(&mut from.take(*length), to, &member.path)?;
        }
        to.set_len(member.size).map_err(failed)
    }
}

/// The error for a directory of the destination that cannot be entered.
fn not_entered(path: &[u8], errno: Errno) -> CopyError {
    match errno {
        Errno::LOOP => CopyError::refused(path, "is a link in the destination, and not followed"),
        errno => CopyError::errno("open the directory", path)(errno),
    }
}

/// Makes an entry, replacing an existing one that is not a directory.
fn replacing(
    parent: &OwnedFd,
    name: &[u8],
    path: &[u8],
    make: impl Fn() -> Result<(), Errno>,
) -> Result<(), CopyError> {
    let made = match make() {
        Err(Errno::EXIST) => {
            unlinkat(parent, as_path(name), AtFlags::empty()).and_then(|()| make())
        }
        made => made,
    };
    made.map_err(|errno| match errno {
        Errno::ISDIR => CopyError::refused(path, "exists and is a directory"),
        errno => CopyError::errno("make the link", path)(errno),
    })
}

/// Opens an empty file for writing: a new one, or the existing one. An existing entry that is not a file is replaced.
fn open_file(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    let new = || {
        let mode = Mode::RUSR | Mode::WUSR;
        openat(parent, as_path(name), flags | OFlags::CREATE | OFlags::EXCL, mode)
    };
    match new() {
        Err(Errno::EXIST) => {}
        opened => return opened,
    }
    let found = statat(parent, as_path(name), AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
        // The entry may be a FIFO by now.
        match openat(parent, as_path(name), flags | OFlags::NONBLOCK, Mode::empty()) {
            // The file is a running program: it is replaced, and its next start runs the new file.
            Err(Errno::TXTBSY) => {}
            opened => {
                let opened = opened?;
                if is_of_kernel(opened.as_fd())? {
                    return Err(Errno::PERM);
                }
                let found = fstat(&opened)?;
                if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
                    rustix::fs::ftruncate(&opened, 0)?;
                    return Ok(opened);
                }
            }
        }
    }
    unlinkat(parent, as_path(name), AtFlags::empty())?;
    new()
}

fn times(member: &Member) -> Timestamps {
    let (seconds, nanos) = member.mtime;
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanos) };
    Timestamps { last_access: time, last_modification: time }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests;
