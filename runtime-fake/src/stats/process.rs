//! Sums up the usage of processes from `/proc`, for pods without cgroups: only running processes count.

use std::{collections::HashSet, fs};

use super::{
    cgroup::TICK,
    parse,
    usage::{Cpu, Memory, Tasks},
};

fn read(process: i32, name: &str) -> String {
    fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default()
}

/// `first` and all of its descendants.
pub(super) fn descendants(first: i32) -> Vec<i32> {
    let (mut found, mut seen) = (vec![first], HashSet::from([first]));
    let mut next = 0;
    while let Some(process) = found.get(next).copied() {
        next += 1;
        let children = read(process, &format!("task/{process}/children"));
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        found.extend(children.filter(|pid: &i32| seen.insert(*pid)));
    }
    found
}

/// CPU time.
pub(super) fn cpu(processes: &[i32]) -> Cpu {
    let times = processes.iter().filter_map(|pid| parse::process_stat(&read(*pid, "stat")));
    let (user, system) = times.fold((0u64, 0u64), |(user, system), each| {
        (user + each.user * TICK, system + each.system * TICK)
    });
    if processes.is_empty() {
        return Cpu::default();
    }
    Cpu { total: Some(user + system), user: Some(user), system: Some(system), ..Cpu::default() }
}

/// Memory: shared pages count once for each process.
pub(super) fn memory(processes: &[i32]) -> Memory {
    if processes.is_empty() {
        return Memory::default();
    }
    let mut memory = Memory::default();
    let add = |to: &mut Option<u64>, value: u64| *to = Some(to.unwrap_or(0) + value);
    for process in processes {
        let status = read(*process, "status");
        let kilobytes = |key: &str| parse::keyed(&status, key).unwrap_or(0) * 1024;
        add(&mut memory.usage, kilobytes("VmRSS:"));
        add(&mut memory.rss, kilobytes("RssAnon:"));
        add(&mut memory.mapped_file, kilobytes("RssFile:"));
        add(&mut memory.swap, kilobytes("VmSwap:"));
        if let Some(times) = parse::process_stat(&read(*process, "stat")) {
            add(&mut memory.faults, times.minor_faults + times.major_faults);
            add(&mut memory.major_faults, times.major_faults);
        }
    }
    memory
}

/// The number of processes, threads, and open descriptors.
pub(super) fn tasks(processes: &[i32], first: Option<i32>) -> Tasks {
    let mut tasks = Tasks { processes: processes.len() as u64, ..Tasks::default() };
    for process in processes {
        tasks.threads += parse::keyed(&read(*process, "status"), "Threads:").unwrap_or(0);
        let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            tasks.descriptors += 1;
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            tasks.sockets += u64::from(target.to_string_lossy().starts_with("socket:"));
        }
    }
    let limits = first.map(|first| read(first, "limits")).unwrap_or_default();
    let open_files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    tasks.max_descriptors =
        open_files.and_then(|line| line.split_whitespace().next()?.parse().ok());
    tasks
}
