//! Connects the private network namespace of a rootless daemon's bridge to the host's network: either with pasta or slirp4netns,
//! where pods' packets are masqueraded with the address of the program's interface, or with crib's own relay.
//!
//! ```text
//! pod ── bridge ── masquerade ── pasta (an interface in the bridge's namespace, sockets in the host's)
//! pod ── bridge ── relay (sockets in both)
//! ```
//!
//! `process` runs the program and ends with its last user; `relay` is crib's own implementation; `dns` is the pods' DNS server;
//! `program` ◆ has the differences between programs. The process can outlive the daemon: a new daemon finds it by its FIFO, which
//! is named after the namespace.

mod dns;
mod process;
mod program;
mod relay;

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    net::IpAddr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{MetadataExt as _, OpenOptionsExt as _},
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    sys::stat::Mode,
    unistd::mkfifo,
};
use rustix::{
    fs::OFlags,
    process::{Pid, PidfdFlags, pidfd_open},
};

pub(crate) use program::MTU;
pub use program::{DNS, HOST, Program};

use crate::links;
use crate::links::link_query;
use crate::links::netlink::Netlink;
use crate::netfilter::nat::{Nat, tables};
use crate::{NetError, chain};

#[cfg(any(test, fuzzing))]
pub(crate) use relay::fuzz;
#[cfg(test)]
pub(crate) use relay::start as start_relay;

/// The word on the command line that starts the process of [`Egress`].
pub const COMMAND: &str = "__egress";

/// The environment variable that selects the egress program: `crib`, `pasta`, `slirp4netns` or [`NONE`].
const CHOICE: &str = "CRIB_EGRESS";
const NONE: &str = "none";

/// Timeout for the process's report: longer than the process's own timeout for the program.
const REPORT_WITHIN: Duration = Duration::from_secs(10);

/// Timeout for the end of a process without users.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Directories searched for programs in addition to the `PATH`.
const DIRECTORIES: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Why pods reach only each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// The user turned egress off.
    #[error("{CHOICE}={NONE}")]
    TurnedOff,
    /// The program that `CRIB_EGRESS` names cannot be run.
    #[error("{CHOICE}={0}: there is no such program here, or /dev/net/tun cannot be opened")]
    NotThere(String),
    /// Every installed program failed.
    #[error("{}", .0.join("; "))]
    Failed(Vec<String>),
    /// The kernel has no packet rules for an ordinary user.
    #[error("the kernel refuses packet rules (nf_tables) in the pods' network namespace")]
    NoRules,
}

/// The egress of a bridge's namespace. Dropping it leaves the process running for the pods that hold it.
#[derive(Debug)]
pub struct Egress {
    netns: OwnedFd,
    bridge: String,
    subnets: Vec<(IpAddr, u8)>,
    fifo: PathBuf,
    /// The write end of the FIFO: the process runs until all write ends are closed.
    users: OwnedFd,
    state: Mutex<State>,
    /// Keeps the socket of the rules open.
    nat: Nat,
}

#[derive(Debug, Default)]
struct State {
    /// The process, if this daemon started it.
    process: Option<Child>,
    /// The running program, or why none runs; `None` if unknown.
    outcome: Option<Result<Program, EgressError>>,
}

impl Egress {
    /// Prepares egress for the `subnets` of a bridge in `netns`; starts no process. `directory` is the daemon's.
    ///
    /// # Errors
    /// If the namespace cannot forward packets, or the FIFO cannot be made.
    pub fn open(
        netns: BorrowedFd<'_>,
        directory: &Path,
        bridge: &str,
        subnets: &[(IpAddr, u8)],
    ) -> Result<Self, NetError> {
        let failed = |doing| move |source| NetError::Namespace { doing, source };
        let netns = netns.try_clone_to_owned();
        let netns = netns.map_err(failed("holding the bridge's network namespace"))?;
        let nat = links::within(Some(netns.as_fd()), || {
            forward_packets()?;
            Ok(Nat::open(bridge, subnets, Default::default()))
        });
        let nat = nat.and_then(|nat| nat).map_err(failed("forwarding packets of pods"))?;
        let (fifo, users) = open_fifo(directory, netns.as_fd())
            .map_err(failed("making the FIFO of the process that connects pods"))?;
        Ok(Self {
            netns,
            bridge: bridge.to_owned(),
            subnets: subnets.to_vec(),
            fifo,
            users,
            state: Mutex::default(),
            nat,
        })
    }

    /// A descriptor that keeps the process running.
    pub fn hold(&self) -> io::Result<OwnedFd> {
        self.users.try_clone()
    }

    /// The program that connects pods to the host's network. Starts it if none runs; after a failure only if `again`.
    /// Blocks while it starts.
    pub fn program(&self, executable: &Path, again: bool) -> Result<Program, EgressError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.outcome {
            Some(Ok(program)) if self.is_served() => return Ok(*program),
            Some(Err(error)) if !again => return Err(error.clone()),
            Some(_) | None => {}
        }
        let found = self.find_running();
        let outcome = found.map_or_else(|| self.start(executable, &mut state), Ok);
        if let Err(reason) = &outcome
            && state.outcome.as_ref() != Some(&outcome)
        {
            tracing::warn!(%reason, "pods cannot reach other hosts");
        }
        state.outcome = Some(outcome.clone());
        outcome
    }

    /// Ends the process if no pod holds it, and waits for its end if `idle`, that is, if there are no pods.
    pub fn close(self, idle: bool) {
        let Self { fifo, users, state, .. } = self;
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let process = match &state.process {
            _ if !idle => None,
            Some(child) => pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok(),
            None => running(&fifo),
        };
        drop(users);
        if let Some(process) = process {
            let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            let limit = PollTimeout::try_from(END_WITHIN).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut ended, limit);
        }
        if let Some(mut child) = state.process {
            let _ = child.try_wait();
        }
    }

    /// Whether a process reads the FIFO.
    fn is_served(&self) -> bool {
        let mut users = [PollFd::new(self.users.as_fd(), PollFlags::empty())];
        matches!(poll(&mut users, PollTimeout::ZERO), Ok(0))
    }

    /// The program that an earlier daemon started.
    fn find_running(&self) -> Option<Program> {
        if !self.is_served() {
            return None;
        }
        let links = links::within(Some(self.netns.as_fd()), || {
            let mut netlink = Netlink::open()?;
            let mut found = Program::ALL.into_iter();
            let mut link = |program: &Program| link_query::link(&mut netlink, program.name());
            Ok(found.find(|program| matches!(link(program), Ok(Some(_)))))
        });
        let links: Result<Option<Program>, NetError> = links.ok()?;
        links.ok().flatten().or_else(|| {
            // The kernel removes the relay's table when its process ends.
            let tables = links::within(Some(self.netns.as_fd()), tables).ok()?.ok()?;
            tables.iter().any(|name| name == relay::TABLE).then_some(Program::Crib)
        })
    }

    fn start(&self, executable: &Path, state: &mut State) -> Result<Program, EgressError> {
        if !self.nat.is_applied() {
            return Err(EgressError::NoRules);
        }
        let choice = env::var(CHOICE).unwrap_or_default();
        if choice == NONE {
            return Err(EgressError::TurnedOff);
        }
        let chosen = |program: &Program| choice.is_empty() || choice == program.name();
        let candidates = Program::ALL.into_iter().filter(chosen);
        let candidates: Vec<_> =
            candidates.filter_map(|program| Some((program, self.arguments(program)?))).collect();
        if candidates.is_empty() {
            return Err(EgressError::NotThere(choice));
        }
        let mut failures = Vec::new();
        for (program, arguments) in candidates {
            // Reap a process that was killed.
            if let Some(mut earlier) = state.process.take() {
                let _ = earlier.wait();
            }
            match self.launch(executable, program, arguments) {
                Ok(process) => {
                    state.process = Some(process);
                    tracing::info!(program = program.name(), "pods reach other hosts");
                    return Ok(program);
                }
                Err(error) => {
                    failures.push(format!("{} failed: {}", program.name(), chain(&error)));
                }
            }
        }
        Err(EgressError::Failed(failures))
    }

    /// The arguments of the process that runs the program; `None` if it cannot run here.
    fn arguments(&self, program: Program) -> Option<Vec<OsString>> {
        match program {
            Program::Crib => {
                let subnets = self.subnets.iter();
                let subnets = subnets.map(|(network, length)| format!("{network}/{length}").into());
                let bridge = OsString::from(&self.bridge);
                Some([bridge].into_iter().chain(subnets).collect())
            }
            Program::Pasta | Program::Slirp4netns => {
                let tun = File::options().read(true).write(true).open("/dev/net/tun");
                tun.ok()?;
                Some(vec![find(program.name())?.into()])
            }
        }
    }

    /// Starts the process, and waits until its program is ready.
    fn launch(
        &self,
        executable: &Path,
        program: Program,
        arguments: Vec<OsString>,
    ) -> io::Result<Child> {
        let (mut report, theirs) = io::pipe()?;
        let netns = self.netns.try_clone()?;
        if !self.fifo.exists() {
            return Err(io::Error::other("its FIFO no longer exists"));
        }
        let log = File::options().create(true).append(true).mode(0o600).open(log_of(&self.fifo))?;
        // The process is the first one of a process namespace, so all processes there end with it.
        let mut process = links::on_a_thread(move || {
            unshare(CloneFlags::CLONE_NEWPID)?;
            Command::new(executable)
                .arg0("crib-egress")
                .arg(COMMAND)
                .args([&self.fifo, Path::new(program.name())])
                .args(arguments)
                .env_clear()
                .current_dir("/")
                .stdin(netns)
                .stdout(theirs)
                .stderr(log)
                .spawn()
        })?;
        let mut said = String::new();
        let read = read_report(&mut report, &mut said);
        if read.is_ok() && said == process::READY {
            return Ok(process);
        }
        let _ = process.kill();
        let _ = process.wait();
        read?;
        Err(io::Error::other(said))
    }
}

/// Runs the egress process if the command line begins with [`COMMAND`].
pub fn serve_egress() {
    if let Err(error) = process::run(env::args_os().skip(2)) {
        process::report_failure(&error);
    }
}

/// The file that the process of a FIFO reports to: it outlives the daemon's own log.
fn log_of(fifo: &Path) -> PathBuf {
    fifo.with_added_extension("log")
}

/// Reads until the process closes its end.
fn read_report(report: &mut io::PipeReader, said: &mut String) -> io::Result<()> {
    loop {
        let mut waits = [PollFd::new(report.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(REPORT_WITHIN).unwrap_or(PollTimeout::MAX);
        match poll(&mut waits, limit) {
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
        }
        let mut bytes = [0; 4096];
        match report.read(&mut bytes)? {
            0 => return Ok(()),
            length => said.push_str(&String::from_utf8_lossy(&bytes[..length])),
        }
    }
}

/// Enables packet forwarding in the calling thread's network namespace. IPv6 packets have no egress route, and with forwarding
/// the kernel answers them with "no route" instead of dropping them.
fn forward_packets() -> io::Result<()> {
    let _ = fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
    // With br_netfilter, packets that the bridge redirects to the proxy of Services would pass the relay's rules, which would
    // treat them as outgoing.
    let _ = fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0");
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")
}

/// Makes the FIFO of the namespace if it is missing, and opens its write end. The name contains the namespace's inode number, so
/// that a process of an earlier namespace is not mistaken for this one's: a running process keeps its namespace, so the number is
/// not reused.
fn open_fifo(directory: &Path, netns: BorrowedFd<'_>) -> io::Result<(PathBuf, OwnedFd)> {
    let number = File::from(netns.try_clone_to_owned()?).metadata()?.ino();
    let fifo = directory.join(format!("egress-{number}"));
    match mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    // The write end of a FIFO that nothing reads cannot be opened.
    let reader = File::options().read(true).custom_flags(flags).open(&fifo)?;
    let users = File::options().write(true).custom_flags(flags).open(&fifo)?;
    drop(reader);
    Ok((fifo, users.into()))
}

/// The pidfd of the process that an earlier daemon started for the FIFO.
fn running(fifo: &Path) -> Option<OwnedFd> {
    let argument = fifo.as_os_str().as_bytes();
    let mut processes = fs::read_dir("/proc").ok()?.flatten();
    processes.find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        // Read after the pidfd was opened: the pid is still that process's, or its command line is empty.
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0);
        let ours = words.nth(1) == Some(COMMAND.as_bytes()) && words.next() == Some(argument);
        ours.then_some(process)
    })
}

/// The path of an installed program.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories = env::split_paths(&path).chain(env::split_paths(DIRECTORIES));
    directories.find_map(|directory| {
        let path = directory.join(name);
        (directory.is_absolute() && path.is_file()).then_some(path)
    })
}
