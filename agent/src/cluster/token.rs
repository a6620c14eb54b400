//! ◆ How long an issued token is reused: one rule for the tokens of volumes, of CSI drivers and of credential providers.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/token/token_manager.go requiresRefresh, without its jitter.

use jiff::{SignedDuration, Timestamp};

use super::IssuedToken;

/// A token is replaced at this age, whatever its expiration.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);

/// A token that is reused until its refresh time. It has no `Debug`, so that it cannot end up in logs.
#[derive(Clone)]
pub struct CachedToken {
    /// The token.
    pub text: String,
    /// The expiration time.
    pub expires_at: Timestamp,
    refresh_at: Timestamp,
}

impl CachedToken {
    /// Stores a token that was issued now.
    #[must_use]
    pub fn new(issued: IssuedToken, now: Timestamp) -> Self {
        let IssuedToken { text, expires_at } = issued;
        Self { text, expires_at, refresh_at: refresh_at(now, expires_at) }
    }

    /// Whether it is unexpired: a token past its refresh time is used until it expires if no other is issued.
    #[must_use]
    pub fn is_good(&self, now: Timestamp) -> bool {
        now < self.expires_at
    }

    /// Whether its refresh time has not come.
    #[must_use]
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        now < self.refresh_at
    }

    /// The refresh time.
    #[must_use]
    pub fn refresh_at(&self) -> Timestamp {
        self.refresh_at
    }

    /// Delays the next refresh, because the issuer failed.
    pub fn retry_after(&mut self, delay: SignedDuration, now: Timestamp) {
        self.refresh_at = now.saturating_add(delay).unwrap_or(self.expires_at);
    }
}

/// The refresh time of a token that is issued now: when a fifth of its life is left, or after a day.
fn refresh_at(now: Timestamp, expires_at: Timestamp) -> Timestamp {
    let life = expires_at.duration_since(now);
    now.saturating_add((life - life / 5).min(MAX_AGE)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    const HOUR: i64 = 3600;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// For a token that is issued at 100 s.
    #[rstest]
    #[case::short(1000, 800)]
    #[case::default(HOUR, 48 * 60)]
    #[case::day(24 * HOUR, 24 * HOUR * 4 / 5)]
    #[case::longest_below_a_day(30 * HOUR, 24 * HOUR)]
    #[case::longer(31 * HOUR, 24 * HOUR)]
    #[case::year(365 * 24 * HOUR, 24 * HOUR)]
    fn token_is_fresh_until_80_percent_of_its_lifetime_or_24_hours(
        #[case] life: i64,
        #[case] fresh: i64,
    ) {
        let now = 100;
        let issued = IssuedToken { text: "t".to_owned(), expires_at: at(now + life) };
        let kept = CachedToken::new(issued, at(now));
        assert_eq!(kept.refresh_at(), at(now + fresh));
        assert!(kept.is_fresh(at(now)) && kept.is_fresh(at(now + fresh - 1)));
        assert!(!kept.is_fresh(at(now + fresh)));
        assert!(kept.is_good(at(now + life - 1)) && !kept.is_good(at(now + life)));
    }

    #[test]
    fn expired_token_is_neither_fresh_nor_valid() {
        for expires_at in [Timestamp::MIN, at(0), at(100)] {
            let kept = CachedToken::new(IssuedToken { text: "t".to_owned(), expires_at }, at(100));
            assert!(!kept.is_fresh(at(100)) && !kept.is_good(at(100)));
        }
    }

    #[test]
    fn failed_token_request_is_retried_later() {
        let issued = IssuedToken { text: "t".to_owned(), expires_at: at(1000) };
        let mut kept = CachedToken::new(issued, at(0));
        kept.retry_after(SignedDuration::from_secs(10), at(900));
        assert!(kept.is_fresh(at(909)) && !kept.is_fresh(at(910)) && kept.is_good(at(910)));
    }
}
