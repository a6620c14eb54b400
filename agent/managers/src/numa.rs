//! Reads the machine's NUMA nodes and their resources from sysfs.
//!
//! Source: the interface of the kernel (Documentation/ABI/stable/sysfs-devices-node, sysfs-devices-system-cpu), as cAdvisor 0.56 reads it
//! for kubelets (utils/sysinfo/sysinfo.go).

use std::fs;
use std::path::Path;

use compact::Map;

use crate::cpu::set::{CpuSet, parse};

/// A NUMA node; on a machine without NUMA, a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) id: usize,
    /// In bytes.
    pub(crate) memory: u64,
    /// The number of huge pages, by size in bytes.
    pub(crate) huge_pages: Map<u64, u64>,
    pub(crate) cores: Vec<Core>,
    /// The distances to all nodes, in node order; empty if unknown.
    pub(crate) distances: Vec<u64>,
}

/// A core and its online CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Core {
    pub(crate) socket: usize,
    pub(crate) threads: Vec<usize>,
    /// The last-level cache, if only some cores of the node share it.
    pub(crate) cache: Option<usize>,
}

/// Reads the nodes of the machine whose files are below `root` (`/` for this machine).
pub(crate) fn read(root: &Path) -> Vec<Node> {
    let system = root.join("sys/devices/system");
    let online = text(&system.join("cpu/online")).and_then(|text| parse(&text));
    let mut nodes = Vec::new();
    for (id, directory) in numbered(&system.join("node"), "node") {
        let cpus = numbered(&directory, "cpu").into_iter().map(|(cpu, _)| cpu);
        let mut node = Node {
            id,
            memory: memory(&directory),
            huge_pages: huge_pages(&directory),
            cores: Vec::new(),
            distances: distances(&directory),
        };
        node.cores = cores(&system, cpus, online.as_ref());
        nodes.push(node);
    }
    if nodes.is_empty() {
        let cpus = numbered(&system.join("cpu"), "cpu").into_iter().map(|(cpu, _)| cpu);
        let mut sockets: Map<usize, Vec<usize>> = Map::new();
        for cpu in cpus {
            if let Some(socket) =
                number(&system.join(format!("cpu/cpu{cpu}/topology/physical_package_id")))
            {
                sockets.entry(socket).or_default().push(cpu);
            }
        }
        for (id, cpus) in sockets {
            let cores = cores(&system, cpus.into_iter(), online.as_ref());
            nodes.push(Node { id, cores, ..Node::default() });
        }
    }
    nodes
}

fn text(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

fn number(file: &Path) -> Option<usize> {
    text(file)?.parse().ok()
}

/// The directories that consist of this name and a number, sorted by number.
fn numbered(directory: &Path, name: &str) -> Vec<(usize, std::path::PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let numbered = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix(name)?.parse().ok()?;
        Some((number, entry.path()))
    });
    let mut numbered: Vec<_> = numbered.collect();
    numbered.sort();
    numbered
}

fn cores(system: &Path, cpus: impl Iterator<Item = usize>, online: Option<&CpuSet>) -> Vec<Core> {
    let mut cores: Vec<(usize, Core)> = Vec::new();
    for cpu in cpus.filter(|cpu| online.is_none_or(|online| online.contains(cpu))) {
        let topology = system.join(format!("cpu/cpu{cpu}/topology"));
        let id = number(&topology.join("core_id"));
        let socket = number(&topology.join("physical_package_id"));
        let Some((id, socket)) = id.zip(socket) else {
            continue;
        };
        match cores.iter_mut().find(|(known, core)| (*known, core.socket) == (id, socket)) {
            Some((_, core)) => core.threads.push(cpu),
            None => cores.push((id, Core { socket, threads: vec![cpu], cache: None })),
        }
    }
    let count = cores.len();
    for (_, core) in &mut cores {
        core.cache = shared_cache(system, core.threads[0], count * core.threads.len());
    }
    cores.into_iter().map(|(_, core)| core).collect()
}

/// The first cache above level 2 that not all CPUs of the node share.
fn shared_cache(system: &Path, cpu: usize, of_node: usize) -> Option<usize> {
    let caches = numbered(&system.join(format!("cpu/cpu{cpu}/cache")), "index");
    caches.into_iter().find_map(|(_, cache)| {
        let level = number(&cache.join("level"))?;
        let shared = parse(&text(&cache.join("shared_cpu_list"))?)?.len();
        let is_shared_by_some = level > 2 && shared != of_node;
        number(&cache.join("id")).filter(|_| is_shared_by_some)
    })
}

fn memory(node: &Path) -> u64 {
    let meminfo = text(&node.join("meminfo")).unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.split_once("MemTotal:"));
    let kib = total.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

fn huge_pages(node: &Path) -> Map<u64, u64> {
    let entries = fs::read_dir(node.join("hugepages")).into_iter().flatten().flatten();
    let pages = entries.filter_map(|entry| {
        let name = entry.file_name();
        let kib = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        let count = text(&entry.path().join("nr_hugepages"))?.parse().ok()?;
        Some((kib.parse::<u64>().ok()? * 1024, count))
    });
    pages.collect()
}

fn distances(node: &Path) -> Vec<u64> {
    let text = text(&node.join("distance")).unwrap_or_default();
    text.split_whitespace().filter_map(|distance| distance.parse().ok()).collect()
}

#[cfg(test)]
pub(crate) mod tests;
