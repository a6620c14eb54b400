//! What the kernel alone takes for a container: a process in new namespaces that makes its root from an overlay and a
//! `/proc`, enters it, and runs a program that ends at once; with a network, it also makes a pair of interfaces, of which the
//! other one is the host's, and takes an address.
//!
//! A helper with one thread does it, so that nothing else is measured: this program again, started before it has a
//! second thread. It does one round for each line on its standard input, and answers with the nanoseconds.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use crate::veth::{self, Host};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, clone},
    sys::{
        signal::Signal,
        wait::{WaitStatus, waitpid},
    },
    unistd::{chdir, execv, geteuid, pivot_root},
};

/// The first argument of a helper; the second one is `network` or nothing.
const HELPER: &str = "--floor";
/// Where the root is assembled, in the mount namespace of a round.
const PLACE: &str = "/tmp";
const STACK: usize = 256 << 10;

/// Never returns in a helper.
pub(crate) fn become_helper() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(HELPER) {
        return;
    }
    let network = arguments.next().as_deref() == Some("network");
    let served = serve(network);
    std::process::exit(i32::from(served.is_err()));
}

/// A helper that waits for rounds.
pub(crate) struct Floor {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Floor {
    /// With a network namespace that has an address, if `network`.
    pub(crate) fn start(network: bool) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(HELPER);
        if network {
            command.arg("network");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or_else(|| io::Error::other("the helper has no pipes"))?;
        Ok(Self {
            child,
            to,
            from: BufReader::new(from),
        })
    }

    /// One round.
    pub(crate) fn measure(&mut self) -> io::Result<Duration> {
        self.to.write_all(b"\n")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let nanoseconds = line.trim().parse().map_err(|_| {
            io::Error::other("this box does not let the helper make a container's namespaces")
        })?;
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(network: bool) -> io::Result<()> {
    for line in io::stdin().lines() {
        line?;
        let took = round(network)?;
        writeln!(io::stdout(), "{}", took.as_nanos())?;
    }
    Ok(())
}

fn round(network: bool) -> io::Result<Duration> {
    let mut flags = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    flags.set(CloneFlags::CLONE_NEWNET, network);
    let own_users = !geteuid().is_root();
    flags.set(CloneFlags::CLONE_NEWUSER, own_users);
    let mut stack = vec![0; STACK];
    let host = network.then(Host::open).transpose()?;
    let began = Instant::now();
    let child = || match run(own_users, host.as_ref()) {
        Ok(never) => match never {},
        Err(error) => {
            let _ = writeln!(io::stderr(), "floor: {error}");
            1
        }
    };
    // SAFETY: this process has one thread, and memory is not shared: the child has a copy of everything, its stack too.
    #[allow(unsafe_code, reason = "clone has no safe wrapper")]
    let child = unsafe {
        clone(
            Box::new(child),
            &mut stack,
            flags,
            Some(Signal::SIGCHLD as i32),
        )
    }?;
    let ended = waitpid(child, None)?;
    if ended == WaitStatus::Exited(child, 0) {
        Ok(began.elapsed())
    } else {
        Err(io::Error::other(format!("a round failed: {ended:?}")))
    }
}

fn run(own_users: bool, host: Option<&Host>) -> io::Result<std::convert::Infallible> {
    if own_users {
        let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    }
    let nothing = None::<&str>;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_SLAVE | MsFlags::MS_REC,
        nothing,
    )?;
    if let Some(host) = host {
        // The host's network is not an ordinary user's to change: both ends are here then.
        veth::connect((!own_users).then_some(host))?;
    }
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("floor"), PLACE, Some("tmpfs"), quiet, nothing)?;
    let place = Path::new(PLACE);
    for name in ["upper", "work", "root"] {
        fs::create_dir(place.join(name))?;
    }
    let root = place.join("root");
    let layers = format!("lowerdir=/,upperdir={PLACE}/upper,workdir={PLACE}/work");
    mount(
        Some("floor"),
        &root,
        Some("overlay"),
        MsFlags::empty(),
        Some(layers.as_str()),
    )?;
    mount(
        Some("proc"),
        &root.join("proc"),
        Some("proc"),
        quiet,
        nothing,
    )?;
    chdir(&root)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    let program = c"/bin/true";
    Ok(execv(program, &[program])?)
}
