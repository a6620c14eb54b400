//! Cgroups as systemd slices, created over the system bus. [`HostCgroups`] writes the values that systemd does not support to the
//! cgroup files, as the kubelet does.
//!
//! `properties` ◆ computes the unit properties. Each operation opens its own connection, because systemd may be restarted.
//!
//! Source: opencontainers/cgroups 0.0.6, systemd/common.go; org.freedesktop.systemd1(5).

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent::machine::cgroups::{CgroupValues, ControlGroups};
use compact::Set;

use super::properties::{of_new_slice, of_values, rounded, slice_of};
use super::{HostCgroups, HostKernel, Kernel};
use crate::dbus::{Argument, Bus, Message, Method, error_name_of};

/// The timeout of a systemd job.
const JOB: Duration = Duration::from_secs(30);

const SERVICE: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const REMOVED: &str = "JobRemoved";

/// Slices below the agent's own root.
#[derive(Clone, Debug)]
pub struct SystemdSlices<K = HostKernel> {
    bus: PathBuf,
    files: HostCgroups<K>,
}

/// A connection to systemd that receives JobRemoved signals.
struct Systemd(Bus);

impl<K: Kernel> SystemdSlices<K> {
    /// Creates slices through systemd on the bus at `bus`, with these cgroups.
    #[must_use]
    pub fn new(bus: &Path, files: HostCgroups<K>) -> Self {
        Self { bus: bus.to_owned(), files }
    }

    fn connect(&self) -> io::Result<Systemd> {
        let connected = Bus::connect(&self.bus).and_then(Systemd::subscribe);
        connected.map_err(|error| {
            let problem = format!(
                "failed to reach systemd at {}: {error}; run the agent where systemd is, or set cgroupDriver: cgroupfs for it and the runtime",
                self.bus.display()
            );
            io::Error::new(error.kind(), problem)
        })
    }

    fn is_v2(&self) -> bool {
        self.files.hierarchies().iter().all(|hierarchy| hierarchy.is_v2)
    }

    /// Sets unit properties, so that systemd does not reset the values at a daemon-reload.
    fn set_properties(
        &self,
        systemd: &mut Systemd,
        slice: &str,
        values: &CgroupValues,
    ) -> io::Result<()> {
        let properties = of_values(values, self.is_v2());
        if properties.is_empty() {
            return Ok(());
        }
        let set = [Argument::Text(slice), Argument::Flag(true), Argument::Properties(&properties)];
        let result = systemd.call("SetUnitProperties", &set);
        result.map(drop).map_err(|error| with_context("set properties of", slice, &error))
    }
}

impl Systemd {
    fn subscribe(mut bus: Bus) -> io::Result<Self> {
        bus.add_match(&format!(
            "type='signal',sender='{SERVICE}',interface='{MANAGER}',member='{REMOVED}',path='{OBJECT}'"
        ))?;
        let mut systemd = Self(bus);
        systemd.call("Subscribe", &[])?;
        Ok(systemd)
    }

    fn call(&mut self, member: &str, arguments: &[Argument<'_>]) -> io::Result<Message> {
        let method = Method { destination: SERVICE, path: OBJECT, interface: MANAGER, member };
        self.0.call(method, arguments)
    }

    /// Starts a job, and waits for its result.
    fn job(&mut self, member: &str, arguments: &[Argument<'_>]) -> io::Result<String> {
        let answer = self.call(member, arguments)?.values().unwrap_or_default();
        let malformed = || {
            let problem = format!("unexpected reply of systemd to {member}");
            io::Error::new(io::ErrorKind::InvalidData, problem)
        };
        let job = answer.first().and_then(|job| job.text()).ok_or_else(malformed)?.to_owned();
        let end = Instant::now() + JOB;
        loop {
            let signal = self.0.next_signal_until(end)?;
            if signal.member.as_deref() != Some(REMOVED) {
                continue;
            }
            // The job's number and path, the unit, and the result.
            let values = signal.values().unwrap_or_default();
            if let [_, removed, _, result] = values.as_slice()
                && removed.text() == Some(job.as_str())
            {
                return result.text().map(str::to_owned).ok_or_else(malformed);
            }
        }
    }

    /// Starts a slice, unless it exists.
    fn start(&mut self, path: &Path, slice: &str, is_v2: bool) -> io::Result<()> {
        let properties = of_new_slice(path, slice, is_v2);
        let [name, mode] = [slice, "replace"].map(Argument::Text);
        let arguments = [name, mode, Argument::Properties(&properties), Argument::NoUnits];
        let started = match self.job("StartTransientUnit", &arguments) {
            Ok(result) if result == "done" => return Ok(()),
            Ok(result) => Err(io::Error::other(format!("job result {result:?}"))),
            Err(error) if is_systemd_error(&error, "UnitExists") => return Ok(()),
            Err(error) => Err(error),
        };
        self.reset(slice);
        started.map_err(|error| with_context("start", slice, &error))
    }

    /// Stops a slice and its children.
    fn stop(&mut self, slice: &str) -> io::Result<()> {
        let stopped = self.job("StopUnit", &[slice, "replace"].map(Argument::Text));
        match stopped {
            Ok(result) if result != "done" => {
                tracing::warn!(slice, result, "systemd failed to stop the slice");
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(with_context("stop", slice, &error));
            }
            // The slice may not exist.
            Ok(_) | Err(_) => {}
        }
        self.reset(slice);
        Ok(())
    }

    /// Resets the failed state of a slice. Errors are ignored, because the slice may not exist.
    fn reset(&mut self, slice: &str) {
        let _ = self.call("ResetFailedUnit", &[Argument::Text(slice)]);
    }
}

fn is_systemd_error(error: &io::Error, name: &str) -> bool {
    error_name_of(error).and_then(|name| name.strip_prefix("org.freedesktop.systemd1."))
        == Some(name)
}

fn with_context(verb: &str, slice: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("failed to {verb} {slice}: {error}"))
}

impl<K: Kernel> ControlGroups for SystemdSlices<K> {
    fn missing_controllers(&self) -> Vec<String> {
        self.files.missing_controllers()
    }

    fn make(&self, path: &str, values: &CgroupValues) -> io::Result<()> {
        self.files.check_own(path)?;
        let at = Path::new(path);
        let Some(slice) = slice_of(at) else {
            return self.files.make(path, values);
        };
        let mut systemd = self.connect()?;
        systemd.start(at, slice, self.is_v2())?;
        self.set_properties(&mut systemd, slice, values)?;
        // systemd creates only the cgroups of controllers that it supports, some of them with a delay.
        self.files.make(path, &rounded(values))
    }

    fn set(&self, path: &str, values: &CgroupValues) -> io::Result<()> {
        if let Some(slice) = slice_of(Path::new(path)).filter(|_| self.files.may_set(path)) {
            self.set_properties(&mut self.connect()?, slice, values)?;
        }
        self.files.set(path, &rounded(values))
    }

    fn exists(&self, path: &str) -> bool {
        self.files.exists(path)
    }

    fn children(&self, path: &str) -> io::Result<Set<String>> {
        self.files.children(path)
    }

    fn memory_usage(&self, path: &str) -> Option<i64> {
        self.files.memory_usage(path)
    }

    fn destroy(&self, path: &str) -> io::Result<()> {
        // Kill the processes first, so that systemd does not wait for them to exit.
        self.files.kill(path)?;
        if let Some(slice) = slice_of(Path::new(path))
            && self.files.is_anywhere(path)
        {
            self.connect()?.stop(slice)?;
        }
        self.files.destroy(path)
    }

    fn remove_empty(&self, path: &str) {
        // systemd stops a slice together with the units in it. The kernel removes no cgroup that has children or processes, including
        // those of PID namespaces that the agent cannot see, so its answer decides.
        self.files.remove_empty(path);
        if self.files.check_own(path).is_ok()
            && !self.files.is_anywhere(path)
            && let Some(slice) = slice_of(Path::new(path))
        {
            // Without systemd, only the directory is removed.
            let _ = self.connect().and_then(|mut systemd| systemd.stop(slice));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
