//! systemd-logind, which delays the machine's shutdown. It is called over the system bus.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/nodeshutdown/systemd/inhibit_linux.go; org.freedesktop.login1(5).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use agent::machine::logind::{InhibitLock, Logind};
use tokio::sync::mpsc;

use crate::dbus::{Argument, Bus, Method, system_bus};

/// The directory of logind's drop-in files, and the name of the kubelet's.
const DIRECTORY: &str = "/etc/systemd/logind.conf.d";
const FILE: &str = "99-kubelet.conf";

const MANAGER: &str = "org.freedesktop.login1.Manager";
const OBJECT: &str = "/org/freedesktop/login1";
const SIGNAL: &str = "PrepareForShutdown";

/// logind on a bus. Each call opens its own connection, because logind may be restarted.
#[derive(Clone, Debug)]
pub struct SystemdLogind {
    bus: PathBuf,
    directory: PathBuf,
}

impl Default for SystemdLogind {
    fn default() -> Self {
        Self::new(&system_bus(), Path::new(DIRECTORY))
    }
}

impl SystemdLogind {
    /// logind on the bus at `bus`, configured by drop-in files in `directory`.
    #[must_use]
    pub fn new(bus: &Path, directory: &Path) -> Self {
        Self { bus: bus.to_owned(), directory: directory.to_owned() }
    }

    fn connect(&self) -> io::Result<Bus> {
        Bus::connect(&self.bus).map_err(|error| {
            let problem = format!("failed to connect to {}: {error}", self.bus.display());
            io::Error::new(error.kind(), problem)
        })
    }
}

fn method<'a>(interface: &'a str, member: &'a str) -> Method<'a> {
    Method { destination: "org.freedesktop.login1", path: OBJECT, interface, member }
}

fn malformed(member: &str) -> io::Error {
    let problem = format!("unexpected reply of systemd-logind to {member}");
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

impl Logind for SystemdLogind {
    fn watch(&self) -> io::Result<mpsc::UnboundedReceiver<bool>> {
        let mut bus = self.connect()?;
        bus.add_match(&format!(
            "type='signal',interface='{MANAGER}',member='{SIGNAL}',path='{OBJECT}'"
        ))?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let read = move || {
            while let Ok(signal) = bus.next_signal() {
                let is_of_logind = signal.interface.as_deref() == Some(MANAGER)
                    && signal.member.as_deref() == Some(SIGNAL);
                if let Some(begins) = signal.boolean().filter(|_| is_of_logind)
                    && sender.send(begins).is_err()
                {
                    return;
                }
            }
        };
        thread::Builder::new().name("logind".to_owned()).spawn(read)?;
        Ok(receiver)
    }

    fn max_inhibit_delay(&self) -> io::Result<Duration> {
        const PROPERTY: &str = "InhibitDelayMaxUSec";
        let get = method("org.freedesktop.DBus.Properties", "Get");
        let arguments = [Argument::Text(MANAGER), Argument::Text(PROPERTY)];
        let answer = self.connect()?.call(get, &arguments)?;
        let micros = answer.variant_of_u64().ok_or_else(|| malformed(PROPERTY))?;
        Ok(Duration::from_micros(micros))
    }

    fn set_max_inhibit_delay(&self, delay: Duration) -> io::Result<()> {
        let text = format!("[Login]\nInhibitDelayMaxSec={}\n", delay.as_secs());
        let file = self.directory.join(FILE);
        let written = fs::create_dir_all(&self.directory).and_then(|()| fs::write(&file, text));
        written.map_err(|error| {
            io::Error::new(error.kind(), format!("failed to write {}: {error}", file.display()))
        })?;
        let kill = Method {
            destination: "org.freedesktop.systemd1",
            path: "/org/freedesktop/systemd1",
            interface: "org.freedesktop.systemd1.Manager",
            member: "KillUnit",
        };
        const SIGHUP: i32 = 1;
        let unit = Argument::Text("systemd-logind.service");
        let arguments = [unit, Argument::Text("all"), Argument::Int32(SIGHUP)];
        self.connect()?.call(kill, &arguments).map(drop)
    }

    fn inhibit(&self) -> io::Result<InhibitLock> {
        const WHY: &str = "Kubelet needs time to handle node shutdown";
        let inhibit = method(MANAGER, "Inhibit");
        let arguments = ["shutdown", "kubelet", WHY, "delay"].map(Argument::Text);
        let mut answer = self.connect()?.call(inhibit, &arguments)?;
        let lock = answer.received.pop().ok_or_else(|| malformed("Inhibit"))?;
        Ok(InhibitLock::new(lock))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
