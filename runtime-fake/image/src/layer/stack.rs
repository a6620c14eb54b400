//! The directory a layer is unpacked into, seen together with the layers below it.
//!
//! Every step opens one component of a path with `O_NOFOLLOW`, relative to a descriptor of its
//! directory, so no link of the image is ever followed by the kernel. Links between a root and a
//! name are followed here, by their text, as a process whose root this is would follow them: an absolute target begins at
//! the layer's root, and `..` in the root is the root.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::name::{Parts, lossy};
use super::whiteout::Style;
use crate::error::Problem;

/// As many links as the kernel follows (path_resolution(7)).
const LINKS: usize = 40;

/// A layer in the making above finished ones.
pub(crate) struct Stack<'a> {
    upper: Rc<OwnedFd>,
    /// Topmost first.
    lowers: Vec<OwnedFd>,
    style: &'a Style,
    depth: usize,
    /// The directory used last, with those above it from the root down: archives go through a tree in its order. All are
    /// this layer's own, and directories: one that is removed is [forgotten](Stack::forget).
    open: Vec<(Vec<u8>, Rc<OwnedFd>)>,
}

/// What a name is, in the layer and those below.
#[derive(Debug)]
enum Seen {
    Nothing,
    Directory,
    /// A directory of a layer below, which this layer does not have yet.
    DirectoryBelow(Box<Stat>),
    Link {
        target: Vec<u8>,
    },
    /// Of this layer.
    File,
}

/// A directory that had to be made because the layer names something in it but not itself.
pub(crate) struct Implied {
    pub(crate) parts: Parts,
    /// What the directory below is like, if there is one: this one will cover it.
    pub(crate) like: Option<Box<Stat>>,
}

impl<'a> Stack<'a> {
    /// `lowers`: topmost first.
    pub(crate) fn open(
        upper: &Path,
        lowers: &[impl AsRef<Path>],
        style: &'a Style,
        depth: usize,
    ) -> Result<Self, Problem> {
        let open = |path: &Path| {
            rustix::fs::open(path, path_only() | OFlags::DIRECTORY, Mode::empty())
                .map_err(Problem::errno(format!("open {}", path.display())))
        };
        let lowers = lowers
            .iter()
            .map(|path| open(path.as_ref()))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            upper: Rc::new(open(upper)?),
            lowers,
            style,
            depth,
            open: Vec::new(),
        })
    }

    /// Is this the bottom layer, with nothing to hide?
    pub(crate) fn is_bottom(&self) -> bool {
        self.lowers.is_empty()
    }

    /// The status of the root of the layer below.
    pub(crate) fn root_below(&self) -> Option<Stat> {
        rustix::fs::fstat(self.lowers.first()?).ok()
    }

    /// Opens a directory of this layer, by its real path.
    pub(crate) fn directory(&mut self, parts: &Parts) -> Result<Rc<OwnedFd>, Problem> {
        self.open.truncate(self.known(parts));
        let mut fd = self
            .open
            .last()
            .map_or_else(|| self.upper.clone(), |(_, fd)| fd.clone());
        for part in &parts[self.open.len()..] {
            let next = enter(&fd, part)
                .map_err(Problem::errno(format!("open directory {:?}", lossy(part))))?;
            fd = Rc::new(next);
            self.open.push((part.clone(), fd.clone()));
        }
        Ok(fd)
    }

    /// Closes the directory `parts` and those in it, because it is removed.
    pub(crate) fn forget(&mut self, parts: &Parts) {
        if self.known(parts) == parts.len() {
            self.open.truncate(parts.len().saturating_sub(1));
        }
    }

    /// How many parts of a path, from its beginning, are open.
    fn known(&self, parts: &Parts) -> usize {
        let both = self.open.iter().zip(parts);
        both.take_while(|((name, _), part)| name == *part).count()
    }

    /// Finds the real path of the directory `wanted`, following links as a process whose root
    /// this is would, and makes what is missing, telling `made`.
    pub(crate) fn resolve(
        &mut self,
        wanted: &Parts,
        made: &mut Vec<Implied>,
    ) -> Result<Parts, Problem> {
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
                // Only a link's target holds these: names are resolved before. The root is its own parent.
                at.pop();
                continue;
            }
            match self.look(&at, &part)? {
                Seen::Directory => at.push(part),
                Seen::File => return Err(Problem::NotADirectory { path: path() }),
                Seen::Link { target } => {
                    links += 1;
                    let what = format!("{:?}", path());
                    Problem::within(what, links as u64, LINKS as u64, "links on the way to it")?;
                    if target.starts_with(b"/") {
                        at.clear();
                    }
                    let parts = target
                        .split(|c| *c == b'/')
                        .filter(|p| !matches!(*p, b"" | b"."));
                    for (i, part) in parts.enumerate() {
                        todo.insert(i, part.to_vec());
                    }
                }
                Seen::Nothing => {
                    self.make_directory(&at, &part)?;
                    at.push(part);
                    made.push(Implied {
                        parts: at.clone(),
                        like: None,
                    });
                }
                Seen::DirectoryBelow(stat) => {
                    self.make_directory(&at, &part)?;
                    at.push(part);
                    made.push(Implied {
                        parts: at.clone(),
                        like: Some(stat),
                    });
                }
            }
            let (deep, limit) = (at.len() as u64, self.depth as u64);
            Problem::within("a link's target", deep, limit, "directories above it")?;
        }
        Ok(at)
    }

    /// Makes a directory; over a whiteout one that hides what is below.
    pub(crate) fn make_directory(&mut self, at: &Parts, name: &[u8]) -> Result<(), Problem> {
        let failed = || Problem::errno(format!("make directory {:?}", lossy(name)));
        let parent = self.directory(at)?;
        let covers = self.clear_whiteout(&parent, name)?;
        rustix::fs::mkdirat(&parent, name, Mode::RWXU).map_err(failed())?;
        if covers {
            self.style
                .make_opaque(enter(&parent, name).map_err(failed())?)?;
        }
        Ok(())
    }

    /// Removes a whiteout of this layer, because the layer itself has the name. Was there one?
    pub(crate) fn clear_whiteout(&self, parent: &OwnedFd, name: &[u8]) -> Result<bool, Problem> {
        match status(parent, name)? {
            Some(stat) if self.style.is_whiteout(parent, name, &stat) => {
                rustix::fs::unlinkat(parent, name, AtFlags::empty()).map_err(Problem::errno(
                    format!("remove the whiteout {:?}", lossy(name)),
                ))?;
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// What `name` in the directory `at` (a real path) is.
    fn look(&mut self, at: &Parts, name: &[u8]) -> Result<Seen, Problem> {
        let fd = self.directory(at)?;
        if let Some(stat) = status(&fd, name)? {
            if self.style.is_whiteout(&*fd, name, &stat) {
                return Ok(Seen::Nothing);
            }
            return self.kind(&fd, name, stat, false);
        }
        if self.lowers.is_empty() || self.is_opaque() {
            return Ok(Seen::Nothing);
        }
        for lower in &self.lowers {
            match self.look_below(lower, at, name)? {
                Below::Found(fd, stat) => return self.kind(&fd, name, stat, true),
                Below::Hidden => return Ok(Seen::Nothing),
                Below::Nothing => {}
            }
        }
        Ok(Seen::Nothing)
    }

    /// Does the directory used last, or one above it, hide what is below?
    fn is_opaque(&self) -> bool {
        let mut above = self.open.iter().map(|(_, fd)| fd).chain([&self.upper]);
        above.any(|fd| self.style.is_opaque(&**fd))
    }

    fn look_below(&self, lower: &OwnedFd, at: &Parts, name: &[u8]) -> Result<Below, Problem> {
        let mut fd = lower
            .try_clone()
            .map_err(Problem::io("open a layer again"))?;
        let mut opaque = self.style.is_opaque(&fd);
        for part in at {
            match status(&fd, part)? {
                None => {
                    return Ok(if opaque {
                        Below::Hidden
                    } else {
                        Below::Nothing
                    });
                }
                Some(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
                    return Ok(Below::Hidden);
                }
                Some(_) => {}
            }
            fd = enter(&fd, part)
                .map_err(Problem::errno(format!("open directory {:?}", lossy(part))))?;
            opaque |= self.style.is_opaque(&fd);
        }
        Ok(match status(&fd, name)? {
            Some(stat) if self.style.is_whiteout(&fd, name, &stat) => Below::Hidden,
            Some(stat) => Below::Found(fd, stat),
            None if opaque => Below::Hidden,
            None => Below::Nothing,
        })
    }

    fn kind(
        &self,
        parent: &OwnedFd,
        name: &[u8],
        stat: Stat,
        below: bool,
    ) -> Result<Seen, Problem> {
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if below => Seen::DirectoryBelow(Box::new(stat)),
            FileType::Directory => Seen::Directory,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent, name, Vec::new())
                    .map_err(Problem::errno(format!("read the link {:?}", lossy(name))))?;
                Seen::Link {
                    target: target.into_bytes(),
                }
            }
            FileType::RegularFile
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {
                // A directory of this layer takes the place of a file below, as in containerd.
                if below { Seen::Nothing } else { Seen::File }
            }
        })
    }
}

enum Below {
    Found(OwnedFd, Stat),
    /// This layer hides what those below it have.
    Hidden,
    Nothing,
}

/// The status of a name, not following a link; none when there is no such name.
pub(crate) fn status(parent: impl AsFd, name: &[u8]) -> Result<Option<Stat>, Problem> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Problem::errno(format!("look at {:?}", lossy(name)))(errno)),
    }
}

/// Opens a directory that is really there, no link to one.
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
