//! Tests of `heap`, in a separate file because a benchmark includes `heap` without tests.
#![allow(clippy::unwrap_used)]

use crate::heap::trim;

/// The anonymous memory of this process in kB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let amount = line.unwrap().trim().trim_end_matches(" kB");
    amount.parse().unwrap()
}

#[test]
fn trim_returns_freed_memory_below_what_is_in_use() {
    let mut objects: Vec<Box<[u8; 200]>> = (0..300_000).map(|_| Box::new([1; 200])).collect();
    // The last object keeps the end of the heap in use, which glibc would otherwise trim by itself.
    let last = objects.pop();
    drop(objects);
    let before = resident();
    trim();
    let after = resident();
    assert!(before - after > 30_000, "{before} kB, then {after} kB");
    drop(last);
}
