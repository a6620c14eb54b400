//! Commands that check and benchmark runtimes with their own pods, which they remove when a signal arrives.

pub(crate) mod bench;
pub(crate) mod check;

use crib_base::report::print_stderr;
use crib_base::signals::Signals;
use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

use crate::client::CallError;

/// Waits for `work`. The first signal cancels `interrupt`, which makes `work` end early. Returns `None` at a second signal. `what`
/// names the work in messages.
///
/// # Errors
/// Fails if signals cannot be received.
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
            print_stderr(&format!("received {signal}: removing the pods of the {what}; a second signal exits immediately"));
            interrupt.cancel();
            tokio::select! {
                ended = &mut work => Some(ended),
                _ = signals.next() => {
                    print_stderr(&format!("pods of the {what} were not removed: the next {what} removes them"));
                    None
                }
            }
        }
    };
    bar.finish_and_clear();
    Ok(ended)
}
