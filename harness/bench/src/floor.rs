//! What the kernel alone needs for a container (the floor): a process in new namespaces mounts an overlay and a `/proc` as its
//! root, enters it, and executes a program. With a network, it also creates a veth pair, of which one end is the host's, and sets
//! an address.
//!
//! A single-threaded helper does this, so that nothing else is measured. It is this program, executed again, which becomes the
//! helper before it starts a second thread. The helper runs one round for each line on its standard input. It answers with the
//! nanoseconds from the clone to the end of `execve`, or with an error.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, clone};
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Uid, chdir, execv, getegid, geteuid, pipe2, pivot_root};

use super::veth::{self, Host};

/// The first argument of the helper; the program then calls [`serve`].
pub const COMMAND: &str = "__floor";
/// The second argument of a helper whose containers have a network.
pub const NETWORK: &str = "network";
/// The directory of the root, in the mount namespace of a round.
const PLACE: &str = "/tmp";
const STACK: usize = 256 << 10;

/// A helper process that waits for rounds.
#[derive(Debug)]
pub(super) struct Floor {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Floor {
    /// Starts a helper: `program` becomes one if its first argument is [`COMMAND`].
    pub(super) fn start(program: &Path, network: bool) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg(COMMAND);
        if network {
            command.arg(NETWORK);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or_else(|| io::Error::other("the helper has no pipes"))?;
        Ok(Self { child, to, from: BufReader::new(from) })
    }

    /// Runs one round.
    pub(super) fn measure(&mut self) -> io::Result<Duration> {
        self.to.write_all(b"\n")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        parse_reply(&line).map_err(io::Error::other)
    }
}

/// The duration in the helper's answer, or its error.
fn parse_reply(line: &str) -> Result<Duration, String> {
    match line.trim_end() {
        "" => Err("the helper ended".to_owned()),
        line => match line.parse() {
            Ok(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
            Err(_) => Err(line.to_owned()),
        },
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a round for each line of standard input. The process must have one thread.
///
/// # Errors
/// Standard input or output fails.
pub fn serve(network: bool) -> io::Result<()> {
    for line in io::stdin().lines() {
        line?;
        match round(network) {
            Ok(took) => writeln!(io::stdout(), "{}", took.as_nanos())?,
            Err(error) => {
                let error = error.to_string().replace('\n', " ");
                writeln!(io::stdout(), "{error}")?;
            }
        }
    }
    Ok(())
}

fn round(network: bool) -> io::Result<Duration> {
    let mut flags = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    flags.set(CloneFlags::CLONE_NEWNET, network);
    // Read before the clone: in the new user namespace these calls return the overflow ids until the ids are mapped.
    let user = (!geteuid().is_root()).then(|| (geteuid(), getegid()));
    flags.set(CloneFlags::CLONE_NEWUSER, user.is_some());
    let mut stack = vec![0; STACK];
    let host = network.then(Host::open).transpose()?;
    let (ended, report) = pipe2(OFlag::O_CLOEXEC)?;
    let report = File::from(report);
    let began = Instant::now();
    let child = || {
        let Err(error) = enter(user, host.as_ref());
        let _ = write!(&report, "{error}");
        1
    };
    // SAFETY: this process has one thread, and the child gets a copy of its whole memory, including the stack.
    #[allow(unsafe_code, reason = "clone has no safe wrapper")]
    let cloned = unsafe { clone(Box::new(child), &mut stack, flags, Some(Signal::SIGCHLD as i32)) };
    // The read ends when `execve` closes the child's end of the pipe, or when the child fails.
    drop(report);
    let cloned = cloned.map_err(|error| doing("clone")(error.into()))?;
    let failure = read(ended);
    let took = began.elapsed();
    waitpid(cloned, None)?;
    match failure? {
        failure if failure.is_empty() => Ok(took),
        failure => Err(io::Error::other(failure)),
    }
}

fn read(from: OwnedFd) -> io::Result<String> {
    let mut text = String::new();
    File::from(from).read_to_string(&mut text)?;
    Ok(text)
}

/// Names the step that failed.
fn doing(step: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::other(format!("failed to {step}: {error}"))
}

/// Sets up the container around this process, and executes the program. An ordinary user becomes root in a user namespace with one
/// mapped id.
fn enter(user: Option<(Uid, Gid)>, host: Option<&Host>) -> io::Result<Infallible> {
    if let Some((uid, gid)) = user {
        let maps = [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("0 {uid} 1")),
            ("gid_map", format!("0 {gid} 1")),
        ];
        for (file, text) in maps {
            fs::write(Path::new("/proc/self").join(file), text).map_err(doing("map the user"))?;
        }
    }
    let none = None::<&str>;
    let private = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    mount(none, "/", none, private, none)
        .map_err(|error| doing("make mounts private")(error.into()))?;
    if let Some(host) = host {
        // An ordinary user may not change the host's network: then both ends are in the new namespace.
        veth::connect(user.is_none().then_some(host)).map_err(doing("make interfaces"))?;
    }
    // In a user namespace the mounts below the host's root are locked, and overlayfs rejects such a lower directory. `/usr` has no
    // mounts below it, and with a merged `/usr` it contains a complete root.
    let lower = if user.is_some() { "/usr" } else { "/" };
    root(lower).map_err(doing("make the root from an overlay"))?;
    let program = c"/bin/true";
    let Err(error) = execv(program, &[program]);
    Err(doing("execute /bin/true")(error.into()))
}

/// Mounts the root with this lower layer, and enters it.
fn root(lower: &str) -> io::Result<()> {
    let none = None::<&str>;
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("floor"), PLACE, Some("tmpfs"), quiet, none)?;
    let place = Path::new(PLACE);
    for name in ["upper", "work", "root"] {
        fs::create_dir(place.join(name))?;
    }
    let root = place.join("root");
    let layers = format!("lowerdir={lower},upperdir={PLACE}/upper,workdir={PLACE}/work");
    mount(Some("floor"), &root, Some("overlay"), MsFlags::empty(), Some(layers.as_str()))?;
    let proc = root.join("proc");
    if !proc.exists() {
        fs::create_dir(&proc)?;
    }
    mount(Some("proc"), &proc, Some("proc"), quiet, none)?;
    chdir(&root)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(chdir("/")?)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::time("1500\n", Ok(Duration::from_nanos(1500)))]
    #[case::error("failed to clone: EPERM\n", Err("failed to clone: EPERM".to_owned()))]
    #[case::end("", Err("the helper ended".to_owned()))]
    fn helper_answers_with_time_or_error(
        #[case] line: &str,
        #[case] expected: Result<Duration, String>,
    ) {
        assert_eq!(parse_reply(line), expected);
    }
}
