//! Unpacks one layer: a tar stream becomes a directory that overlayfs can stack on others.
//!
//! The stream is untrusted until its digest is verified at its end. Until then every effect is inside the
//! directory, which the caller deletes on any error.

pub(crate) mod name;
pub(crate) mod stack;
mod usage;
pub(crate) mod whiteout;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{
    AtFlags, Dev, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};

use self::name::{Entry, Parts, lossy};
use self::stack::{ImpliedDirectory, Stack};
pub(crate) use self::usage::{Usage, blocks};
use self::whiteout::Style;
use crate::error::ContentError;
use crate::formats::limits::Budget;
use crate::formats::tar_stream::{Kind, Member, Skip, TarReader};

/// The buffer size for writing files.
const WRITTEN: usize = 128 << 10;

/// Unpacks `tar` into the empty directory `into`, above the unpacked layers `lowers` (topmost first).
pub(crate) fn unpack<R: Skip>(
    mut tar: TarReader<R>,
    into: &Path,
    lowers: &[impl AsRef<Path>],
    style: &Style,
    budget: &Budget,
) -> Result<Usage, ContentError> {
    let stack = Stack::open(into, lowers, style, budget.limits.depth)?;
    let root = match stack.root_below() {
        Some(stat) => Directory::like(&stat),
        None => Directory { mode: 0o755, owner: None, mtime: None },
    };
    let mut unpacker = Unpacker {
        stack,
        style,
        budget,
        directories: BTreeMap::from([(Vec::new(), root)]),
        paths: 0,
        usage: Usage::default(),
        skipped: BTreeSet::new(),
        buffer: vec![0; WRITTEN],
    };
    while let Some(member) = tar.next_member()? {
        unpacker.entry(&member, &mut tar)?;
    }
    tar.drain()?;
    unpacker.finish()
}

struct Unpacker<'a> {
    stack: Stack<'a>,
    style: &'a Style,
    budget: &'a Budget,
    /// Set at the end, deepest first, because files cannot be created in a read-only directory, and creating them changes its
    /// modification time. By [`key`].
    directories: BTreeMap<Vec<u8>, Directory>,
    /// The bytes of the keys of `directories` and `skipped`.
    paths: u64,
    usage: Usage,
    /// Device nodes that cannot be created here, and hard links to them, by [`key`].
    skipped: BTreeSet<Vec<u8>>,
    buffer: Vec<u8>,
}

/// A directory and a name in it.
type Place = (Rc<OwnedFd>, Vec<u8>);

struct Directory {
    mode: u32,
    owner: Option<(u32, u32)>,
    mtime: Option<(i64, u32)>,
}

impl Directory {
    fn like(stat: &Stat) -> Self {
        let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        Self {
            mode: stat.st_mode & 0o7777,
            owner: Some((stat.st_uid, stat.st_gid)),
            mtime: Some((stat.st_mtime, nanos)),
        }
    }
}

impl Unpacker<'_> {
    fn entry<R: Skip>(
        &mut self,
        member: &Member,
        body: &mut TarReader<R>,
    ) -> Result<(), ContentError> {
        self.budget.take_entry("the image")?;
        match name::classify(&member.path, self.budget.limits.depth)? {
            Entry::Bookkeeping => Ok(()),
            Entry::Root if member.kind == Kind::Directory => {
                self.describe(&Parts::new(), member)?;
                self.set_attributes(&Parts::new(), member)
            }
            Entry::Root => Err(ContentError::Name {
                path: lossy(&member.path),
                why: "which is not a directory",
            }),
            Entry::Whiteout { parent, name } => self.whiteout(&parent, &name),
            Entry::Opaque { directory } => {
                let at = self.resolve(&directory)?;
                if !self.stack.is_bottom() {
                    self.style.make_opaque(&*self.stack.directory(&at)?)?;
                }
                Ok(())
            }
            Entry::Node { parent, name } => self.node(&parent, &name, member, body),
        }
    }

    fn resolve(&mut self, wanted: &Parts) -> Result<Parts, ContentError> {
        let mut made = Vec::new();
        let at = self.stack.resolve(wanted, &mut made)?;
        for ImpliedDirectory { parts, like } in made {
            let directory = match like {
                Some(stat) => Directory::like(&stat),
                None => Directory { mode: 0o755, owner: self.style.owner(0, 0), mtime: None },
            };
            self.usage.inodes += 1;
            self.remember(&parts, directory)?;
        }
        Ok(at)
    }

    /// A whiteout hides names of lower layers only: an entry of this layer with the same name stays.
    fn whiteout(&mut self, parent: &Parts, name: &[u8]) -> Result<(), ContentError> {
        if self.stack.is_bottom() {
            return Ok(());
        }
        let at = self.resolve(parent)?;
        let directory = self.stack.directory(&at)?;
        match stack::status(&*directory, name)? {
            None => {
                self.usage.inodes += 1;
                self.style.hide(&*directory, name)
            }
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                let inner = stack::enter(&*directory, name)
                    .map_err(ContentError::errno("open a directory"))?;
                self.style.make_opaque(inner)
            }
            Some(_) => Ok(()),
        }
    }

    fn node<R: Skip>(
        &mut self,
        parent: &Parts,
        name: &[u8],
        member: &Member,
        body: &mut TarReader<R>,
    ) -> Result<(), ContentError> {
        let path = || lossy(&member.path);
        if member.kind == Kind::Char && member.device == (0, 0) {
            // A whiteout in overlayfs's own format.
            return self.whiteout(parent, name);
        }
        if matches!(member.kind, Kind::Char | Kind::Block) && !self.style.nodes {
            return self.skip(&below(parent, name));
        }
        self.budget.check_bytes(member.size, &format!("{:?}", path()))?;
        let at = self.resolve(parent)?;
        let directory = self.stack.directory(&at)?;
        if let Some(stat) = stack::status(&*directory, name)?
            && !self.style.is_whiteout(&*directory, name, &stat)
        {
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if is_directory && member.kind == Kind::Directory {
                self.describe(&below(&at, name), member)?;
                return self.set_attributes(&below(&at, name), member);
            }
            // The last entry of a name wins, regardless of the kinds, as in containerd and docker.
            self.remove(&at, name, member)?;
        }
        let failed = || ContentError::errno(format!("unpack {:?}", path()));
        match member.kind {
            Kind::Directory => {
                self.stack.make_directory(&at, name)?;
                self.usage.inodes += 1;
                self.describe(&below(&at, name), member)?;
                return self.set_attributes(&below(&at, name), member);
            }
            Kind::HardLink => {
                let Some((from, old)) = self.hard_link_target(member)? else {
                    return self.skip(&below(parent, name));
                };
                self.stack.clear_whiteout(&directory, name)?;
                self.usage.inodes += 1;
                return rustix::fs::linkat(from, old, &*directory, name, AtFlags::empty())
                    .map_err(failed());
            }
            Kind::File | Kind::Sparse => {
                self.stack.clear_whiteout(&directory, name)?;
                self.usage.inodes += 1;
                return self.file(&directory, name, member, body);
            }
            Kind::Symlink => {
                check_symlink(member)?;
                self.stack.clear_whiteout(&directory, name)?;
                rustix::fs::symlinkat(member.link.as_slice(), &*directory, name)
                    .map_err(failed())?;
                self.own(&*directory, name, member)?;
            }
            Kind::Fifo | Kind::Char | Kind::Block => {
                let (kind, device) = device_node(member)?;
                self.stack.clear_whiteout(&directory, name)?;
                whiteout::make_node(&*directory, name, kind, device).map_err(failed())?;
                self.own(&*directory, name, member)?;
                let mode = Mode::from_raw_mode(member.mode);
                rustix::fs::chmodat(&*directory, name, mode, AtFlags::empty()).map_err(failed())?;
            }
        }
        self.usage.inodes += 1;
        set_time(&*directory, name, member.mtime).map_err(failed())
    }

    /// Creates a file and writes its content; of a sparse file only the data.
    fn file<R: Skip>(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        member: &Member,
        body: &mut TarReader<R>,
    ) -> Result<(), ContentError> {
        let path = || lossy(&member.path);
        let failed = || ContentError::errno(format!("unpack {:?}", path()));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed())?;
        let mut file = File::from(file);
        if member.kind == Kind::Sparse {
            // Charge holes to the budget too: they take no space here, but they do after a copy that does not preserve holes.
            let data: u64 = member.data.iter().map(|(_, length)| length).sum();
            self.budget.take_bytes(member.size - data, &format!("{:?}", path()))?;
            sparse_copy(body, &mut file, member, &mut self.buffer)
        } else {
            copy(body, &mut file, &mut self.buffer)
        }
        .map_err(ContentError::io(format!("unpack {:?}", path())))?;
        let stat = rustix::fs::fstat(&file).map_err(failed())?;
        self.usage.file_bytes += member.size;
        self.usage.disk_bytes += blocks(&stat);
        // Usually they are equal: most files of images belong to root, as do files that root creates.
        if self.style.owner(member.uid, member.gid) != Some((stat.st_uid, stat.st_gid)) {
            self.own(directory, name, member)?;
        }
        self.attributes(&file, member)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(member.mode)).map_err(failed())?;
        rustix::fs::futimens(&file, &times(member.mtime)).map_err(failed())
    }

    /// Removes an entry of this layer, with everything below it.
    fn remove(&mut self, at: &Parts, name: &[u8], member: &Member) -> Result<(), ContentError> {
        let what = || format!("replace {:?}", lossy(&member.path));
        let directory = self.stack.directory(at)?;
        let removed = below(at, name);
        self.usage.subtract(usage::of(&directory, name).map_err(ContentError::errno(what()))?);
        self.stack.forget(&removed);
        let first = key(&removed);
        let inside = |key: &&Vec<u8>| {
            let rest = key.strip_prefix(&first[..]);
            rest.is_some_and(|rest| matches!(rest.first(), None | Some(0)))
        };
        let gone: Vec<Vec<u8>> = self
            .directories
            .range(first.clone()..)
            .map(|(key, _)| key)
            .take_while(inside)
            .cloned()
            .collect();
        for key in gone {
            self.directories.remove(&key);
        }
        let name = CString::new(name).map_err(|error| ContentError::io(what())(error.into()))?;
        file_tree::remove_at(directory.as_fd(), &name).map_err(ContentError::errno(what()))
    }

    /// The directory and name that a hard link refers to: an earlier file of this layer, named relative to its root.
    /// `None` if it is a device node that was skipped.
    fn hard_link_target(&mut self, member: &Member) -> Result<Option<Place>, ContentError> {
        let leads_out = || ContentError::LinkLeadsOut {
            path: lossy(&member.path),
            target: lossy(&member.link),
        };
        let mut parts = name::split(&member.link, self.budget.limits.depth).map_err(|problem| {
            if matches!(problem, ContentError::Name { .. }) { leads_out() } else { problem }
        })?;
        if self.skipped.contains(&key(&parts)) {
            return Ok(None);
        }
        let bad = || self.bad_hard_link(member);
        let target = parts.pop().ok_or_else(bad)?;
        let parent = self.resolve(&parts)?;
        let directory = self.stack.directory(&parent)?;
        match stack::status(&*directory, &target)? {
            Some(stat)
                if FileType::from_raw_mode(stat.st_mode) != FileType::Directory
                    && !self.style.is_whiteout(&*directory, &target, &stat) =>
            {
                Ok(Some((directory, target)))
            }
            Some(_) | None => Err(self.bad_hard_link(member)),
        }
    }

    fn bad_hard_link(&self, member: &Member) -> ContentError {
        ContentError::HardLink { path: lossy(&member.path), target: lossy(&member.link) }
    }

    /// Records a directory's attributes, to be set at the end.
    fn describe(&mut self, parts: &Parts, member: &Member) -> Result<(), ContentError> {
        let owner = self.style.owner(member.uid, member.gid);
        let mtime = Some(member.mtime);
        self.remember(parts, Directory { mode: member.mode, owner, mtime })
    }

    fn remember(&mut self, parts: &Parts, directory: Directory) -> Result<(), ContentError> {
        let key = key(parts);
        let length = key.len() as u64;
        match self.directories.insert(key, directory) {
            None => self.take_path(length),
            Some(_) => Ok(()),
        }
    }

    /// Records a device node, or a hard link to one, that cannot be created here.
    fn skip(&mut self, parts: &Parts) -> Result<(), ContentError> {
        let key = key(parts);
        let length = key.len() as u64;
        if self.skipped.insert(key) { self.take_path(length) } else { Ok(()) }
    }

    fn take_path(&mut self, length: u64) -> Result<(), ContentError> {
        self.paths += length;
        let (taken, limit) = (self.paths, self.budget.limits.paths);
        ContentError::within("a layer", taken, limit, "bytes of directories' paths")
    }

    fn set_attributes(&mut self, parts: &Parts, member: &Member) -> Result<(), ContentError> {
        if member.xattrs.is_empty() {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::openat(&*self.stack.directory(parts)?, ".", flags, Mode::empty())
                .map_err(ContentError::errno(format!("open {:?}", lossy(&member.path))))?;
        self.attributes(directory, member)
    }

    /// Sets `user.…` attributes and file capabilities. Other attributes are specific to a machine (security labels, ACLs with its
    /// ids) and are skipped. Attributes of overlayfs are an attack and are refused.
    fn attributes(&self, file: impl AsFd, member: &Member) -> Result<(), ContentError> {
        for (name, value) in &member.xattrs {
            if name.starts_with("trusted.overlay.") || name.starts_with("user.overlay.") {
                return Err(ContentError::Attribute {
                    path: lossy(&member.path),
                    name: name.clone(),
                });
            }
            let wanted = name.starts_with("user.") || name == "security.capability";
            if !wanted || name.contains('\0') {
                continue;
            }
            if let Err(errno) =
                rustix::fs::fsetxattr(&file, name.as_str(), value, XattrFlags::empty())
            {
                tracing::debug!(path = %lossy(&member.path), attribute = %name, %errno, "skipped an extended attribute");
            }
        }
        Ok(())
    }

    fn own(&self, parent: impl AsFd, name: &[u8], member: &Member) -> Result<(), ContentError> {
        let Some(owner) = self.style.owner(member.uid, member.gid) else {
            return Ok(());
        };
        chown(parent, name, owner)
            .map_err(ContentError::errno(format!("give {:?} to its owner", lossy(&member.path))))
    }

    /// Sets the attributes of directories, deepest first.
    fn finish(mut self) -> Result<Usage, ContentError> {
        if let Some(first) = self.skipped.first() {
            let (first, count) = (lossy(&parts_of(first).join(&b'/')), self.skipped.len());
            tracing::info!(first, count, "skipped the device nodes of a layer");
        }
        for (key, directory) in std::mem::take(&mut self.directories).into_iter().rev() {
            let parts = parts_of(&key);
            let failed = || {
                ContentError::errno(format!(
                    "set the attributes of {:?}",
                    lossy(&parts.join(&b'/'))
                ))
            };
            let fd = self.stack.directory(&parts)?;
            if let Some(owner) = directory.owner
                && self.style.owner(0, 0).is_some()
            {
                chown(&*fd, b".", owner).map_err(failed())?;
            }
            let stat = rustix::fs::fstat(&*fd).map_err(failed())?;
            self.usage.disk_bytes += blocks(&stat);
            if let Some(mtime) = directory.mtime {
                set_time(&*fd, b".", mtime).map_err(failed())?;
            }
            rustix::fs::chmodat(&*fd, ".", Mode::from_raw_mode(directory.mode), AtFlags::empty())
                .map_err(failed())?;
        }
        Ok(self.usage)
    }
}

fn check_symlink(member: &Member) -> Result<(), ContentError> {
    // The target of a link is not checked, because processes that follow it have the image's root as their root.
    let why = match &member.link[..] {
        [] => "a link to nothing",
        link if link.contains(&0) || link.len() > 4095 => "a link whose target is no path",
        _ => return Ok(()),
    };
    Err(ContentError::Name { path: lossy(&member.path), why })
}

/// A path in one allocation: a layer may have a million directories. The separator is NUL, which is in no name and sorts before
/// all other bytes, so that keys sort as their paths.
fn key(parts: &Parts) -> Vec<u8> {
    parts.join(&0u8)
}

fn parts_of(key: &[u8]) -> Parts {
    match key.is_empty() {
        true => Parts::new(),
        false => key.split(|c| *c == 0).map(<[u8]>::to_vec).collect(),
    }
}

fn below(at: &Parts, name: &[u8]) -> Parts {
    let mut parts = at.clone();
    parts.push(name.to_vec());
    parts
}

fn chown(parent: impl AsFd, name: &[u8], (uid, gid): (u32, u32)) -> Result<(), rustix::io::Errno> {
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
}

fn set_time(parent: impl AsFd, name: &[u8], mtime: (i64, u32)) -> Result<(), rustix::io::Errno> {
    rustix::fs::utimensat(parent, name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)
}

fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanos) };
    Timestamps { last_access: time, last_modification: time }
}

/// Like [`io::copy`], with the caller's larger buffer.
fn copy(from: &mut impl Read, to: &mut File, buffer: &mut [u8]) -> io::Result<()> {
    loop {
        match from.read(buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => to.write_all(&buffer[..n])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes a sparse file's data at its offsets.
fn sparse_copy(
    from: &mut impl Read,
    to: &mut File,
    member: &Member,
    buffer: &mut [u8],
) -> io::Result<()> {
    for (offset, length) in &member.data {
        to.seek(SeekFrom::Start(*offset))?;
        copy(&mut from.take(*length), to, buffer)?;
    }
    to.set_len(member.size)
}

/// The largest device numbers that Linux supports (`include/linux/kdev_t.h`); a larger one would be truncated to
/// another device's.
const MAJOR: u32 = (1 << 12) - 1;
const MINOR: u32 = (1 << 20) - 1;

/// The type of the node, and its device number.
fn device_node(member: &Member) -> Result<(FileType, Dev), ContentError> {
    let kind = match member.kind {
        Kind::Char => FileType::CharacterDevice,
        Kind::Block => FileType::BlockDevice,
        Kind::Fifo
        | Kind::File
        | Kind::Sparse
        | Kind::HardLink
        | Kind::Symlink
        | Kind::Directory => return Ok((FileType::Fifo, 0)),
    };
    let (major, minor) = member.device;
    if major > MAJOR || minor > MINOR {
        return Err(ContentError::DeviceNumber { path: lossy(&member.path) });
    }
    Ok((kind, rustix::fs::makedev(major, minor)))
}

#[cfg(test)]
mod tests;
