//! ◆ Decides which cgroup files to write for a client's limits, in an order that the kernel accepts.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::kernel::cgroup::{
    hierarchy::{Controller, Tree},
    limits::{InvalidCgroup, Limits, invalid, weight},
};

/// A file of a cgroup and its new content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The controller, which determines the hierarchy.
    pub controller: Controller,
    /// The file's name.
    pub file: String,
    /// The value to write.
    pub value: String,
    /// Some kernels lack this file, and then the write is skipped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// The writes for limits on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WritePlan {
    /// The writes, in order.
    pub list: Vec<Write>,
    /// The limits for which this host has no controller, each with a reason.
    pub not_applied: Vec<String>,
}

/// The current values of a cgroup that the order of changes depends on. None means unlimited or unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CurrentValues {
    /// v1: the limit of memory and swap.
    pub memory_and_swap: Option<u64>,
    /// Memory in use that cannot be reclaimed.
    pub used: Option<u64>,
    /// v1: the quota in microseconds.
    pub quota: Option<u64>,
    /// v1: the period in microseconds.
    pub period: Option<u64>,
}

struct Writer<'a> {
    tree: &'a Tree,
    done: WritePlan,
    lacking: BTreeSet<Controller>,
}

impl Writer<'_> {
    /// Whether the controller is on v2; `None`, with a note, if the host lacks it.
    fn version(&mut self, controller: Controller, field: &str) -> Option<bool> {
        if let Some(branch) = self.tree.branch(controller) {
            return Some(branch.v2);
        }
        if self.lacking.insert(controller) || controller == Controller::Hugetlb {
            let reason = if self.tree.branches.is_empty() {
                "no cgroup can be made".to_owned()
            } else {
                format!("no {} controller", controller.name(true))
            };
            self.done.not_applied.push(format!("{field}: {reason}"));
        } else {
            // An earlier field already has the reason.
            self.done.not_applied.push(field.to_owned());
        }
        None
    }

    fn write(&mut self, controller: Controller, file: &str, value: impl ToString) {
        self.done.list.push(Write {
            controller,
            file: file.to_owned(),
            value: value.to_string(),
            optional: false,
        });
    }

    fn write_if_there(&mut self, controller: Controller, file: &str, value: impl ToString) {
        self.write(controller, file, value);
        if let Some(last) = self.done.list.last_mut() {
            last.optional = true;
        }
    }

    fn memory(&mut self, limits: &Limits, now: &CurrentValues) -> Result<(), InvalidCgroup> {
        use Controller::Memory;
        let limit = limits.memory;
        if limit == 0 {
            return Ok(());
        }
        let Some(v2) = self.version(Memory, "memory_limit_in_bytes") else {
            return Ok(());
        };
        let bytes = u64::try_from(limit).unwrap_or(u64::MAX);
        if let Some(used) = now.used
            && used > bytes
        {
            return invalid(format!(
                "memory_limit_in_bytes {limit} is below what the container uses: {used} bytes; the old limit stays"
            ));
        }
        // A kubelet that allows no swap sets no swap limit: then the container gets no swap, as in containerd.
        let both = if limits.memory_and_swap == 0 { limit } else { limits.memory_and_swap };
        if v2 {
            if limit < 0 {
                self.write(Memory, "memory.max", "max");
            } else {
                self.write(Memory, "memory.max", limit);
            }
            if both < 0 {
                self.write_if_there(Memory, "memory.swap.max", "max");
            } else {
                self.write_if_there(Memory, "memory.swap.max", both - limit);
            }
        } else {
            // On v1 the lower of the two limits may never exceed the higher.
            let raised = now.memory_and_swap.is_some_and(|old| bytes > old);
            let first = "memory.memsw.limit_in_bytes";
            if raised {
                self.write_if_there(Memory, first, both);
            }
            self.write(Memory, "memory.limit_in_bytes", limit);
            if !raised {
                self.write_if_there(Memory, first, both);
            }
        }
        Ok(())
    }

    fn cpu(&mut self, limits: &Limits, now: &CurrentValues) {
        use Controller::Cpu;
        if limits.cpu_shares != 0
            && let Some(v2) = self.version(Cpu, "cpu_shares")
        {
            if v2 {
                self.write(Cpu, "cpu.weight", weight(limits.cpu_shares));
            } else {
                self.write(Cpu, "cpu.shares", limits.cpu_shares.clamp(2, 262_144));
            }
        }
        let (quota, period) = (limits.cpu_quota, limits.cpu_period);
        if quota == 0 && period == 0 {
            return;
        }
        let Some(v2) = self.version(Cpu, "cpu_quota") else {
            return;
        };
        if v2 {
            let words = match (quota, period) {
                (0, period) => format!("max {period}"),
                (-1, 0) => "max".to_owned(),
                (quota, 0) => quota.to_string(),
                (-1, period) => format!("max {period}"),
                (quota, period) => format!("{quota} {period}"),
            };
            self.write(Cpu, "cpu.max", words);
            return;
        }
        // The ratio of quota to period may never exceed the parent's, not even between the two writes.
        let shorter = period != 0
            && now.quota.is_some()
            && now.period.is_some_and(|old| period.unsigned_abs() < old);
        let mut writes = [("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", quota)];
        if shorter {
            writes.reverse();
        }
        for (file, value) in writes {
            if value != 0 {
                self.write(Cpu, file, value);
            }
        }
    }

    fn cpuset(&mut self, limits: &Limits) {
        for (field, file, list) in [
            ("cpuset_cpus", "cpuset.cpus", &limits.cpus),
            ("cpuset_mems", "cpuset.mems", &limits.mems),
        ] {
            if !list.is_empty() && self.version(Controller::Cpuset, field).is_some() {
                self.write(Controller::Cpuset, file, list);
            }
        }
    }

    fn hugepages(&mut self, limits: &Limits) {
        // A kubelet sends 0 for every page size that a container does not request: without the controller, nothing is lost.
        let lacking = self.tree.branch(Controller::Hugetlb).is_none();
        let pages = limits.hugepages.iter();
        for (size, limit) in pages.filter(|(_, limit)| !lacking || **limit > 0) {
            let field = format!("hugepage_limits[{size}]");
            if let Some(v2) = self.version(Controller::Hugetlb, &field) {
                let file = if v2 { "max" } else { "limit_in_bytes" };
                let file = format!("hugetlb.{size}.{file}");
                // Reserved pages count too (since 5.7): otherwise the reservation succeeds and SIGBUS kills the process later.
                let reserved = if v2 { "rsvd.max" } else { "rsvd.limit_in_bytes" };
                self.write(Controller::Hugetlb, &file, limit);
                self.write_if_there(
                    Controller::Hugetlb,
                    &format!("hugetlb.{size}.{reserved}"),
                    limit,
                );
            }
        }
    }

    fn unified(&mut self, limits: &Limits) -> Result<(), InvalidCgroup> {
        for (file, value) in &limits.unified {
            let name = file.split_once('.').map_or("", |(name, _)| name);
            let Some(controller) = Controller::named(name, true) else {
                return invalid(format!("unified: {name} is not a controller (in {file:?})"));
            };
            match self.version(controller, &format!("unified[{file}]")) {
                Some(true) => self.write(controller, file, value),
                // The only limit without a field of its own; the file is the same in both versions.
                Some(false) if file == "pids.max" => self.write(controller, file, value),
                Some(false) => {
                    return invalid(format!(
                        "unified: {file:?} is a file of cgroup v2, and the {name} controller of this box is on v1: leave it out"
                    ));
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// The writes that apply `limits` to a cgroup of `tree` whose current values are `now`.
pub fn writes(
    limits: &Limits,
    tree: &Tree,
    now: &CurrentValues,
) -> Result<WritePlan, InvalidCgroup> {
    let mut writer = Writer { tree, done: WritePlan::default(), lacking: BTreeSet::new() };
    // The memory limit comes first because the kernel may reject it: then nothing has changed yet.
    writer.memory(limits, now)?;
    writer.cpu(limits, now);
    writer.cpuset(limits);
    writer.hugepages(limits);
    // The unified files come last: they override the fields.
    writer.unified(limits)?;
    Ok(writer.done)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
