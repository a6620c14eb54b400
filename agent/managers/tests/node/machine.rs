//! Machines of several forms, as sysfs files.

use std::fmt::Write as _;
use std::fs;

/// A machine with NUMA nodes of cores with several threads; `per_cache` cores share a cache.
pub(crate) fn machine(
    nodes: usize,
    cores: usize,
    threads: usize,
    per_cache: usize,
) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let put = |path: String, content: &str| {
        let path = root.path().join("sys/devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let total = nodes * cores;
    put("cpu/online".to_owned(), &format!("0-{}\n", total * threads - 1));
    for node in 0..nodes {
        let mut distances = String::new();
        for other in 0..nodes {
            let _ = write!(distances, "{} ", if other == node { 10 } else { 21 });
        }
        put(format!("node/node{node}/distance"), distances.trim());
        put(format!("node/node{node}/meminfo"), &format!("Node {node} MemTotal:  1048576 kB\n"));
        put(format!("node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"), "4\n");
        for core in 0..cores {
            for thread in 0..threads {
                let cpu = node * cores + core + thread * total;
                put(format!("node/node{node}/cpu{cpu}/online"), "1");
                put(format!("cpu/cpu{cpu}/topology/core_id"), &core.to_string());
                put(format!("cpu/cpu{cpu}/topology/physical_package_id"), &node.to_string());
                let first = core / per_cache * per_cache;
                let shared: Vec<String> = (first..first + per_cache)
                    .flat_map(|core| {
                        (0..threads).map(move |thread| node * cores + core + thread * total)
                    })
                    .map(|cpu| cpu.to_string())
                    .collect();
                put(format!("cpu/cpu{cpu}/cache/index2/level"), "2");
                put(format!("cpu/cpu{cpu}/cache/index3/level"), "3");
                put(format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), &shared.join(","));
                let id = node * cores.div_ceil(per_cache) + core / per_cache;
                put(format!("cpu/cpu{cpu}/cache/index3/id"), &id.to_string());
            }
        }
    }
    root
}
