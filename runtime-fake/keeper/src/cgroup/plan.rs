//! ◆ Which files are to be written for which limits, in an order that the kernel takes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::cgroup::{
    hierarchy::{Controller, Tree},
    limits::{InvalidCgroup, Limits, invalid, weight},
};

/// A file of a cgroup and its new content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Whose file it is: it says in which hierarchy.
    pub controller: Controller,
    /// Its name.
    pub file: String,
    /// What is written.
    pub value: String,
    /// Not every kernel has this file, and nothing is lost without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// What limits come to on a box.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writes {
    /// In this order.
    pub list: Vec<Write>,
    /// The limits that this box has no controller for, each with a reason.
    pub not_applied: Vec<String>,
}

/// What is in force in a cgroup, as far as the order of changes depends on it. None is unlimited, or not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Now {
    /// v1: the limit of memory and swap.
    pub memory_and_swap: Option<u64>,
    /// Memory that is used and cannot be taken back.
    pub used: Option<u64>,
    /// v1: the quota in microseconds.
    pub quota: Option<u64>,
    /// v1: the period in microseconds.
    pub period: Option<u64>,
}

struct Writer<'a> {
    tree: &'a Tree,
    done: Writes,
    lacking: BTreeSet<Controller>,
}

impl Writer<'_> {
    /// Whether a controller is there, and of version 2; `None` and a note when it is not.
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
            // The reason was given with another field.
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

    fn memory(&mut self, limits: &Limits, now: &Now) -> Result<(), InvalidCgroup> {
        use Controller::Memory;
        let limit = limits.memory;
        if limit == 0 {
            return Ok(());
        }
        let Some(v2) = self.version(Memory, "memory_limit_in_bytes") else {
            return Ok(());
        };
        if let Some(used) = now.used
            && used > limit.unsigned_abs()
        {
            return invalid(format!(
                "memory_limit_in_bytes {limit} is below what the container uses: {used} bytes; the old limit stays"
            ));
        }
        // A kubelet that allows no swap gives no limit for it: then there is none to be had, as with containerd.
        let both = if limits.memory_and_swap == 0 {
            limit
        } else {
            limits.memory_and_swap
        };
        if v2 {
            self.write(Memory, "memory.max", limit);
            if both < 0 {
                self.write_if_there(Memory, "memory.swap.max", "max");
            } else {
                self.write_if_there(Memory, "memory.swap.max", both - limit);
            }
        } else {
            // Of the two v1 limits the lower one may never pass the higher.
            let raised = now
                .memory_and_swap
                .is_some_and(|old| limit.unsigned_abs() > old);
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

    fn cpu(&mut self, limits: &Limits, now: &Now) {
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
        // The share that both make together may never pass the parent's, not even between the two writes.
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
        for (size, limit) in &limits.hugepages {
            let field = format!("hugepage_limits[{size}]");
            if let Some(v2) = self.version(Controller::Hugetlb, &field) {
                let file = if v2 { "max" } else { "limit_in_bytes" };
                let file = format!("hugetlb.{size}.{file}");
                // What a process has reserved counts too (since 5.7): else it is killed by SIGBUS, not refused.
                let reserved = if v2 {
                    "rsvd.max"
                } else {
                    "rsvd.limit_in_bytes"
                };
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
                // The one limit that has no field of its own, and the same file in both versions.
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

/// The writes that apply `limits` to a cgroup of `tree` in which `now` is in force.
pub fn writes(limits: &Limits, tree: &Tree, now: &Now) -> Result<Writes, InvalidCgroup> {
    let mut writer = Writer {
        tree,
        done: Writes::default(),
        lacking: BTreeSet::new(),
    };
    // The one that can be refused comes first: then nothing has been changed.
    writer.memory(limits, now)?;
    writer.cpu(limits, now);
    writer.cpuset(limits);
    writer.hugepages(limits);
    // Last: what a client writes by hand has the last word.
    writer.unified(limits)?;
    Ok(writer.done)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
