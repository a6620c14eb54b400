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
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes the allocator's own locks, and touches only memory that is free.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}
