//! Tests of `heap`, apart from it: a benchmark has that file too, and no tests.
#![allow(clippy::unwrap_used)]

use crate::heap::trim;

/// The memory of this process that is no file's, kB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let amount = line.unwrap().trim().trim_end_matches(" kB");
    amount.parse().unwrap()
}

#[test]
fn trim_returns_freed_memory_below_what_is_in_use() {
    let mut objects: Vec<Box<[u8; 200]>> = (0..300_000).map(|_| Box::new([1; 200])).collect();
    // The last one is at the end of the heap, which alone shrinks otherwise.
    let last = objects.pop();
    drop(objects);
    let before = resident();
    trim();
    let after = resident();
    assert!(before - after > 30_000, "{before} kB, then {after} kB");
    drop(last);
}
