//! Commands that check and measure runtimes with pods of their own, which they remove when a signal interrupts them.

pub(crate) mod bench;
pub(crate) mod check;

use crib_base::report::say;
use crib_base::signals::Signals;
use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

use crate::client::CallError;

/// Waits for the work, which ends early when `interrupt` is cancelled: the first signal does that. `None`: a second signal came.
/// `what` is its name in messages.
///
/// # Errors
/// If signals cannot be listened for.
pub(super) async fn interruptible<T>(
    work: impl Future<Output = T>,
    what: &str,
    bar: &ProgressBar,
    interrupt: &CancellationToken,
) -> Result<Option<T>, CallError> {
    let mut signals = Signals::listen()
        .map_err(|source| CallError::Io { doing: "listen for signals".to_owned(), source })?;
    tokio::pin!(work);
    let ended = tokio::select! {
        ended = &mut work => Some(ended),
        signal = signals.next() => {
            bar.finish_and_clear();
            say(&format!("received {signal}: removing the pods of the {what}; a second signal exits immediately"));
            interrupt.cancel();
            tokio::select! {
                ended = &mut work => Some(ended),
                _ = signals.next() => {
                    say(&format!("pods of the {what} were not removed: the next {what} removes them"));
                    None
                }
            }
        }
    };
    bar.finish_and_clear();
    Ok(ended)
}
