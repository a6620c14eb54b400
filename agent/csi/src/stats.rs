//! ◆ Evaluates a driver's response to NodeGetVolumeStats. Pure.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/{csi_metrics,csi_client}.go NodeGetVolumeStats.

use agent::storage::drivers::{Amount, DriverCondition, DriverUsage};

use crate::request::Capabilities;

/// The unit of an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageUnit {
    Bytes,
    Inodes,
}

/// A driver's response, without amounts in unknown units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) amounts: Vec<(UsageUnit, Amount)>,
    pub(crate) condition: Option<DriverCondition>,
}

impl Stats {
    /// The usage of the volume, for a driver with these capabilities. An empty response is an error.
    pub(crate) fn usage(self, capabilities: Capabilities) -> Result<DriverUsage, String> {
        let last = |requested: UsageUnit| {
            let mut amounts = self.amounts.iter().rev();
            amounts.find(|(unit, _)| *unit == requested).map(|(_, amount)| *amount)
        };
        let (bytes, inodes) = (last(UsageUnit::Bytes), last(UsageUnit::Inodes));
        // Without a condition in the response, the volume is not abnormal.
        let condition =
            capabilities.has_condition.then(|| self.condition.clone().unwrap_or_default());
        if self.amounts.is_empty() && condition.is_none() {
            return Err("failed to get usage from response. usage is nil".to_owned());
        }
        Ok(DriverUsage { bytes, inodes, condition })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURES: Capabilities = Capabilities {
        stages: false,
        several_writers: false,
        applies_fs_group: false,
        measures: true,
        has_condition: false,
        expands: false,
    };

    fn amount(total: u64) -> Amount {
        Amount { available: 1, total, used: 2 }
    }

    #[test]
    fn usage_has_the_last_amount_of_each_unit() {
        let amounts = vec![
            (UsageUnit::Bytes, amount(9)),
            (UsageUnit::Inodes, amount(3)),
            (UsageUnit::Bytes, amount(7)),
        ];
        let stats = Stats { amounts, condition: None };
        let expected =
            DriverUsage { bytes: Some(amount(7)), inodes: Some(amount(3)), condition: None };
        assert_eq!(stats.usage(MEASURES), Ok(expected));
    }

    #[test]
    fn unit_that_the_driver_does_not_measure_is_unknown() {
        let stats = Stats { amounts: vec![(UsageUnit::Bytes, amount(9))], condition: None };
        let usage = stats.usage(MEASURES);
        assert_eq!(usage.map(|usage| usage.inodes), Ok(None));
        assert!(Stats::default().usage(MEASURES).is_err());
    }

    #[test]
    fn condition_counts_for_drivers_that_report_conditions() {
        let abnormal = DriverCondition { is_abnormal: true, message: "torn".to_owned() };
        let stats = Stats { amounts: Vec::new(), condition: Some(abnormal.clone()) };
        assert!(stats.clone().usage(MEASURES).is_err());
        let capabilities = Capabilities { has_condition: true, ..MEASURES };
        let condition = |stats: Stats| stats.usage(capabilities).map(|usage| usage.condition);
        assert_eq!(condition(stats), Ok(Some(abnormal)));
        assert_eq!(condition(Stats::default()), Ok(Some(DriverCondition::default())));
    }
}
