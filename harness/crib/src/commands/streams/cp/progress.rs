//! The progress of a copy, on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A line on standard error, if it is a terminal. Dropping it removes the line.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(what: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(format!("copying {what:?}"));
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {msg} {binary_bytes} {binary_bytes_per_sec}")
        {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
