//! Detects which cgroup hierarchies this process may use, and from which directory.

use std::{
    collections::BTreeSet,
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::kernel::cgroup::{
    CgroupPath, CgroupPlan, DeviceRule, InvalidCgroup, Limits, cleanup,
    device::lines,
    directory::missing,
    hierarchy::{Branch, Controller, Hierarchy, Tree, mounted},
    path::parent,
    plan::{CurrentValues, writes},
    program,
};
use crate::kernel::failure::plain;

/// How long killed processes may take to exit.
const LAST: Duration = Duration::from_secs(5);

/// The cgroup set-up of this host.
#[derive(Debug)]
pub struct Cgroups {
    tree: Tree,
    /// The directory for pods whose client sets no `cgroup_parent`.
    name: String,
    /// The controllers whose limits are not applied; none if all limits are.
    unapplied: Option<UnappliedLimits>,
    devices: Devices,
}

/// Limits that are not applied.
#[derive(Debug, PartialEq, Eq)]
pub struct UnappliedLimits {
    /// The controllers, with commas.
    controllers: String,
    reasons: String,
}

impl UnappliedLimits {
    /// The controllers and the reasons: `cpu, memory: no cgroup hierarchy is mounted`.
    #[must_use]
    pub fn limits(&self) -> String {
        format!("{}: {}", self.controllers, self.reasons)
    }
}

impl fmt::Display for UnappliedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { controllers, reasons } = self;
        write!(f, "limits of {controllers} are not applied: {reasons}")
    }
}

/// The mechanism that restricts access to devices.
#[derive(Debug, PartialEq, Eq)]
enum Devices {
    /// The v1 controller.
    Lines,
    /// A BPF program on v2.
    Program,
    /// None is needed: a container that cannot create device nodes cannot use other devices.
    NoNodes,
    /// None is available, for this reason.
    Unavailable(String),
}

impl Cgroups {
    /// Inspects the host. `name` is the name of the directory, in every hierarchy, for pods whose client sets no `cgroup_parent`.
    /// With `rules` (real root) the hierarchies are used from their roots, otherwise from this process's own cgroup.
    #[must_use]
    pub fn open(name: String, rules: bool) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let found = mounted(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        let mut cgroups = Self::of(&found, name, rules);
        if cgroups.devices == Devices::Lines
            && let Some(branch) = cgroups.tree.branch(Controller::Devices)
            && let Some(reason) = refusal(try_line(&branch.base))
        {
            cgroups.devices = Devices::Unavailable(reason);
        }
        cgroups
    }

    /// As [`Self::open`], with these hierarchies.
    fn of(found: &[Hierarchy], name: String, rules: bool) -> Self {
        let (tree, unusable) = usable(found, rules);
        for (mount, reason) in &unusable {
            tracing::debug!(hierarchy = %mount.display(), reason, "ignored cgroup hierarchy");
        }
        // List each reason once, however many hierarchies it applies to.
        let mut reasons: BTreeSet<&str> = unusable.iter().map(|(_, reason)| *reason).collect();
        if found.is_empty() {
            reasons.insert("no cgroup hierarchy is mounted");
        }
        let limiting = [Controller::Cpu, Controller::Memory, Controller::Pids];
        let missing: Vec<&str> = limiting
            .into_iter()
            .filter(|c| tree.branch(*c).is_none())
            .map(|c| c.name(true))
            .collect();
        let unapplied = (!missing.is_empty()).then(|| {
            if reasons.is_empty() {
                reasons.insert("this box has no such controllers");
            }
            let reasons = Vec::from_iter(reasons).join("; ");
            UnappliedLimits { controllers: missing.join(", "), reasons }
        });
        let devices = if !rules {
            Devices::NoNodes
        } else if tree.branch(Controller::Devices).is_some() {
            Devices::Lines
        } else if tree.unified().is_none() {
            Devices::Unavailable("there is no cgroup for it".to_owned())
        } else {
            match program::probe() {
                Ok(()) => Devices::Program,
                Err(error) => Devices::Unavailable(error.to_string()),
            }
        };
        Self { tree, name, unapplied, devices }
    }

    /// Whether containers can open only the devices that they are given.
    pub fn restrict_devices(&self) -> bool {
        match &self.devices {
            Devices::Lines | Devices::Program => true,
            Devices::NoNodes | Devices::Unavailable(_) => false,
        }
    }

    /// Whether a container that can create device nodes can use every device of the machine.
    pub fn leave_devices_open(&self) -> bool {
        matches!(self.devices, Devices::Unavailable(_))
    }

    /// A description for Status and the log.
    pub fn describe(&self) -> String {
        let mut text = self.tree.describe();
        if let Some(unapplied) = &self.unapplied {
            text += &format!("; {unapplied}");
        }
        if let Devices::Unavailable(reason) = &self.devices {
            text += &format!("; access to devices is not restricted: {reason}");
        }
        text
    }

    /// Why limits are not applied; none when they are.
    pub fn unapplied_limits(&self) -> Option<&UnappliedLimits> {
        self.unapplied.as_ref()
    }

    /// The path of a pod's cgroup; none if the host allows no cgroup. Makes nothing yet.
    pub fn pod(&self, wished: &str, sandbox: &str) -> Result<Option<CgroupPath>, InvalidCgroup> {
        let ours = wished.is_empty();
        let path = if ours { Path::new(&self.name).join(sandbox) } else { parent(wished)? };
        if self.tree.branches.is_empty() {
            return Ok(None);
        }
        let count = path.iter().count();
        let not_there = |branch: &Branch| {
            let whole = branch.base.join(&path);
            let parts = whole.ancestors().take(count);
            parts.take_while(|part| !part.exists()).count()
        };
        // The directory of all pods belongs to the daemon.
        let own = |branch| if ours { 1 } else { not_there(branch) };
        Ok(Some(CgroupPath {
            own: self.tree.branches.iter().map(own).collect(),
            tree: self.tree.clone(),
            path,
        }))
    }

    /// Plans a pod's cgroup. No limits are written to a cgroup that the client named, unless the client sets its weight
    /// (`weight_asked`) or `limits` has a CPU quota or memory limit: the client may have set its own limits there.
    pub fn pod_plan(
        &self,
        pod: Option<&CgroupPath>,
        limits: &Limits,
        weight_asked: bool,
    ) -> Result<Option<CgroupPlan>, InvalidCgroup> {
        let Some(cgroup) = pod else { return Ok(None) };
        let asked = weight_asked || limits.cpu_quota != 0 || limits.memory != 0;
        let writes = if asked || cgroup.path.starts_with(&self.name) {
            writes(limits, &cgroup.tree, &CurrentValues::default())?.list
        } else {
            Vec::new()
        };
        Ok(Some(CgroupPlan { path: cgroup.clone(), writes, devices: None }))
    }

    /// Plans a container's cgroup in its pod's, and returns the limits that this host cannot apply, with reasons.
    /// Without rules, devices are not restricted.
    pub fn container(
        &self,
        pod: Option<&CgroupPath>,
        container: &str,
        limits: &Limits,
        rules: Option<&[DeviceRule]>,
    ) -> Result<(Option<CgroupPlan>, Vec<String>), InvalidCgroup> {
        let Some(pod) = pod else {
            let none = writes(limits, &Tree::default(), &CurrentValues::default())?;
            return Ok((None, none.not_applied));
        };
        let cgroup = pod.child(container);
        let done = writes(limits, &cgroup.tree, &CurrentValues::default())?;
        let mut list = done.list;
        let mut program = None;
        if let Some(rules) = rules {
            match self.devices {
                Devices::Lines => list.extend(lines(rules)),
                Devices::Program => program = Some(rules.to_vec()),
                Devices::NoNodes | Devices::Unavailable(_) => {}
            }
        }
        let plan = CgroupPlan { path: cgroup, writes: list, devices: program };
        Ok((Some(plan), done.not_applied))
    }

    /// Kills and removes the pods' cgroups that belong to no record; `known` returns whether a sandbox id has a record.
    pub fn sweep(&self, known: impl Fn(&str) -> bool) {
        let all = CgroupPath {
            tree: self.tree.clone(),
            path: self.name.clone().into(),
            own: vec![0; self.tree.branches.len()],
        };
        let entries = all.directories().filter_map(|d| fs::read_dir(d).ok());
        let strangers: BTreeSet<String> = entries
            .flat_map(Iterator::flatten)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| !known(name))
            .collect();
        for name in strangers {
            let pod = all.child(&name);
            cleanup::kill(&pod);
            if !cleanup::remove_in_time(&pod, LAST) {
                tracing::error!(cgroup = %pod.path.display(), "failed to remove cgroup");
            }
        }
    }

    /// Removes the directory of all pods, if it is empty.
    pub fn close(&self) {
        for branch in &self.tree.branches {
            let _ = fs::remove_dir(branch.base.join(&self.name));
        }
    }
}

/// The usable parts of the hierarchies, and the unusable ones with reasons.
pub fn usable(found: &[Hierarchy], rules: bool) -> (Tree, Vec<(PathBuf, &'static str)>) {
    let v2 = found.iter().any(|h| h.v2);
    let (mut tree, mut unusable) = (Tree::default(), Vec::new());
    for hierarchy in found {
        match branch(hierarchy, rules, v2) {
            Ok(branch) => tree.branches.extend(branch),
            Err(reason) => unusable.push((hierarchy.mount.clone(), reason)),
        }
    }
    (tree, unusable)
}

/// The usable part of a hierarchy; none if the runtime has no use for it, an error if it does but cannot use it.
fn branch(hierarchy: &Hierarchy, rules: bool, v2: bool) -> Result<Option<Branch>, &'static str> {
    // On v2 every cgroup can be frozen and killed without a controller.
    let of_use = |c: &&Controller| **c != Controller::Freezer || !v2;
    let controllers: BTreeSet<Controller> =
        hierarchy.controllers.iter().filter(of_use).copied().collect();
    if controllers.is_empty() && !hierarchy.v2 {
        return Ok(None);
    }
    if hierarchy.read_only {
        return Err("cgroups are mounted read-only");
    }
    let bases: Vec<PathBuf> = if rules {
        vec![hierarchy.mount.clone()]
    } else {
        let own = hierarchy.own.clone();
        let own = own.ok_or("this process's own cgroup is not below where cgroups are mounted")?;
        // On v2 a cgroup with processes cannot enable controllers for its children, and this process is in its own. The
        // parent can: systemd's user instance owns it.
        let above = own
            .parent()
            .filter(|above| hierarchy.v2 && above.starts_with(&hierarchy.mount))
            .map(Path::to_owned);
        [Some(own), above].into_iter().flatten().collect()
    };
    let mut best: Option<Branch> = None;
    for base in bases.into_iter().filter(|base| writable(base)) {
        let controllers = if hierarchy.v2 { given(&base) } else { controllers.clone() };
        let branch = Branch { base, v2: hierarchy.v2, controllers };
        if best.as_ref().is_none_or(|b| b.controllers.len() < branch.controllers.len()) {
            best = Some(branch);
        }
    }
    best.map(Some).ok_or("this user can make no cgroups")
}

/// Writes an invalid device rule, which changes nothing: before it reads a rule, the kernel checks for CAP_SYS_ADMIN of the
/// machine, which root of a user namespace lacks (Linux, security/device_cgroup.c, `devcgroup_update_access`).
fn try_line(base: &Path) -> io::Result<()> {
    File::options().write(true).open(base.join("devices.allow"))?.write_all(b"x")
}

/// Why the kernel takes no device rules, after [`try_line`].
fn refusal(tried: io::Result<()>) -> Option<String> {
    let error = tried.err()?;
    match error.raw_os_error() {
        Some(libc::EINVAL) => None,
        Some(libc::EPERM) => Some("root lacks CAP_SYS_ADMIN of the machine".to_owned()),
        _ => Some(format!("failed to write devices.allow: {}", plain(&error))),
    }
}

fn writable(directory: &Path) -> bool {
    let write = |path: &Path| accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    write(directory) && write(&directory.join("cgroup.procs"))
}

/// The controllers that cgroups in `base` have, or can be given.
fn given(base: &Path) -> BTreeSet<Controller> {
    let read = |name: &str| fs::read_to_string(base.join(name)).unwrap_or_default();
    let known = |list: &str| -> BTreeSet<Controller> {
        list.split_whitespace().filter_map(|name| Controller::named(name, true)).collect()
    };
    let there = known(&read("cgroup.controllers"));
    // Only the root cgroup has no `cgroup.type`: it may enable controllers at any time, others only without processes.
    if base.join("cgroup.type").exists() {
        for controller in missing(&read("cgroup.subtree_control"), &there) {
            let _ = fs::write(
                base.join("cgroup.subtree_control"),
                format!("+{}", controller.name(true)),
            );
        }
        return known(&read("cgroup.subtree_control"));
    }
    there
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::taken(None, None)]
    #[case::may_write(Some(libc::EINVAL), None)]
    #[case::user_namespace(Some(libc::EPERM), Some("root lacks CAP_SYS_ADMIN of the machine"))]
    #[case::no_file(
        Some(libc::ENOENT),
        Some("failed to write devices.allow: no such file or directory")
    )]
    fn device_rules_are_refused_unless_only_the_rule_is_invalid(
        #[case] error: Option<i32>,
        #[case] expected: Option<&str>,
    ) {
        let tried = error.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)));
        assert_eq!(refusal(tried).as_deref(), expected);
    }
}
