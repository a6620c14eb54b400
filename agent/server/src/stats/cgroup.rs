//! Resource usage of a cgroup: the agent's, the runtime's, the parent of all pods, or that of a pod that the runtime does not
//! measure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/stats/summary_sys_containers.go, pkg/kubelet/cm/container_manager_linux.go getContainer;
//! cAdvisor's numbers come from the same files.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::proc;
use super::summary::{ContainerStats, CpuStats, IoStats, MemoryStats, SwapStats, Time};

/// Limits from this value on mean unlimited: the kernel's maximum depends on the page size.
const UNLIMITED: u64 = 1 << 62;

/// The cgroup files of this machine.
pub(crate) struct Cgroups {
    /// `/sys/fs/cgroup`
    root: PathBuf,
    /// `/proc`
    proc: PathBuf,
}

impl Cgroups {
    pub(crate) fn new() -> Self {
        Self::at(Path::new("/sys/fs/cgroup"), Path::new("/proc"))
    }

    /// The cgroup files in these directories.
    pub(super) fn at(root: &Path, proc: &Path) -> Self {
        Self { root: root.to_owned(), proc: proc.to_owned() }
    }

    /// The usage of a pod's cgroup below `pods`; `None` if there is no such cgroup.
    pub(crate) fn of_pod(&self, pods: &Path, uid: &str, now: Timestamp) -> Option<ContainerStats> {
        pod_cgroups(pods, uid).iter().find_map(|path| self.stats(path, now))
    }

    /// The cgroup of a process; `None` for the root cgroup, and if the CPU and memory controllers use different cgroups.
    pub(crate) fn of_process(&self, pid: u32) -> Option<PathBuf> {
        let text = std::fs::read_to_string(self.proc.join(pid.to_string()).join("cgroup")).ok()?;
        of_text(&text, self.is_unified())
    }

    /// The usage of a cgroup; `None` if it does not exist.
    pub(crate) fn stats(&self, path: &Path, now: Timestamp) -> Option<ContainerStats> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        let read = |file: PathBuf| std::fs::read_to_string(file).unwrap_or_default();
        // The kernel creates the directory together with the cgroup.
        let begin = |directory: PathBuf| {
            let made = directory.metadata().and_then(|metadata| metadata.modified());
            Time(made.ok().and_then(|at| Timestamp::try_from(at).ok()))
        };
        let (cpu, memory, swap) = if self.is_unified() {
            let file = |name: &str| read(self.root.join(relative).join(name));
            let (cpu, memory) = (file("cpu.stat"), file("memory.stat"));
            let usage = Usage {
                nanoseconds: proc::number(&cpu, "usage_usec").and_then(|it| it.checked_mul(1000)),
                bytes: file("memory.current").trim().parse().ok(),
                limit: file("memory.max").trim().parse().ok(),
                swap: file("memory.swap.current").trim().parse().ok(),
                swap_limit: file("memory.swap.max").trim().parse().ok(),
                inactive: proc::number(&memory, "inactive_file"),
                resident: proc::number(&memory, "anon"),
                faults: proc::number(&memory, "pgfault"),
                major_faults: proc::number(&memory, "pgmajfault"),
            };
            let psi = |name: &str| proc::pressure(&file(name));
            let (mut cpu, mut memory) = usage.stats(now);
            let swap = usage.swap(now);
            if let Some(cpu) = &mut cpu {
                cpu.psi = psi("cpu.pressure");
            }
            if let Some(memory) = &mut memory {
                memory.psi = psi("memory.pressure");
            }
            let io = psi("io.pressure").map(|psi| IoStats { time: now.into(), psi: Some(psi) });
            let start_time = begin(self.root.join(relative));
            return either(
                cpu,
                memory,
                ContainerStats { io, swap, start_time, ..ContainerStats::default() },
            );
        } else {
            let file = |controller: &str, name: &str| {
                read(self.root.join(controller).join(relative).join(name))
            };
            let memory = file("memory", "memory.stat");
            let usage = Usage {
                nanoseconds: file("cpuacct", "cpuacct.usage").trim().parse().ok(),
                bytes: file("memory", "memory.usage_in_bytes").trim().parse().ok(),
                limit: file("memory", "memory.limit_in_bytes").trim().parse().ok(),
                swap: proc::number(&memory, "total_swap"),
                swap_limit: file("memory", "memory.memsw.limit_in_bytes").trim().parse().ok(),
                inactive: proc::number(&memory, "total_inactive_file"),
                resident: proc::number(&memory, "total_rss"),
                faults: proc::number(&memory, "total_pgfault"),
                major_faults: proc::number(&memory, "total_pgmajfault"),
            };
            let (cpu, memory) = usage.stats(now);
            (cpu, memory, usage.swap(now))
        };
        let start_time = begin(self.root.join("memory").join(relative));
        either(cpu, memory, ContainerStats { swap, start_time, ..ContainerStats::default() })
    }

    fn is_unified(&self) -> bool {
        self.root.join("cgroup.controllers").exists()
    }
}

fn either(
    cpu: Option<CpuStats>,
    memory: Option<MemoryStats>,
    rest: ContainerStats,
) -> Option<ContainerStats> {
    let is_known = cpu.is_some() || memory.is_some();
    is_known.then_some(ContainerStats { cpu, memory, ..rest })
}

/// The values of a cgroup's files.
struct Usage {
    nanoseconds: Option<u64>,
    bytes: Option<u64>,
    limit: Option<u64>,
    swap: Option<u64>,
    /// The limit of swap on cgroup v2, and that of memory and swap together on v1; a kubelet does not distinguish them.
    swap_limit: Option<u64>,
    inactive: Option<u64>,
    resident: Option<u64>,
    faults: Option<u64>,
    major_faults: Option<u64>,
}

impl Usage {
    fn stats(&self, now: Timestamp) -> (Option<CpuStats>, Option<MemoryStats>) {
        let time = now.into();
        let cpu = self.nanoseconds.map(|total| CpuStats {
            time,
            usage_core_nano_seconds: Some(total),
            ..CpuStats::default()
        });
        let working_set = self.bytes.zip(self.inactive).map(|(all, it)| all.saturating_sub(it));
        let limit = self.limit.filter(|limit| *limit < UNLIMITED);
        let memory = self.bytes.map(|usage| MemoryStats {
            time,
            available_bytes: limit.zip(working_set).map(|(limit, it)| limit.saturating_sub(it)),
            usage_bytes: Some(usage),
            working_set_bytes: working_set,
            rss_bytes: self.resident,
            page_faults: self.faults,
            major_page_faults: self.major_faults,
            ..MemoryStats::default()
        });
        (cpu, memory)
    }

    fn swap(&self, now: Timestamp) -> Option<SwapStats> {
        let swap = self.swap?;
        let limit = self.swap_limit.filter(|limit| *limit < UNLIMITED);
        Some(SwapStats {
            time: now.into(),
            swap_available_bytes: limit.map(|limit| limit.saturating_sub(swap)),
            swap_usage_bytes: Some(swap),
        })
    }
}

/// ◆ The possible cgroups of a pod below `pods`, one per QoS class. The name of a slice includes the names of its parents.
fn pod_cgroups(pods: &Path, uid: &str) -> [PathBuf; 3] {
    let own = format!("pod{uid}");
    let name = pods.file_name().unwrap_or_default().to_string_lossy();
    match name.strip_suffix(".slice") {
        None => {
            [pods.join(&own), pods.join("burstable").join(&own), pods.join("besteffort").join(&own)]
        }
        Some(name) => {
            let own = own.replace('-', "_");
            let of_class = |class: &str| {
                let class = format!("{name}-{class}");
                pods.join(format!("{class}.slice")).join(format!("{class}-{own}.slice"))
            };
            [
                pods.join(format!("{name}-{own}.slice")),
                of_class("burstable"),
                of_class("besteffort"),
            ]
        }
    }
}

/// ◆ The cgroup in `/proc/PID/cgroup`; `None` for the root cgroup, whose values cover all processes.
fn of_text(text: &str, is_unified: bool) -> Option<PathBuf> {
    let of = |wanted: &str| {
        let mut lines = text.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        });
        let has = |controllers: &str| controllers.split(',').any(|one| one == wanted);
        lines.find(|(controllers, _)| has(controllers)).map(|(_, path)| path)
    };
    let path = if is_unified {
        of("")?
    } else {
        let (cpu, memory) = (of("cpuacct")?, of("memory")?);
        (cpu == memory).then_some(cpu)?
    };
    // The process is outside this cgroup namespace.
    let is_outside = path.split('/').any(|part| part == "..");
    (path != "/" && path.starts_with('/') && !is_outside).then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0::/system.slice/crib.service\n", true, Some("/system.slice/crib.service"))]
    #[case("0::/\n", true, None)]
    #[case("0::/../other\n", true, None)]
    #[case("1:name=systemd:/a\n", true, None)]
    #[case("4:memory:/a\n2:cpu,cpuacct:/a\n0::/b\n", false, Some("/a"))]
    #[case("4:memory:/a\n2:cpu,cpuacct:/b\n", false, None)]
    #[case("4:memory:/a\n", false, None)]
    #[case("", true, None)]
    fn process_has_a_cgroup(
        #[case] text: &str,
        #[case] is_unified: bool,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(of_text(text, is_unified).as_deref(), expected.map(Path::new));
    }

    #[rstest]
    #[case("/x/kubepods", ["/x/kubepods/poda-1", "/x/kubepods/burstable/poda-1", "/x/kubepods/besteffort/poda-1"])]
    #[case("/kubepods.slice", [
        "/kubepods.slice/kubepods-poda_1.slice",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_1.slice",
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_1.slice",
    ])]
    fn pod_has_a_cgroup_below_that_of_its_class(#[case] pods: &str, #[case] expected: [&str; 3]) {
        assert_eq!(pod_cgroups(Path::new(pods), "a-1"), expected.map(PathBuf::from));
    }

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroups) {
        let place = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = place.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let cgroups = Cgroups::at(&place.path().join("cgroup"), &place.path().join("proc"));
        (place, cgroups)
    }

    #[test]
    fn cgroup_has_cpu_and_memory() {
        let pressure = "some avg10=1.50 avg60=0.20 avg300=0.00 total=12\n";
        let unified = [
            ("cgroup/cgroup.controllers", "cpu memory"),
            ("cgroup/a/cpu.stat", "usage_usec 5\nuser_usec 4\n"),
            ("cgroup/a/memory.current", "1000\n"),
            ("cgroup/a/memory.max", "max\n"),
            ("cgroup/a/memory.swap.current", "40\n"),
            ("cgroup/a/memory.swap.max", "max\n"),
            ("cgroup/a/memory.stat", "anon 300\ninactive_file 200\npgfault 7\npgmajfault 1\n"),
            ("cgroup/a/cpu.pressure", pressure),
            ("cgroup/a/memory.pressure", pressure),
            (
                "cgroup/a/io.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=3\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2\n",
            ),
            ("proc/7/cgroup", "0::/a\n"),
        ];
        let separate = [
            ("cgroup/cpuacct/a/cpuacct.usage", "5000\n"),
            ("cgroup/memory/a/memory.usage_in_bytes", "1000\n"),
            ("cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            (
                "cgroup/memory/a/memory.stat",
                "rss 1\ntotal_rss 300\ntotal_swap 40\ntotal_inactive_file 200\ntotal_pgfault 7\ntotal_pgmajfault 1\n",
            ),
            ("proc/7/cgroup", "2:memory:/a\n1:cpuacct:/a\n"),
        ];
        let now = Timestamp::UNIX_EPOCH;
        for (files, has_pressure) in [(&unified[..], true), (&separate[..], false)] {
            let (place, cgroups) = machine(files);
            let path = cgroups.of_process(7).unwrap();
            let stats = cgroups.stats(&path, now).unwrap();
            assert!(stats.start_time.0.is_some());
            let (cpu, memory) = (stats.cpu.unwrap(), stats.memory.unwrap());
            assert_eq!(cpu.usage_core_nano_seconds, Some(5000));
            for psi in [cpu.psi, memory.psi] {
                assert_eq!(psi.map(|psi| psi.some.total), has_pressure.then_some(12_000));
            }
            let io = stats.io.and_then(|io| io.psi);
            assert_eq!(io.map(|psi| psi.full.total), has_pressure.then_some(2000));
            assert_eq!((memory.usage_bytes, memory.working_set_bytes), (Some(1000), Some(800)));
            assert_eq!(memory.available_bytes, None, "without a limit");
            assert_eq!((memory.rss_bytes, memory.page_faults), (Some(300), Some(7)));
            let swap = stats.swap.unwrap();
            assert_eq!((swap.swap_usage_bytes, swap.swap_available_bytes), (Some(40), None));
            assert_eq!(cgroups.stats(Path::new("/none"), now), None);
            let limits = ["cgroup/a/memory.max", "cgroup/memory/a/memory.limit_in_bytes"];
            let limit = limits.map(|name| place.path().join(name));
            std::fs::write(limit.iter().find(|file| file.exists()).unwrap(), "3000\n").unwrap();
            let swap_limits =
                ["cgroup/a/memory.swap.max", "cgroup/memory/a/memory.memsw.limit_in_bytes"];
            std::fs::write(place.path().join(swap_limits[usize::from(!has_pressure)]), "100\n")
                .unwrap();
            let limited = cgroups.stats(&path, now).unwrap();
            assert_eq!(limited.memory.unwrap().available_bytes, Some(2200));
            assert_eq!(limited.swap.unwrap().swap_available_bytes, Some(60));
            assert_eq!(cgroups.of_process(8), None);
        }
    }
}
