//! The directory that a layer is unpacked into, combined with the layers below it.
//!
//! Every step opens one path component with `O_NOFOLLOW`, relative to the descriptor of its directory, so that
//! the kernel never follows a link of the image. This module follows links between the root and a name itself, as
//! a process with this root would: an absolute target starts at the layer's root, and `..` in the root is the
//! root.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::name::{Parts, lossy};
use super::whiteout::Style;
use crate::error::ContentError;

/// The kernel's limit on links (path_resolution(7)).
const LINKS: usize = 40;

/// A layer that is being unpacked, above finished ones.
pub(crate) struct Stack<'a> {
    upper: Rc<OwnedFd>,
    /// Topmost first.
    lowers: Vec<OwnedFd>,
    style: &'a Style,
    depth: usize,
    /// The directory used last and its parents, from the root down: archives list a tree in order. All are directories of this
    /// layer; a removed directory is [dropped](Stack::forget) from the list.
    open: Vec<(Vec<u8>, Rc<OwnedFd>)>,
}

/// The kind of a name, in this layer and the layers below.
#[derive(Debug)]
enum StackEntry {
    Nothing,
    Directory,
    /// A directory of a lower layer, which this layer does not have yet.
    DirectoryBelow(Box<Stat>),
    Link {
        target: Vec<u8>,
    },
    /// A file of this layer.
    File,
}

/// A directory created because the layer has an entry below it, but no entry for the directory itself.
pub(crate) struct ImpliedDirectory {
    pub(crate) parts: Parts,
    /// The status of the directory in the lower layer, if there is one, which the new directory covers.
    pub(crate) like: Option<Box<Stat>>,
}

impl<'a> Stack<'a> {
    /// `lowers`: topmost first.
    pub(crate) fn open(
        upper: &Path,
        lowers: &[impl AsRef<Path>],
        style: &'a Style,
        depth: usize,
    ) -> Result<Self, ContentError> {
        let open = |path: &Path| {
            rustix::fs::open(path, path_only() | OFlags::DIRECTORY, Mode::empty())
                .map_err(ContentError::errno(format!("open {}", path.display())))
        };
        let lowers = lowers.iter().map(|path| open(path.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { upper: Rc::new(open(upper)?), lowers, style, depth, open: Vec::new() })
    }

    /// Whether this is the bottom layer, with nothing to hide.
    pub(crate) fn is_bottom(&self) -> bool {
        self.lowers.is_empty()
    }

    /// The status of the root of the layer below.
    pub(crate) fn root_below(&self) -> Option<Stat> {
        rustix::fs::fstat(self.lowers.first()?).ok()
    }

    /// Opens a directory of this layer by its resolved path.
    pub(crate) fn directory(&mut self, parts: &Parts) -> Result<Rc<OwnedFd>, ContentError> {
        self.open.truncate(self.known(parts));
        let mut fd = self.open.last().map_or_else(|| self.upper.clone(), |(_, fd)| fd.clone());
        for part in &parts[self.open.len()..] {
            let next = enter(&fd, part)
                .map_err(ContentError::errno(format!("open directory {:?}", lossy(part))))?;
            fd = Rc::new(next);
            self.open.push((part.clone(), fd.clone()));
        }
        Ok(fd)
    }

    /// Closes the directory `parts` and the directories below it, because it is removed.
    pub(crate) fn forget(&mut self, parts: &Parts) {
        if self.known(parts) == parts.len() {
            self.open.truncate(parts.len().saturating_sub(1));
        }
    }

    /// The number of leading components of a path that are open.
    fn known(&self, parts: &Parts) -> usize {
        let both = self.open.iter().zip(parts);
        both.take_while(|((name, _), part)| name == *part).count()
    }

    /// Resolves the path of the directory `wanted`, following links as a process with this root would. Creates
    /// missing directories and appends them to `made`.
    pub(crate) fn resolve(
        &mut self,
        wanted: &Parts,
        made: &mut Vec<ImpliedDirectory>,
    ) -> Result<Parts, ContentError> {
        let known = self.known(wanted);
        if known == wanted.len() {
            return Ok(wanted.clone());
        }
        let path = || lossy(&wanted.join(&b'/'));
        let mut todo: VecDeque<Vec<u8>> = wanted[known..].iter().cloned().collect();
        let mut at = wanted[..known].to_vec();
        let mut links = 0;
        while let Some(part) = todo.pop_front() {
            if part == b".." {
                // `..` only occurs in a link's target; names are resolved before. The root is its own parent.
                at.pop();
                continue;
            }
            match self.look(&at, &part)? {
                StackEntry::Directory => at.push(part),
                StackEntry::File => return Err(ContentError::NotADirectory { path: path() }),
                StackEntry::Link { target } => {
                    links += 1;
                    let what = format!("{:?}", path());
                    ContentError::within(
                        what,
                        links as u64,
                        LINKS as u64,
                        "links on the way to it",
                    )?;
                    if target.starts_with(b"/") {
                        at.clear();
                    }
                    let parts = target.split(|c| *c == b'/').filter(|p| !matches!(*p, b"" | b"."));
                    for (i, part) in parts.enumerate() {
                        todo.insert(i, part.to_vec());
                    }
                }
                StackEntry::Nothing => {
                    self.make_directory(&at, &part)?;
                    at.push(part);
                    made.push(ImpliedDirectory { parts: at.clone(), like: None });
                }
                StackEntry::DirectoryBelow(stat) => {
                    self.make_directory(&at, &part)?;
                    at.push(part);
                    made.push(ImpliedDirectory { parts: at.clone(), like: Some(stat) });
                }
            }
            let (deep, limit) = (at.len() as u64, self.depth as u64);
            ContentError::within("a link's target", deep, limit, "directories above it")?;
        }
        Ok(at)
    }

    /// Creates a directory. If it replaces a whiteout, marks it opaque.
    pub(crate) fn make_directory(&mut self, at: &Parts, name: &[u8]) -> Result<(), ContentError> {
        let failed = || ContentError::errno(format!("make directory {:?}", lossy(name)));
        let parent = self.directory(at)?;
        let covers = self.clear_whiteout(&parent, name)?;
        rustix::fs::mkdirat(&parent, name, Mode::RWXU).map_err(failed())?;
        if covers {
            self.style.make_opaque(enter(&parent, name).map_err(failed())?)?;
        }
        Ok(())
    }

    /// Removes this layer's whiteout of a name for which the layer now has an entry. Returns whether there was one.
    pub(crate) fn clear_whiteout(
        &self,
        parent: &OwnedFd,
        name: &[u8],
    ) -> Result<bool, ContentError> {
        match status(parent, name)? {
            Some(stat) if self.style.is_whiteout(parent, name, &stat) => {
                rustix::fs::unlinkat(parent, name, AtFlags::empty()).map_err(
                    ContentError::errno(format!("remove the whiteout {:?}", lossy(name))),
                )?;
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// Looks up `name` in the directory `at` (a resolved path).
    fn look(&mut self, at: &Parts, name: &[u8]) -> Result<StackEntry, ContentError> {
        let fd = self.directory(at)?;
        if let Some(stat) = status(&fd, name)? {
            if self.style.is_whiteout(&*fd, name, &stat) {
                return Ok(StackEntry::Nothing);
            }
            return self.kind(&fd, name, stat, false);
        }
        if self.lowers.is_empty() || self.is_opaque() {
            return Ok(StackEntry::Nothing);
        }
        for lower in &self.lowers {
            match self.look_below(lower, at, name)? {
                LowerEntry::Found(fd, stat) => return self.kind(&fd, name, stat, true),
                LowerEntry::Hidden => return Ok(StackEntry::Nothing),
                LowerEntry::Nothing => {}
            }
        }
        Ok(StackEntry::Nothing)
    }

    /// Whether the directory used last, or a parent of it, is opaque.
    fn is_opaque(&self) -> bool {
        let mut above = self.open.iter().map(|(_, fd)| fd).chain([&self.upper]);
        above.any(|fd| self.style.is_opaque(&**fd))
    }

    fn look_below(
        &self,
        lower: &OwnedFd,
        at: &Parts,
        name: &[u8],
    ) -> Result<LowerEntry, ContentError> {
        let mut fd = lower.try_clone().map_err(ContentError::io("open a layer again"))?;
        let mut opaque = self.style.is_opaque(&fd);
        for part in at {
            match status(&fd, part)? {
                None => {
                    return Ok(if opaque { LowerEntry::Hidden } else { LowerEntry::Nothing });
                }
                Some(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
                    return Ok(LowerEntry::Hidden);
                }
                Some(_) => {}
            }
            fd = enter(&fd, part)
                .map_err(ContentError::errno(format!("open directory {:?}", lossy(part))))?;
            opaque |= self.style.is_opaque(&fd);
        }
        Ok(match status(&fd, name)? {
            Some(stat) if self.style.is_whiteout(&fd, name, &stat) => LowerEntry::Hidden,
            Some(stat) => LowerEntry::Found(fd, stat),
            None if opaque => LowerEntry::Hidden,
            None => LowerEntry::Nothing,
        })
    }

    fn kind(
        &self,
        parent: &OwnedFd,
        name: &[u8],
        stat: Stat,
        below: bool,
    ) -> Result<StackEntry, ContentError> {
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if below => StackEntry::DirectoryBelow(Box::new(stat)),
            FileType::Directory => StackEntry::Directory,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent, name, Vec::new())
                    .map_err(ContentError::errno(format!("read the link {:?}", lossy(name))))?;
                StackEntry::Link { target: target.into_bytes() }
            }
            FileType::RegularFile
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {
                // A directory of this layer replaces a file below, as in containerd.
                if below { StackEntry::Nothing } else { StackEntry::File }
            }
        })
    }
}

enum LowerEntry {
    Found(OwnedFd, Stat),
    /// Hidden by a whiteout or an opaque directory.
    Hidden,
    Nothing,
}

/// The status of a name, not following a link; `None` if it does not exist.
pub(crate) fn status(parent: impl AsFd, name: &[u8]) -> Result<Option<Stat>, ContentError> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(ContentError::errno(format!("look at {:?}", lossy(name)))(errno)),
    }
}

/// Opens a directory; fails on a link to one.
pub(crate) fn enter(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(
        parent,
        name,
        path_only() | OFlags::DIRECTORY | OFlags::NOFOLLOW,
        Mode::empty(),
    )
}

fn path_only() -> OFlags {
    OFlags::PATH | OFlags::CLOEXEC
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn usage_does_not_follow_directory_links() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        enter(&fd, b"real").unwrap();
        assert_eq!(enter(&fd, b"link").unwrap_err(), Errno::NOTDIR);
    }
}
