//! Bounded waits that report the last observation on timeout.

use std::fmt::Debug;
use std::time::Duration;

use tokio::time::Instant;

/// How long a test waits for an event that should come at once. It is long because a host may be slow; only a failing
/// test waits that long.
pub const PATIENCE: Duration = Duration::from_secs(30);

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Calls `look` until it returns `Ok`, and returns the value. `Err` holds the current observation.
///
/// # Panics
/// After `limit`, with `what` and the last observation.
pub async fn eventually<T, S, F>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> T
where
    S: Debug,
    F: Future<Output = Result<T, S>>,
{
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let seen = match tokio::time::timeout(limit, look()).await {
            Ok(Ok(found)) => return found,
            Ok(Err(seen)) => Some(seen),
            Err(_) => None,
        };
        if began.elapsed() >= limit {
            match seen {
                Some(seen) => panic!("waited {limit:?} for {what}; last seen: {seen:#?}"),
                None => panic!("waited {limit:?} for {what}; the last look did not end"),
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
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
        eventually(Duration::from_millis(5), "rain", || async {
            Err::<(), _>("sun")
        })
        .await;
    }
}
