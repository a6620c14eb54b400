//! ◆ The thresholds of a kubelet's configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use api::duration::parse_go_duration;
use api::quantity::{Format, Quantity, QuantityError, canonical};
use compact::Map;

use super::Signal;

/// The fields of a kubelet's configuration about eviction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionConfig {
    /// `enforceNodeAllocatable`: with `pods`, all pods together have a memory threshold too.
    pub enforce_node_allocatable: Vec<String>,
    /// `evictionHard`: signal → amount below which pods are evicted immediately.
    pub hard: BTreeMap<String, String>,
    /// `evictionSoft`: signal → amount below which pods are evicted after a grace period.
    pub soft: BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`: signal → grace period.
    pub soft_grace_period: BTreeMap<String, String>,
    /// `evictionMinimumReclaim`: signal → minimum amount to reclaim beyond the threshold.
    pub minimum_reclaim: BTreeMap<String, String>,
}

/// An amount, or a share of the capacity.
#[derive(Clone, Debug, PartialEq)]
pub enum ThresholdValue {
    /// An amount.
    Quantity {
        /// The amount.
        amount: Quantity,
        /// Its form in Kubernetes.
        text: String,
    },
    /// A share: 0.1 is 10 %.
    Percentage(f32),
}

impl ThresholdValue {
    fn quantity(text: &str) -> Result<Self, QuantityError> {
        Ok(Self::Quantity { amount: Quantity::parse(text)?, text: canonical(text)?.text })
    }

    /// The amount for this capacity.
    #[must_use]
    pub fn amount(&self, capacity: i64) -> Quantity {
        match self {
            Self::Quantity { amount, .. } => *amount,
            Self::Percentage(share) => {
                Quantity::whole((capacity as f64 * f64::from(*share)) as i64, Format::BinarySi)
            }
        }
    }

    /// The amount for this capacity, formatted.
    #[must_use]
    pub fn text(&self, capacity: i64) -> String {
        match self {
            Self::Quantity { text, .. } => text.clone(),
            Self::Percentage(_) => self.amount(capacity).to_string(),
        }
    }
}

/// A threshold of a signal.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// The signal.
    pub signal: Signal,
    /// The signal is low if it is below this value.
    pub value: ThresholdValue,
    /// How long it must be low; zero for a hard threshold.
    pub grace_period: Duration,
    /// The minimum amount to reclaim beyond the threshold.
    pub minimum_reclaim: Option<ThresholdValue>,
}

/// Why a kubelet rejects a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The signal does not exist.
    #[error("unsupported eviction signal {0}")]
    Signal(String),
    /// A percentage is not a number.
    #[error("parsing {0:?}: invalid syntax")]
    Percentage(String),
    /// A percentage is less than 0.
    #[error("eviction percentage threshold {0} must be >= 0%: {1}")]
    Below(Signal, String),
    /// A percentage is more than 100.
    #[error("eviction percentage threshold {0} must be <= 100%: {1}")]
    Above(Signal, String),
    /// An amount is malformed.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// An amount is not more than zero.
    #[error("eviction threshold {0} must be positive: {1}")]
    NotPositive(Signal, String),
    /// A grace period is malformed.
    #[error("time: invalid duration {0:?}")]
    Duration(String),
    /// A grace period is negative.
    #[error("invalid eviction grace period specified: {0}, must be a positive value")]
    NegativeGracePeriod(String),
    /// A soft threshold has no grace period.
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    MissingGracePeriod(Signal),
    /// A minimum reclaim is a percentage that is not positive.
    #[error("eviction percentage minimum reclaim {0} must be positive: {1}")]
    ReclaimNotPositive(Signal, String),
    /// A minimum reclaim is negative.
    #[error("negative eviction minimum reclaim specified for {0}")]
    NegativeReclaim(Signal),
}

impl EvictionConfig {
    /// The thresholds, hard ones first, each list in the order of the signals' names.
    pub fn thresholds(&self) -> Result<Vec<Threshold>, ConfigError> {
        let mut thresholds = statements(&self.hard)?;
        let mut soft = statements(&self.soft)?;
        let grace_periods = grace_periods(&self.soft_grace_period)?;
        let reclaims = minimum_reclaims(&self.minimum_reclaim)?;
        for threshold in &mut soft {
            threshold.grace_period = *grace_periods
                .get(&threshold.signal)
                .ok_or(ConfigError::MissingGracePeriod(threshold.signal))?;
        }
        thresholds.append(&mut soft);
        for threshold in &mut thresholds {
            threshold.minimum_reclaim = reclaims.get(&threshold.signal).cloned();
        }
        if self.enforce_node_allocatable.iter().any(|key| key == "pods") {
            let of_pods: Vec<Threshold> = thresholds
                .iter()
                .filter(|threshold| {
                    threshold.signal == Signal::MemoryAvailable && threshold.grace_period.is_zero()
                })
                .map(|threshold| Threshold {
                    signal: Signal::AllocatableMemoryAvailable,
                    ..threshold.clone()
                })
                .collect();
            thresholds.extend(of_pods);
        }
        Ok(thresholds)
    }
}

fn signal(name: &str) -> Result<Signal, ConfigError> {
    Signal::named(name).ok_or_else(|| ConfigError::Signal(name.to_owned()))
}

fn statements(statements: &BTreeMap<String, String>) -> Result<Vec<Threshold>, ConfigError> {
    let mut thresholds = Vec::new();
    for (name, text) in statements {
        let signal = signal(name)?;
        if let Some(value) = statement(signal, text)? {
            thresholds.push(Threshold {
                signal,
                value,
                grace_period: Duration::ZERO,
                minimum_reclaim: None,
            });
        }
    }
    Ok(thresholds)
}

/// The value of a threshold; `None` if it is disabled.
fn statement(signal: Signal, text: &str) -> Result<Option<ThresholdValue>, ConfigError> {
    if text == "0%" || text == "100%" {
        return Ok(None);
    }
    if text.ends_with('%') {
        let share = percentage(text)?;
        return match share {
            share if share < 0.0 => Err(ConfigError::Below(signal, text.to_owned())),
            share if share > 1.0 => Err(ConfigError::Above(signal, text.to_owned())),
            share => Ok(Some(ThresholdValue::Percentage(share))),
        };
    }
    let amount = Quantity::parse(text)?;
    if amount <= Quantity::ZERO {
        return Err(ConfigError::NotPositive(signal, canonical(text)?.text));
    }
    ThresholdValue::quantity(text).map(Some).map_err(Into::into)
}

fn percentage(text: &str) -> Result<f32, ConfigError> {
    let number = text.trim_end_matches('%');
    let parsed: Result<f32, _> = number.parse();
    parsed.map(|number| number / 100.0).map_err(|_| ConfigError::Percentage(number.to_owned()))
}

fn grace_periods(
    statements: &BTreeMap<String, String>,
) -> Result<Map<Signal, Duration>, ConfigError> {
    let period = |(name, text): (&String, &String)| {
        let signal = signal(name)?;
        let nanos = parse_go_duration(text).ok_or_else(|| ConfigError::Duration(text.clone()))?;
        let nanos = u64::try_from(nanos);
        let nanos = nanos.map_err(|_| ConfigError::NegativeGracePeriod(text.clone()))?;
        Ok((signal, Duration::from_nanos(nanos)))
    };
    statements.iter().map(period).collect()
}

fn minimum_reclaims(
    statements: &BTreeMap<String, String>,
) -> Result<Map<Signal, ThresholdValue>, ConfigError> {
    let reclaim = |(name, text): (&String, &String)| {
        let signal = signal(name)?;
        if text.ends_with('%') {
            let share = percentage(text)?;
            if share <= 0.0 {
                return Err(ConfigError::ReclaimNotPositive(signal, text.clone()));
            }
            return Ok((signal, ThresholdValue::Percentage(share)));
        }
        if Quantity::parse(text)?.is_negative() {
            return Err(ConfigError::NegativeReclaim(signal));
        }
        Ok((signal, ThresholdValue::quantity(text)?))
    };
    statements.iter().map(reclaim).collect()
}
