//! The last steps of a process before its program: working directory, limits, ids, capabilities, `execve`.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    io,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use rustix::{
    fs::Mode,
    io::Errno,
    process::{Gid, Uid},
    thread::{CapabilitySet, CapabilitySets},
};

use crate::contract::open_files;
use crate::contract::plan::{Act, ProcessPlan, UserIds};
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step, plain};
use crate::kernel::seccomp::{Arch, Filter, SystemCall};
use crate::kernel::secure_join::Root;
use crate::kernel::sys;
use crate::setup::act;
use crate::setup::exec_error;
use crate::setup::lsm;
use crate::setup::terminal;

/// The `PATH` of a container without one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The highest capability number that a kernel may know.
const LAST_CAPABILITY: u8 = 63;

/// A process ready to become its program.
pub(crate) struct Ready {
    pub(crate) ids: UserIds,
    argv: Vec<CString>,
    env: Vec<CString>,
    path: String,
    /// The simulated behaviour that replaces the program.
    act: Option<Act>,
    filter: Option<Filter>,
    /// The filter, if it was loaded early.
    loaded_filter: Option<Filter>,
    /// The capabilities to set after the filter is loaded, if loading it needs another one.
    without_filter: Option<CapabilitySets>,
    /// Its root is not the host's.
    own_root: bool,
}

const LOAD_FILTER: &str = "load the seccomp filter";

/// The default umask: files that a program creates are not writable for others.
const UMASK: u32 = 0o022;

/// Reads the seccomp filter that the daemon wrote. Call it while the process's root is still the host's.
pub(crate) fn filter(plan: &ProcessPlan) -> Step<Option<Filter>> {
    let Some(path) = &plan.seccomp else {
        return Ok(None);
    };
    let what = "read the container's seccomp filter";
    let bytes = std::fs::read(path).context(what)?;
    match Filter::from_bytes(&bytes) {
        Some(filter) => Ok(Some(filter)),
        None => Err(io::Error::from(io::ErrorKind::InvalidData)).context(what),
    }
}

/// Confines this process's program with AppArmor and SELinux. Call it while its root is still the host's.
pub(crate) fn confine(plan: &ProcessPlan) -> Step {
    let confined = lsm::confine(&plan.confinement);
    confined.map_err(|error| match &plan.confinement.apparmor_profile {
        // The kernel reports a missing profile even if the daemon may not list profiles.
        Some(profile) if error.kind() == io::ErrorKind::NotFound => {
            Failure::new(FailureKind::NotInstalled, lsm::profile_not_found(profile))
        }
        _ => Failure::new(
            FailureKind::System,
            format!("failed to confine the container with {}: {}", plan.confinement, plain(&error)),
        ),
    })
}

/// Drops the privileges that the plan does not grant to the user `ids`. The process's root is the container's already;
/// `own_root`: whether it is not the host's.
pub(crate) fn prepare(
    plan: &ProcessPlan,
    ids: UserIds,
    own_root: bool,
    filter: Option<Filter>,
) -> Step<Ready> {
    rustix::process::umask(Mode::from_raw_mode(UMASK));
    open_files::lower();
    if own_root {
        // No path leads to a leaked descriptor or another process this way (CVE-2024-21626).
        let root = Root::own().context("open the container's root")?;
        root.enter_directory(Path::new(&plan.cwd))?;
    } else {
        enter_directory(&plan.cwd)?;
    }
    let env = environment(plan, &ids);
    let path = env.get("PATH").cloned().unwrap_or_else(|| DEFAULT_PATH.to_owned());
    let env = env
        .iter()
        .map(|(name, value)| text(&format!("{name}={value}")))
        .collect::<Step<Vec<_>>>()?;
    let argv = plan.args.iter().map(|a| text(a)).collect::<Step<Vec<_>>>()?;
    terminal::own_streams(ids.uid);
    let without_filter = drop_privileges(plan, &ids, filter.is_some())?;
    Ok(Ready {
        ids,
        argv,
        env,
        path,
        act: plan.act.clone(),
        filter,
        loaded_filter: None,
        without_filter,
        own_root,
    })
}

fn text(text: &str) -> Step<CString> {
    CString::new(text).map_err(|_| {
        Failure::new(
            FailureKind::Invalid,
            format!("a NUL byte in {text:?}: arguments and variables cannot hold one"),
        )
    })
}

fn enter_directory(cwd: &str) -> Step {
    if cwd.is_empty() {
        return Ok(());
    }
    match rustix::process::chdir(cwd) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) => {
            std::fs::create_dir_all(cwd)
                .context(format_args!("make the working directory {cwd}"))?;
            rustix::process::chdir(cwd).context(format_args!("enter the working directory {cwd}"))
        }
        Err(Errno::NOTDIR) => Err(Failure::new(
            FailureKind::Invalid,
            format!("the working directory {cwd} is not a directory"),
        )),
        Err(error) => Err(error).context(format_args!("enter the working directory {cwd}")),
    }
}

fn environment(plan: &ProcessPlan, user: &UserIds) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = plan
        .env
        .iter()
        .filter_map(|pair| {
            pair.split_once('=')
                .filter(|(name, _)| !name.is_empty())
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        })
        .collect();
    // The kernel's host name, which is the pod's or the host's.
    env.entry("HOSTNAME".to_owned()).or_insert_with(|| {
        let names = rustix::system::uname();
        names.nodename().to_string_lossy().into_owned()
    });
    env.entry("HOME".to_owned()).or_insert_with(|| home(user));
    env.entry("PATH".to_owned()).or_insert_with(|| DEFAULT_PATH.to_owned());
    env
}

/// The home directory of a user who has no variable for it.
fn home(user: &UserIds) -> String {
    let own = rustix::process::geteuid();
    // Without users of its own, a container runs as the keeper's user, which its image does not list.
    if !own.is_root()
        && own.as_raw() != user.uid
        && let Ok(home) = std::env::var("HOME")
    {
        return home;
    }
    match (user.home.as_str(), user.uid) {
        // The container's record was written before the home field existed.
        ("", 0) => "/root".to_owned(),
        ("", _) => "/".to_owned(),
        (home, _) => home.to_owned(),
    }
}

/// Returns the capabilities to set after the filter is loaded, if loading it needs another one.
fn drop_privileges(
    plan: &ProcessPlan,
    ids: &UserIds,
    filtered: bool,
) -> Step<Option<CapabilitySets>> {
    if !rustix::process::geteuid().is_root() {
        as_ordinary_user(plan, ids, filtered)?;
        return Ok(None);
    }
    // A runtime without all capabilities can grant only the ones it has.
    let own = rustix::thread::capabilities(None).context("read the capabilities")?.permitted;
    let wanted = capability_set(&plan.capabilities) & own;
    bound(wanted, own)?;
    let ambient = capability_set(&plan.ambient) & wanted;
    let effective = if ids.uid == 0 { wanted } else { ambient };
    // Loading a filter without no_new_privs needs this capability. `execve` drops it: root then gets the bounding set,
    // and other users the ambient set.
    let to_filter = if filtered && !plan.no_new_privileges {
        CapabilitySet::SYS_ADMIN & own
    } else {
        CapabilitySet::empty()
    };
    let granted =
        CapabilitySets { effective, permitted: effective | ambient, inheritable: ambient };
    let sets = CapabilitySets {
        effective: granted.effective | to_filter,
        permitted: granted.permitted | to_filter,
        ..granted
    };
    // Only a change from user 0 to another one clears them.
    if ids.uid != 0 && !sets.permitted.is_empty() {
        keep_capabilities(ids.uid)?;
    }
    let groups: Vec<Gid> = ids.additional_gids.iter().map(|g| Gid::from_raw(*g)).collect();
    match rustix::thread::set_thread_groups(&groups) {
        Ok(()) => {}
        // A user namespace with one mapped id cannot set groups: only its own exists, group 0.
        Err(Errno::PERM) if ids.additional_gids.iter().all(|g| *g == 0) => {}
        Err(error) => {
            let what = format!("set the groups {:?}", ids.additional_gids);
            return Err(ids_refused(&what, error, own, SETGID));
        }
    }
    let gid = Gid::from_raw(ids.gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid)
        .map_err(|e| ids_refused(&format!("become group {}", ids.gid), e, own, SETGID))?;
    let uid = Uid::from_raw(ids.uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid)
        .map_err(|e| ids_refused(&format!("become user {}", ids.uid), e, own, SETUID))?;
    rustix::thread::set_capabilities(None, sets).context("set capabilities")?;
    for number in plan.ambient.iter().filter(|n| ambient.intersects(capability_set(&[**n]))) {
        rustix::thread::configure_capability_in_ambient_set(capability_set(&[*number]), true)
            .context("raise ambient capabilities")?;
    }
    // Root of a box without CAP_SYS_ADMIN loads a filter in the same way as an ordinary user.
    let filters_unprivileged = filtered && !own.contains(CapabilitySet::SYS_ADMIN);
    if plan.no_new_privileges || filters_unprivileged || is_unbounded(wanted, own) {
        rustix::thread::set_no_new_privs(true).context("set no_new_privs")?;
    }
    // Changing ids cleared the parent-death signal.
    sys::die_with_parent().context("be ended with the keeper")?;
    Ok((sets.permitted != granted.permitted).then_some(granted))
}

const SETGID: (&str, CapabilitySet) = ("CAP_SETGID", CapabilitySet::SETGID);
const SETUID: (&str, CapabilitySet) = ("CAP_SETUID", CapabilitySet::SETUID);

/// Why a process with the capabilities `own` cannot take a user's ids, which needs the capability `needed` too.
fn ids_refused(
    what: &str,
    error: Errno,
    own: CapabilitySet,
    (name, needed): (&str, CapabilitySet),
) -> Failure {
    let (kind, cause) = match error {
        Errno::PERM if !own.contains(needed) => (
            FailureKind::Invalid,
            format!("the runtime lacks {name}: give it this capability, or run as user and group 0"),
        ),
        Errno::INVAL | Errno::PERM => (
            FailureKind::Invalid,
            "the id is not mapped into the user namespace; give the user subordinate ids (/etc/subuid, /etc/subgid, newuidmap) or run as user 0".to_owned(),
        ),
        error => (FailureKind::System, plain(&error.into())),
    };
    Failure::new(kind, format!("failed to {what}: {cause}"))
}

/// Keeps the permitted capabilities when this process becomes the user `uid`.
fn keep_capabilities(uid: u32) -> Step {
    match rustix::thread::set_keep_capabilities(true) {
        // The kernel refuses any change of a locked bit (capabilities(7)), also one to the value that it has.
        Err(Errno::PERM) if rustix::thread::get_keep_capabilities() == Ok(true) => Ok(()),
        Err(Errno::PERM) => Err(Failure::new(
            FailureKind::Invalid,
            format!(
                "failed to keep capabilities for user {uid}: the runtime's securebits forbid it (keep_caps_locked); run as user 0, or without ambient capabilities and with allowPrivilegeEscalation: false"
            ),
        )),
        kept => kept.context("keep capabilities"),
    }
}

/// Drops all capabilities except `wanted` from the bounding set of a process that has `own`.
pub(crate) fn bound(wanted: CapabilitySet, own: CapabilitySet) -> Step {
    // Without namespaces root may lack this capability; see `is_unbounded`.
    if !own.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for number in 0..=LAST_CAPABILITY {
        let one = capability_set(&[number]);
        if !wanted.intersects(one) {
            match rustix::thread::remove_capability_from_bounding_set(one) {
                Ok(()) => {}
                // The kernel has no capabilities from this number on.
                Err(Errno::INVAL) => break,
                Err(error) => return Err(error).context("drop capabilities"),
            }
        }
    }
    Ok(())
}

/// Whether the bounding set has more than `wanted` and cannot be reduced by a process that has `own`. Then only no_new_privs
/// prevents `execve` from granting the whole set to user 0.
fn is_unbounded(wanted: CapabilitySet, own: CapabilitySet) -> bool {
    let is_left = |one| {
        !wanted.intersects(one) && rustix::thread::capability_is_in_bounding_set(one) == Ok(true)
    };
    !own.contains(CapabilitySet::SETPCAP)
        && (0..=LAST_CAPABILITY).any(|number| is_left(capability_set(&[number])))
}

/// Without namespaces an ordinary user's containers run as that user; user 0 means that user.
fn as_ordinary_user(plan: &ProcessPlan, ids: &UserIds, filtered: bool) -> Step {
    let own = rustix::process::geteuid().as_raw();
    if ids.uid != 0 && ids.uid != own {
        let message = format!(
            "failed to become user {}: without a user namespace the container runs as user {own}",
            ids.uid
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    // Without privileges the kernel accepts a filter only after no_new_privs.
    if plan.no_new_privileges || filtered {
        rustix::thread::set_no_new_privs(true).context("set no_new_privs")?;
    }
    Ok(())
}

fn capability_set(numbers: &[u8]) -> CapabilitySet {
    numbers.iter().fold(CapabilitySet::empty(), |set, number| {
        set | CapabilitySet::from_bits_retain(1 << (*number).min(LAST_CAPABILITY))
    })
}

impl Ready {
    /// Loads the seccomp filter now if it allows all of `calls`, which are still to be made.
    pub(crate) fn load_filter_if(&mut self, calls: &[SystemCall]) -> Step {
        let passes =
            |filter: &mut Filter| Arch::native().is_some_and(|native| filter.allows(native, calls));
        if let Some(filter) = self.filter.take_if(passes) {
            sys::load_filter(&filter).context(LOAD_FILTER)?;
            self.loaded_filter = Some(filter);
            if let Some(sets) = self.without_filter.take() {
                rustix::thread::set_capabilities(None, sets).context("set capabilities")?;
            }
        }
        Ok(())
    }

    /// Executes the program, or simulates its behaviour. Returns only on failure.
    pub(crate) fn exec(self) -> Failure {
        match &self.act {
            None => self.execute(),
            Some(Act::Fail(message)) => Failure::new(FailureKind::System, message),
            Some(Act::Play(plan)) => match self.confine_for_good() {
                Ok(()) => act::play(plan),
                Err(failure) => failure,
            },
        }
    }

    /// Applies the confinement that `execve` would otherwise apply.
    fn confine_for_good(&self) -> Step {
        sys::reset_signals();
        if let Some(filter) = &self.filter {
            sys::load_filter(filter).context(LOAD_FILTER)?;
            if let Some(sets) = self.without_filter {
                rustix::thread::set_capabilities(None, sets).context("set capabilities")?;
            }
        }
        // Only without namespaces, where the process has the keeper's user. With an own root it stays undumpable, which hides the
        // memory inherited from the keeper.
        if self.own_root {
            return Ok(());
        }
        sys::set_dumpable(true).context("be seen by execs")
    }

    fn execute(self) -> Failure {
        let Some(program) = self.argv.first() else {
            return Failure::new(
                FailureKind::Invalid,
                "no command: neither the container nor its image says what to run",
            );
        };
        let name = program.to_string_lossy().into_owned();
        let named = program.as_bytes().contains(&b'/');
        let candidates: Vec<CString> = if named {
            vec![program.clone()]
        } else {
            // An empty name must not be joined with a directory: the result would be the directory.
            let path = if name.is_empty() { "" } else { &self.path };
            let directories = path.split(':').filter(|d| !d.is_empty());
            directories
                .filter_map(|d| CString::new(Path::new(d).join(&name).as_os_str().as_bytes()).ok())
                .collect()
        };
        sys::reset_signals();
        // The filter comes last: from here on only allowed calls work.
        if let Some(filter) = &self.filter
            && let Err(failure) = sys::load_filter(filter).context(LOAD_FILTER)
        {
            return failure;
        }
        let mut refused = None;
        for candidate in &candidates {
            let error = sys::exec(candidate, &self.argv, &self.env);
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) if !named => {}
                _ => refused = Some((file(candidate), error)),
            }
        }
        let filter = self.filter.as_ref().or(self.loaded_filter.as_ref());
        // The kernel reports a missing interpreter as it does a missing program.
        let refused = refused.or_else(|| {
            let file = exec_error::first_existing(candidates.iter().map(file), filter)?;
            Some((file, io::Error::from_raw_os_error(libc::ENOENT)))
        });
        match refused {
            Some((file, error)) => exec_error::explain(&name, file, &error, filter),
            None => Failure::new(
                FailureKind::Invalid,
                format!("exec: {name:?}: executable file not found in $PATH ({})", self.path),
            ),
        }
    }
}

fn file(path: &CString) -> &Path {
    Path::new(OsStr::from_bytes(path.as_bytes()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::not_mapped(Errno::INVAL, CapabilitySet::empty(), "not mapped into the user namespace")]
    #[case::no_groups_in_namespace(Errno::PERM, CapabilitySet::SETGID, "subordinate ids")]
    #[case::no_capability(Errno::PERM, CapabilitySet::SETUID, "the runtime lacks CAP_SETGID")]
    #[case::forbidden_call(Errno::NOSYS, CapabilitySet::all(), "function not implemented")]
    fn refused_ids_name_the_cause(
        #[case] error: Errno,
        #[case] own: CapabilitySet,
        #[case] expected: &str,
    ) {
        let failure = ids_refused("become group 7", error, own, SETGID);
        assert!(failure.message.starts_with("failed to become group 7: "), "{failure}");
        assert!(failure.message.contains(expected), "{failure}");
    }
}
