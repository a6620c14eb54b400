//! Reads the usage of a cgroup, on v1 or v2.

use std::{collections::BTreeMap, fs, path::PathBuf};

use keeper::kernel::cgroup::{CgroupPath, hierarchy::Controller};

use super::{
    parse::{self, keyed, limit, number},
    usage::{Cpu, HugePages, Io, Memory, Tasks, Usage},
};

/// Nanoseconds per tick of `cpuacct.stat`: USER_HZ is 100, independently of the kernel's own HZ.
pub(super) const TICK: u64 = 10_000_000;

/// The files of one controller in one cgroup.
struct Files {
    directory: PathBuf,
    v2: bool,
}

impl Files {
    fn of(cgroup: &CgroupPath, controller: Controller) -> Option<Self> {
        let branch = cgroup.tree.branch(controller)?;
        Some(Self { directory: cgroup.directory(branch), v2: branch.v2 })
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.directory.join(name)).unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<u64> {
        number(&self.text(name))
    }

    fn limit(&self, name: &str) -> Option<u64> {
        limit(&self.text(name))
    }
}

/// The processes in the cgroup and in its descendants.
pub(super) fn processes(cgroup: &CgroupPath) -> Vec<i32> {
    let mut found = Vec::new();
    // Every hierarchy has all processes, so the first readable one is enough.
    for directory in cgroup.directories() {
        below(&directory, &mut found);
        if !found.is_empty() {
            break;
        }
    }
    found
}

fn below(directory: &std::path::Path, found: &mut Vec<i32>) {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below(&entry.path(), found);
        }
    }
}

/// The usage of the cgroup, except the files that its processes hold open.
pub(super) fn usage(cgroup: &CgroupPath) -> Usage {
    let pressure = |name: &str| {
        let directory = cgroup.unified()?;
        parse::pressure(&fs::read_to_string(directory.join(name)).ok()?)
    };
    let mut usage = Usage {
        cpu: cpu(cgroup),
        memory: memory(cgroup).unwrap_or_default(),
        io: io(cgroup).unwrap_or_default(),
        tasks: Tasks {
            threads_max: Files::of(cgroup, Controller::Pids).and_then(|f| f.limit("pids.max")),
            ..Tasks::default()
        },
        huge_pages: huge_pages(cgroup).unwrap_or_default(),
    };
    usage.cpu.pressure = pressure("cpu.pressure");
    usage.memory.pressure = pressure("memory.pressure");
    usage.io.pressure = pressure("io.pressure");
    usage
}

fn cpu(cgroup: &CgroupPath) -> Cpu {
    let quota = Files::of(cgroup, Controller::Cpu);
    let stat = quota.as_ref().map(|f| f.text("cpu.stat")).unwrap_or_default();
    let mut cpu = Cpu {
        periods: keyed(&stat, "nr_periods"),
        throttled_periods: keyed(&stat, "nr_throttled"),
        ..Cpu::default()
    };
    if quota.is_some_and(|f| f.v2) {
        let microseconds = |key| keyed(&stat, key).map(|n| n.saturating_mul(1000));
        cpu.total = microseconds("usage_usec");
        cpu.user = microseconds("user_usec");
        cpu.system = microseconds("system_usec");
        cpu.throttled = microseconds("throttled_usec");
        // Without a quota the kernel omits these lines.
        cpu.periods = cpu.periods.or(cpu.total.and(Some(0)));
        cpu.throttled_periods = cpu.throttled_periods.or(cpu.total.and(Some(0)));
        cpu.throttled = cpu.throttled.or(cpu.total.and(Some(0)));
        return cpu;
    }
    cpu.throttled = keyed(&stat, "throttled_time");
    if let Some(files) = Files::of(cgroup, Controller::Cpuacct) {
        let stat = files.text("cpuacct.stat");
        let ticks = |key| keyed(&stat, key).map(|n| n.saturating_mul(TICK));
        cpu.total = files.number("cpuacct.usage");
        cpu.user = ticks("user");
        cpu.system = ticks("system");
    }
    cpu
}

fn memory(cgroup: &CgroupPath) -> Option<Memory> {
    let files = Files::of(cgroup, Controller::Memory)?;
    let stat = files.text("memory.stat");
    let of = |key| keyed(&stat, key);
    Some(if files.v2 {
        let events = files.text("memory.events");
        Memory {
            usage: files.number("memory.current"),
            max_usage: files.number("memory.peak"),
            inactive_file: of("inactive_file"),
            rss: of("anon"),
            cache: of("file"),
            mapped_file: of("file_mapped"),
            kernel: of("kernel"),
            swap: files.number("memory.swap.current").or(Some(0)),
            failures: keyed(&events, "max"),
            faults: of("pgfault"),
            major_faults: of("pgmajfault"),
            oom_kills: keyed(&events, "oom_kill"),
            limit: files.limit("memory.max"),
            reservation: files.limit("memory.low").filter(|low| *low > 0),
            swap_limit: files.limit("memory.swap.max"),
            pressure: None,
        }
    } else {
        let limit = files.limit("memory.limit_in_bytes");
        let with_swap = files.limit("memory.memsw.limit_in_bytes");
        Memory {
            usage: files.number("memory.usage_in_bytes"),
            max_usage: files.number("memory.max_usage_in_bytes"),
            inactive_file: of("total_inactive_file"),
            rss: of("total_rss"),
            cache: of("total_cache"),
            mapped_file: of("total_mapped_file"),
            kernel: files.number("memory.kmem.usage_in_bytes"),
            swap: of("total_swap").or(Some(0)),
            failures: files.number("memory.failcnt"),
            faults: of("total_pgfault"),
            major_faults: of("total_pgmajfault"),
            oom_kills: keyed(&files.text("memory.oom_control"), "oom_kill"),
            limit,
            reservation: files.limit("memory.soft_limit_in_bytes"),
            // v1 limits memory and swap together.
            swap_limit: with_swap.zip(limit).map(|(both, memory)| both.saturating_sub(memory)),
            pressure: None,
        }
    })
}

fn io(cgroup: &CgroupPath) -> Option<Io> {
    let files = Files::of(cgroup, Controller::Blkio)?;
    let devices = if files.v2 {
        parse::io_stat(&files.text("io.stat"))
    } else {
        parse::blkio(
            &files.text("blkio.throttle.io_service_bytes_recursive"),
            &files.text("blkio.throttle.io_serviced_recursive"),
        )
    };
    Some(Io { devices, pressure: None })
}

fn huge_pages(cgroup: &CgroupPath) -> Option<BTreeMap<String, HugePages>> {
    let files = Files::of(cgroup, Controller::Hugetlb)?;
    let (now, most) =
        if files.v2 { ("current", None) } else { ("usage_in_bytes", Some("max_usage_in_bytes")) };
    let names = fs::read_dir(&files.directory).ok()?.flatten();
    let sizes = names.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let size = name.strip_prefix("hugetlb.")?.strip_suffix(now)?.strip_suffix('.')?;
        (!size.contains('.')).then(|| size.to_owned())
    });
    Some(
        sizes
            .map(|size| {
                let value = |name: &str| files.number(&format!("hugetlb.{size}.{name}"));
                let pages = HugePages { now: value(now), most: most.and_then(value) };
                // `2MB` in a file name is `2Mi` in Kubernetes.
                (
                    size.replace('B', "").replace('K', "Ki").replace('M', "Mi").replace('G', "Gi"),
                    pages,
                )
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use keeper::kernel::cgroup::hierarchy::{Branch, Tree};

    use super::*;

    /// A cgroup of the unified hierarchy, with these files.
    fn cgroup(files: &[(&str, &str)]) -> (tempfile::TempDir, CgroupPath) {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("pod")).unwrap();
        for (name, text) in files {
            fs::write(base.path().join("pod").join(name), text).unwrap();
        }
        let controllers = [Controller::Cpu, Controller::Memory].into();
        let branch = Branch { base: base.path().to_owned(), v2: true, controllers };
        let path = "pod".into();
        let cgroup = CgroupPath { tree: Tree { branches: vec![branch] }, path, own: vec![1] };
        (base, cgroup)
    }

    #[test]
    fn unified_cgroup_has_pressure_of_each_resource() {
        let line = |total: u64| format!("avg10=1.00 avg60=0.50 avg300=0.10 total={total}\n");
        let texts = [1, 2, 3].map(|n| format!("some {}full {}", line(10 * n), line(n)));
        let (_base, measured) = cgroup(&[
            ("cpu.stat", "usage_usec 17\n"),
            ("cpu.pressure", &texts[0]),
            ("memory.pressure", &texts[1]),
            ("io.pressure", &texts[2]),
        ]);
        let usage = usage(&measured);
        assert_eq!(usage.cpu.total, Some(17_000));
        let pressure = [usage.cpu.pressure, usage.memory.pressure, usage.io.pressure];
        let totals = pressure.map(|it| it.map(|it| (it.some.total, it.full.total)));
        let expected = [(10_000, 1000), (20_000, 2000), (30_000, 3000)].map(Some);
        assert_eq!(totals, expected);
        assert_eq!(pressure[0].unwrap().some.averages, [1.0, 0.5, 0.1]);
    }

    /// Linux before 4.20, or a kernel booted with psi=0.
    #[test]
    fn kernel_without_pressure_has_the_rest() {
        let (_base, measured) = cgroup(&[("cpu.stat", "usage_usec 17\n")]);
        let usage = usage(&measured);
        assert_eq!(usage.cpu.total, Some(17_000));
        let pressure = [usage.cpu.pressure, usage.memory.pressure, usage.io.pressure];
        assert_eq!(pressure, [None; 3]);
    }
}
