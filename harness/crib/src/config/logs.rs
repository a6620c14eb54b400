//! ◆ The section `logs:`.

use std::num::NonZeroU64;

use runtime_fake::Config;
use serde::Deserialize;

/// What is written at once has to fit: of a pipe full of empty lines each one becomes a line with a time.
const LEAST: u64 = 1 << 20;

/// `logs:`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogsSection {
    max_size: Option<Bytes>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "u64")]
struct Bytes(NonZeroU64);

impl TryFrom<u64> for Bytes {
    type Error = String;

    fn try_from(bytes: u64) -> Result<Self, String> {
        match NonZeroU64::new(bytes).filter(|_| bytes >= LEAST) {
            Some(bytes) => Ok(Self(bytes)),
            None => Err(format!("{bytes} bytes is too small: set at least {LEAST}")),
        }
    }
}

impl LogsSection {
    pub(super) fn apply(self, config: &mut Config) {
        config.log_max = self.max_size.map(|Bytes(bytes)| bytes);
    }
}
