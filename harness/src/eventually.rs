//! Bounded waits that report the last observation on timeout.

use std::fmt::Debug;
use std::time::Duration;

use tokio::time::Instant;

use crate::debug_text::plain;

/// How long a test waits for an event that should occur immediately. It is long because a host may be slow; only a failing test
/// waits that long.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The last observation of a wait that exceeded its limit.
#[derive(Debug, Clone, thiserror::Error)]
#[error("waited {limit:?} for {condition}; {last}")]
pub struct WaitError {
    /// What was waited for.
    pub condition: String,
    /// How long.
    pub limit: Duration,
    /// The last observation.
    pub last: String,
}

/// Calls `observe` until it returns `Ok`, and returns the value. An `Err` is an observation for the error message.
///
/// # Errors
/// After `limit`, with the last observation.
pub async fn within<T, S, F>(
    limit: Duration,
    condition: &str,
    mut observe: impl FnMut() -> F,
) -> Result<T, WaitError>
where
    S: Debug,
    F: Future<Output = Result<T, S>>,
{
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let seen = match tokio::time::timeout(limit, observe()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(seen)) => Some(seen),
            Err(_) => None,
        };
        if began.elapsed() >= limit {
            let last = match seen {
                Some(seen) => format!("last seen: {}", plain(&seen)),
                None => "the last observation did not finish".to_owned(),
            };
            return Err(WaitError { condition: condition.to_owned(), limit, last });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// [`within`], for a test that needs the value to continue.
///
/// # Panics
/// After `limit`, with the last observation.
pub async fn eventually<T, S, F>(limit: Duration, condition: &str, observe: impl FnMut() -> F) -> T
where
    S: Debug,
    F: Future<Output = Result<T, S>>,
{
    match within(limit, condition, observe).await {
        Ok(found) => found,
        Err(error) => panic!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn eventually_returns_first_ok() {
        let mut observations = 0;
        let found = eventually(WAIT_LIMIT, "the third look", || {
            observations += 1;
            std::future::ready(if observations == 3 { Ok("there") } else { Err(observations) })
        });
        assert_eq!(found.await, "there");
    }

    #[tokio::test]
    #[should_panic(expected = "for rain; last seen: \"sun\"")]
    async fn eventually_panics_with_last_observation() {
        eventually(Duration::from_millis(5), "rain", || async { Err::<(), _>("sun") }).await;
    }
}
