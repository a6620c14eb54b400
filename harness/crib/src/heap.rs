//! Returns memory to the kernel that a burst of work has freed: glibc keeps most of it.
#![allow(unsafe_code, reason = "malloc_trim has no safe wrapper")]

use std::time::Duration;

/// How often. A trim takes milliseconds.
const PERIOD: Duration = Duration::from_secs(30);

/// Returns memory in each period. Never ends.
pub(crate) async fn trim_periodically() {
    loop {
        tokio::time::sleep(PERIOD).await;
        // An error means that the runtime is about to end.
        let _ = tokio::task::spawn_blocking(trim).await;
    }
}

/// Returns every free page of the heap.
fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes the allocator's own locks, and touches only memory that is free.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The memory of this process that is no file's, kB.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
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
}
