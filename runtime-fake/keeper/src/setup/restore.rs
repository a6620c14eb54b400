//! Starts criu: to restore a container's processes from a checkpoint, or to dump them into one.
//!
//! The process that would otherwise become the container's program assembles its root, does not enter it, and executes criu. criu
//! makes a mount and a process namespace and the processes in them. Their first one is criu's sibling: a child of the keeper,
//! like every container's. criu exits when they run.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use crate::contract::criu;
use crate::contract::plan::RestorePlan;
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step, plain};
use crate::kernel::sys::{self, Fork};

/// criu runs tar for file systems in memory.
pub(crate) const ENVIRONMENT: [&str; 1] =
    ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];

/// Names in the plan's directory.
const IMAGES: &str = "checkpoint";
const LOG: &str = "restore.log";
const OUTPUT: &str = "criu.output";
const PID: &str = "pid";

/// Checks that the root at `root` has a mount for each mount of the checkpoint, and no others.
pub(crate) fn check(plan: &RestorePlan, root: &Path) -> Step {
    let table =
        fs::read_to_string("/proc/self/mountinfo").context("look at the container's mounts")?;
    let assembled = criu::assembled(&table, &root.to_string_lossy());
    let no = |message: String| Err(Failure::new(FailureKind::Invalid, message));
    if let Some(missing) = plan.mounts.iter().find(|at| !assembled.contains(*at)) {
        return no(format!(
            "the container had something mounted at {missing} when it was checkpointed: its new configuration needs a mount there"
        ));
    }
    if let Some(more) = assembled.iter().find(|at| !plan.mounts.contains(at)) {
        return no(format!(
            "the container had nothing mounted at {more} when it was checkpointed: leave that mount out"
        ));
    }
    Ok(())
}

/// Executes criu. Returns only on failure.
pub(crate) fn exec(plan: &RestorePlan, root: &Path) -> Failure {
    let streams = match streams(plan) {
        Ok(streams) => streams,
        Err(failure) => return failure,
    };
    let arguments = arguments(plan, root, &streams);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    sys::reset_signals();
    let error = sys::run(&plan.program, &arguments, &ENVIRONMENT);
    let (program, error) = (plan.program.display(), plain(&error));
    Failure::new(FailureKind::NotRestored, format!("failed to run {program}: {error}"))
}

/// Moves the container's pipes to the descriptors that criu inherits, under the names in the checkpoint.
fn streams(plan: &RestorePlan) -> Step<Vec<(i32, String)>> {
    let what = "hand the container's streams to criu";
    let output = fs::File::create(plan.directory.join(OUTPUT)).context(what)?;
    let mut given = Vec::new();
    let own = [
        rustix::io::dup(rustix::stdio::stdin()),
        rustix::io::dup(rustix::stdio::stdout()),
        rustix::io::dup(rustix::stdio::stderr()),
    ];
    for (own, old) in own.into_iter().zip(&plan.streams) {
        let own = own.context(what)?;
        if old.starts_with("pipe:[") && !given.iter().any(|(_, name)| name == old) {
            given.push((own.as_raw_fd(), old.clone()));
            // The descriptor stays open across `execve`.
            let _ = std::os::fd::IntoRawFd::into_raw_fd(own);
        }
    }
    let null = fs::File::open("/dev/null").context(what)?;
    rustix::stdio::dup2_stdin(&null).context(what)?;
    rustix::stdio::dup2_stdout(&output).context(what)?;
    rustix::stdio::dup2_stderr(&output).context(what)?;
    Ok(given)
}

fn arguments(plan: &RestorePlan, root: &Path, streams: &[(i32, String)]) -> Vec<String> {
    let path = |path: PathBuf| path.to_string_lossy().into_owned();
    let directory = |name: &str| path(plan.directory.join(name));
    let mut arguments: Vec<String> = [
        "restore",
        "--restore-detached",
        "--restore-sibling",
        // This process is already in their cgroup.
        "--manage-cgroups=ignore",
        "--tcp-close",
        "--file-locks",
        "-v4",
    ]
    .map(str::to_owned)
    .into();
    let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    option("--images-dir", directory(IMAGES));
    option("--work-dir", path(plan.directory.clone()));
    option("--log-file", LOG.to_owned());
    option("--pidfile", directory(PID));
    option("--root", path(root.to_owned()));
    for (number, at) in plan.mounts.iter().enumerate() {
        let at = path(root.join(at.trim_start_matches('/')));
        option("--external", criu::restored(number, &at));
    }
    for (descriptor, old) in streams {
        option("--inherit-fd", format!("fd[{descriptor}]:{old}"));
    }
    arguments
}

/// The outcome of a criu that exited with `code`: the pid of the first restored process.
pub(crate) fn outcome(directory: &Path, code: i32) -> Step<i32> {
    let pid = fs::read_to_string(directory.join(PID));
    let pid = pid.ok().and_then(|text| text.trim().parse().ok());
    if let (0, Some(pid)) = (code, pid) {
        return Ok(pid);
    }
    let why = criu::first_error_in(&directory.join(LOG))
        .or_else(|| criu::first_error_in(&directory.join(OUTPUT)))
        .unwrap_or_else(|| format!("it ended with {code}"));
    Err(Failure::new(
        FailureKind::NotRestored,
        format!("criu cannot restore the container's processes: {why}"),
    ))
}

// Starts criu for a dump: in the pod's network, IPC and UTS namespaces, so that it ignores them, and outside the
// container's namespaces, so that it sees the container's processes as the host does.

/// Starts criu. Its requests and responses go over the socket in `descriptors`, whose other end the daemon has; the keeper does
/// not wait for criu. If the daemon has ended, criu resumes the container.
pub(crate) fn start_dump(program: &Path, descriptors: Vec<OwnedFd>) -> Step {
    let what = "start criu";
    let [socket] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|got| {
        let message = format!("a dump comes with one descriptor, not {}", got.len());
        Failure::new(FailureKind::Invalid, message)
    })?;
    match sys::fork(0).context(what)? {
        Fork::Parent(_) => Ok(()),
        Fork::Child => {
            // A duplicate is inherited across `execve`, unlike the received descriptor.
            let inherited = rustix::io::dup(&socket);
            let Ok(socket) = inherited else {
                std::process::exit(1);
            };
            if let Ok(null) =
                rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())
            {
                let _ = rustix::stdio::dup2_stdin(&null);
                let _ = rustix::stdio::dup2_stdout(&null);
            }
            sys::close_others(&mut [socket.as_raw_fd()]);
            sys::reset_signals();
            let number = socket.as_raw_fd().to_string();
            let error = sys::run(program, &["swrk", &number], &ENVIRONMENT);
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("keeper: failed to run {}: {error}\n", program.display()).as_bytes(),
            );
            std::process::exit(1)
        }
    }
}
