//! The machine's cgroups, as directories of cgroup v1, v2 or both.
//!
//! `files` ◆ maps values to cgroup files. [`Kernel`] abstracts the operations in which a cgroup differs from a plain directory,
//! so that tests can use plain files. [`SystemdSlices`] are cgroups that systemd creates; `properties` ◆ maps values to unit
//! properties.

mod files;
mod kernel;
mod properties;
mod slices;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};

use agent::machine::cgroups::{CgroupValues, ControlGroups};
use compact::Set;
use files::{CONTROLLERS, FileWrite, texts};
pub use kernel::{HostKernel, Kernel};
pub use slices::SystemdSlices;

/// The cgroups of an agent on this machine.
#[derive(Clone, Debug)]
pub struct HostCgroups<K = HostKernel> {
    /// The mount point of the hierarchies.
    mount: PathBuf,
    /// The agent's own root. Cgroups outside it are neither created nor removed.
    own: PathBuf,
    /// Cgroups of other owners whose values the agent sets, because the administrator names them.
    named: Vec<PathBuf>,
    kernel: K,
}

impl HostCgroups {
    /// The cgroups below `own`, such as `/crib-x/kubepods`, of the hierarchies mounted at or below `mount` (`/sys/fs/cgroup`).
    ///
    /// # Errors
    /// `InvalidInput` if `own` is not a path below the root of a hierarchy.
    pub fn new(mount: &Path, own: &str) -> io::Result<Self> {
        Self::on(HostKernel, mount, own)
    }
}

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    /// The root directory.
    root: PathBuf,
    /// Whether it is the unified hierarchy.
    is_v2: bool,
    /// The names of its controllers.
    controllers: Set<String>,
}

impl Hierarchy {
    fn has(&self, controller: &str) -> bool {
        self.controllers.contains(controller)
    }
}

impl<K: Kernel> HostCgroups<K> {
    /// Like [`Self::new`], with another [`Kernel`].
    ///
    /// # Errors
    /// `InvalidInput` if `own` is not a path below the root of a hierarchy.
    pub fn on(kernel: K, mount: &Path, own: &str) -> io::Result<Self> {
        Ok(Self { mount: mount.to_owned(), own: relative(own)?, named: Vec::new(), kernel })
    }

    /// Adds cgroups whose values may be set, but which are neither created nor removed.
    ///
    /// # Errors
    /// `InvalidInput` if one is not a path below the root of a hierarchy.
    pub fn with_named<'a>(mut self, paths: impl IntoIterator<Item = &'a str>) -> io::Result<Self> {
        self.named = paths.into_iter().map(relative).collect::<io::Result<_>>()?;
        Ok(self)
    }

    /// Creates the agent's own root, and moves a process into it.
    ///
    /// # Errors
    /// The kernel's error, with the file.
    pub fn enter(&self, process: u32) -> io::Result<()> {
        let process = process.to_string();
        for hierarchy in self.hierarchies() {
            let directory = hierarchy.root.join(&self.own);
            self.make_in(&hierarchy, &directory)?;
            let file = directory.join("cgroup.procs");
            let listed = fs::read_to_string(&file).unwrap_or_default();
            if listed.lines().all(|line| line != process) {
                let written = open(&file).and_then(|mut file| file.write_all(process.as_bytes()));
                written.map_err(|error| with_context("move a process into", &file, &error))?;
            }
        }
        Ok(())
    }

    /// The mounted hierarchies. systemd's named hierarchy has no controllers and is left out.
    fn hierarchies(&self) -> Vec<Hierarchy> {
        if let Some(unified) = unified(&self.mount) {
            return vec![unified];
        }
        let entries = fs::read_dir(&self.mount).into_iter().flatten().flatten();
        // A symbolic link, such as cpu to cpu,cpuacct, is not another hierarchy.
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut found: Vec<Hierarchy> = directories
            .filter_map(|entry| {
                let root = entry.path();
                if let Some(unified) = unified(&root) {
                    return Some(unified);
                }
                let name = entry.file_name().into_string().ok()?;
                let is_cgroup = root.join("cgroup.procs").exists() || root.join("tasks").exists();
                let controllers = name.split(',').map(str::to_owned).collect();
                (is_cgroup && name != "systemd").then_some(Hierarchy {
                    root,
                    is_v2: false,
                    controllers,
                })
            })
            .collect();
        compact::sort_by(&mut found, |a, b| a.root.cmp(&b.root));
        found
    }

    /// Checks that the cgroup may be created and removed.
    fn check_own(&self, path: &str) -> io::Result<()> {
        match relative(path)?.starts_with(&self.own) {
            true => Ok(()),
            false => Err(invalid(format!("cgroup {path} is not below the agent's own root"))),
        }
    }

    /// Whether a cgroup exists, or may exist, in any hierarchy.
    fn is_anywhere(&self, path: &str) -> bool {
        let directories = self.own_directories(path).unwrap_or_default();
        directories.iter().any(|(_, directory)| directory.try_exists().unwrap_or(true))
    }

    /// Whether values of a cgroup may be set.
    fn may_set(&self, path: &str) -> bool {
        relative(path).is_ok_and(|path| path.starts_with(&self.own) || self.named.contains(&path))
    }

    /// Kills all processes in a cgroup below the agent's root, and in its descendants.
    fn kill(&self, path: &str) -> io::Result<()> {
        if relative(path)? == self.own {
            return Err(invalid(format!("cgroup {path} is the root of all pods")));
        }
        for (_, directory) in self.own_directories(path)? {
            kernel::kill_all(&self.kernel, &directory);
        }
        Ok(())
    }

    /// The directories of a cgroup below the agent's root.
    fn own_directories(&self, path: &str) -> io::Result<Vec<(Hierarchy, PathBuf)>> {
        self.check_own(path)?;
        let relative = relative(path)?;
        let hierarchies = self.hierarchies().into_iter();
        Ok(hierarchies
            .map(|hierarchy| {
                let directory = hierarchy.root.join(&relative);
                (hierarchy, directory)
            })
            .collect())
    }

    /// Creates the directories down to a cgroup, including the agent's root.
    fn make_in(&self, hierarchy: &Hierarchy, directory: &Path) -> io::Result<()> {
        let own = hierarchy.root.join(&self.own);
        let above = directory.ancestors().take_while(|path| *path != hierarchy.root);
        let mut ancestors: Vec<&Path> = above.collect();
        ancestors.reverse();
        for one in ancestors {
            match self.kernel.make(one) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(with_context("create the cgroup", one, &error));
                }
                Ok(()) | Err(_) => {}
            }
            if hierarchy.has("cpuset") && !hierarchy.is_v2 {
                fill_cpuset(one)?;
            }
            if hierarchy.is_v2 && one.starts_with(&own) && one != directory {
                enable(one)?;
            }
        }
        Ok(())
    }

    fn write_all(hierarchy: &Hierarchy, directory: &Path, values: &CgroupValues) -> io::Result<()> {
        let has = |controller: &str| hierarchy.has(controller);
        texts(values, hierarchy.is_v2, has)
            .iter()
            .try_for_each(|write| write_text(directory, write))
    }
}

impl<K: Kernel> ControlGroups for HostCgroups<K> {
    fn missing_controllers(&self) -> Vec<String> {
        let hierarchies = self.hierarchies();
        if hierarchies.is_empty() {
            return vec![format!(
                "no cgroup hierarchy is mounted at {}: mount one there",
                self.mount.display()
            )];
        }
        let lack = |controller: &&str| {
            if hierarchies.iter().any(|it| !it.is_v2 && it.has(controller)) {
                return None;
            }
            let unified = hierarchies.iter().find(|it| it.is_v2 && it.has(controller));
            let Some(unified) = unified else {
                return Some(format!(
                    "the kernel has no controller {controller} at {}",
                    self.mount.display()
                ));
            };
            // The agent does not change the cgroups above its own root.
            let above = self.own.ancestors().skip(1).map(|path| unified.root.join(path));
            let mut closed = above.filter(|path| !enabled(path, controller));
            let closed = closed.next()?.join("cgroup.subtree_control");
            Some(format!(
                "controller {controller} is not enabled: write +{controller} to {}",
                closed.display()
            ))
        };
        CONTROLLERS.iter().filter_map(lack).collect()
    }

    fn make(&self, path: &str, values: &CgroupValues) -> io::Result<()> {
        let directories = self.own_directories(path)?;
        if directories.is_empty() {
            let problem = format!("no cgroup hierarchy is mounted at {}", self.mount.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, problem));
        }
        for (hierarchy, directory) in directories {
            self.make_in(&hierarchy, &directory)?;
            Self::write_all(&hierarchy, &directory, values)?;
        }
        Ok(())
    }

    fn set(&self, path: &str, values: &CgroupValues) -> io::Result<()> {
        let relative = relative(path)?;
        if !self.may_set(path) {
            return Err(invalid(format!("cgroup {path} does not belong to the agent")));
        }
        let mut exists = false;
        for hierarchy in self.hierarchies() {
            let directory = hierarchy.root.join(&relative);
            if directory.is_dir() {
                exists = true;
                Self::write_all(&hierarchy, &directory, values)?;
            }
        }
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no cgroup {path}"));
        if exists { Ok(()) } else { Err(missing()) }
    }

    fn exists(&self, path: &str) -> bool {
        let directories = self.own_directories(path).unwrap_or_default();
        !directories.is_empty() && directories.iter().all(|(_, directory)| directory.is_dir())
    }

    fn children(&self, path: &str) -> io::Result<Set<String>> {
        let mut names = Set::new();
        for (_, directory) in self.own_directories(path)? {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(with_context("read the cgroup", &directory, &error)),
            };
            let entries = entries.flatten();
            let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            names.extend(inner.filter_map(|entry| entry.file_name().into_string().ok()));
        }
        Ok(names)
    }

    fn memory_usage(&self, path: &str) -> Option<i64> {
        let mut directories = self.own_directories(path).ok()?.into_iter();
        let (hierarchy, directory) = directories.find(|(it, _)| it.has("memory"))?;
        let file = if hierarchy.is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
        fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok()
    }

    fn destroy(&self, path: &str) -> io::Result<()> {
        if relative(path)? == self.own {
            return Err(invalid(format!("cgroup {path} is the root of all pods")));
        }
        let directories = self.own_directories(path)?.into_iter().map(|(_, directory)| directory);
        let directories: Vec<PathBuf> = directories.filter(|it| it.is_dir()).collect();
        for directory in &directories {
            kernel::kill_all(&self.kernel, directory);
        }
        // Continue with the other directories after an error.
        let mut failed = None;
        for directory in &directories {
            match self.kernel.remove(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    failed = Some(with_context("remove the cgroup", directory, &error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn remove_empty(&self, path: &str) {
        for (_, directory) in self.own_directories(path).unwrap_or_default() {
            // A cgroup in use stays.
            let _ = self.kernel.remove_one(&directory);
        }
    }
}

/// A path below the root of a hierarchy, without `..` components.
fn relative(path: &str) -> io::Result<PathBuf> {
    let parts = Path::new(path).components().filter(|part| *part != Component::RootDir);
    let relative: PathBuf = parts.collect();
    let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    if is_plain && !relative.as_os_str().is_empty() && !path.contains(['\0', '\n']) {
        Ok(relative)
    } else {
        Err(invalid(format!("invalid cgroup path {path:?}: expected a path such as /x/kubepods")))
    }
}

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

fn with_context(verb: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("failed to {verb} {}: {error}", path.display()))
}

/// The unified hierarchy, if its root is at this path.
fn unified(root: &Path) -> Option<Hierarchy> {
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).ok()?;
    let controllers = controllers.split_whitespace().map(str::to_owned).collect();
    Some(Hierarchy { root: root.to_owned(), is_v2: true, controllers })
}

/// Whether a controller is enabled for the children of a cgroup v2 cgroup.
fn enabled(directory: &Path, controller: &str) -> bool {
    let list = fs::read_to_string(directory.join("cgroup.subtree_control"));
    list.is_ok_and(|list| list.split_whitespace().any(|name| name == controller))
}

/// Enables the available controllers that limit pods for the children of this cgroup (cgroups(7), cgroup.subtree_control).
fn enable(directory: &Path) -> io::Result<()> {
    let available = fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
    let of_pods = |name: &&str| CONTROLLERS.contains(name) || *name == "hugetlb";
    let missing = available.split_whitespace().filter(of_pods);
    let missing: Vec<String> =
        missing.filter(|name| !enabled(directory, name)).map(|name| format!("+{name}")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let file = directory.join("cgroup.subtree_control");
    let write = |text: &str| {
        let written = open(&file).and_then(|mut opened| opened.write_all(text.as_bytes()));
        written.map_err(|error| with_context(&format!("write {text} to"), &file, &error))
    };
    // The kernel rejects the whole write if one controller cannot be enabled, so try each one alone.
    write(&missing.join(" ")).or_else(|_| {
        let each = missing.iter().map(|one| write(one));
        each.fold(Ok(()), Result::and)
    })
}

/// A new cpuset of cgroup v1 has no CPUs and memory nodes, and rejects processes until they are set. Copies the parent's.
fn fill_cpuset(directory: &Path) -> io::Result<()> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let file = directory.join(name);
        let own = fs::read_to_string(&file).unwrap_or_default();
        let parent = directory.parent().map(|parent| parent.join(name));
        let parent = parent.and_then(|parent| fs::read_to_string(parent).ok()).unwrap_or_default();
        if own.trim().is_empty() && !parent.trim().is_empty() {
            write_text(directory, &FileWrite::new(name, parent.trim()))?;
        }
    }
    Ok(())
}

/// Opens without O_CREAT, with which the kernel would return EACCES for a missing file.
fn open(file: &Path) -> io::Result<fs::File> {
    fs::File::options().write(true).truncate(true).open(file)
}

/// Writes a file of a cgroup, unless it already has the text. Skips a missing file: its controller is not available.
fn write_text(directory: &Path, write: &FileWrite) -> io::Result<()> {
    let file = directory.join(&write.file);
    let now = match fs::read_to_string(&file) {
        Ok(now) => now,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => String::new(),
    };
    if now.trim() == write.text {
        return Ok(());
    }
    match open(&file).and_then(|mut opened| opened.write_all(write.text.as_bytes())) {
        Err(_) if write.optional => Ok(()),
        written => written.map_err(|error| {
            with_context(
                &format!("set {} to {:?} in the cgroup", write.file, write.text),
                directory,
                &error,
            )
        }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
