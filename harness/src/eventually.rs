//! Bounded waits that report the last observation on timeout.

use std::fmt::Debug;
use std::time::Duration;

use tokio::time::Instant;

use crate::shown::plain;

/// How long a test waits for an event that should occur immediately. It is long because a host may be slow; only a failing test
/// waits that long.
pub const PATIENCE: Duration = Duration::from_secs(60);

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The last observation of a wait that exceeded its limit.
#[derive(Debug, Clone, thiserror::Error)]
#[error("waited {limit:?} for {what}; {last}")]
pub struct WaitError {
    /// What was waited for.
    pub what: String,
    /// How long.
    pub limit: Duration,
    /// The last observation.
    pub last: String,
}

/// Calls `look` until it returns `Ok`, and returns the value. An `Err` is an observation for the error message.
///
/// # Errors
/// After `limit`, with the last observation.
pub async fn within<T, S, F>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> F,
) -> Result<T, WaitError>
where
    S: Debug,
    F: Future<Output = Result<T, S>>,
{
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let seen = match tokio::time::timeout(limit, look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(seen)) => Some(seen),
            Err(_) => None,
        };
        if began.elapsed() >= limit {
            let last = match seen {
                Some(seen) => format!("last seen: {}", plain(&seen)),
                None => "the last look did not end".to_owned(),
            };
            return Err(WaitError { what: what.to_owned(), limit, last });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// [`within`], for a test that needs the value to continue.
///
/// # Panics
/// After `limit`, with the last observation.
pub async fn eventually<T, S, F>(limit: Duration, what: &str, look: impl FnMut() -> F) -> T
where
    S: Debug,
    F: Future<Output = Result<T, S>>,
{
    match within(limit, what, look).await {
        Ok(found) => found,
        Err(error) => panic!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn eventually_returns_first_ok() {
        let mut looks = 0;
        let found = eventually(PATIENCE, "the third look", || {
            looks += 1;
            std::future::ready(if looks == 3 { Ok("there") } else { Err(looks) })
        });
        assert_eq!(found.await, "there");
    }

    #[tokio::test]
    #[should_panic(expected = "for rain; last seen: \"sun\"")]
    async fn eventually_panics_with_last_observation() {
        eventually(Duration::from_millis(5), "rain", || async { Err::<(), _>("sun") }).await;
    }
}
