//! Publishes the limits of registered drivers again, as often as their CSIDriver objects request
//! (`nodeAllocatableUpdatePeriodSeconds`).
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/csi_node_updater.go, csi_plugin.go updateCSIDriver.

use std::time::Duration;

use compact::Map;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::cluster::UpdatePeriods;
use crate::volumes::Volumes;

/// The registered drivers that have a period, with the time of the next update.
#[derive(Debug, Default)]
struct Schedule(Map<String, (Duration, Instant)>);

impl Schedule {
    /// Sets the drivers and their periods. A new period begins now.
    fn set(&mut self, periods: &UpdatePeriods, now: Instant) {
        let entry = |(name, period): (&String, &Duration)| {
            let known = self.0.get(name).filter(|(known, _)| known == period).copied();
            // A period that never ends needs no updates.
            let entry = known.or_else(|| Some((*period, now.checked_add(*period)?)))?;
            Some((name.clone(), entry))
        };
        self.0 = periods.iter().filter_map(entry).collect();
    }

    /// The time of the next update.
    fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, at)| *at).min()
    }

    /// The drivers whose update is due. Their next period begins now.
    fn take_due(&mut self, now: Instant) -> Vec<String> {
        let mut due = Vec::new();
        for (name, (period, at)) in self.0.iter_mut().filter(|(_, (_, at))| *at <= now) {
            *at = now.checked_add(*period).unwrap_or(*at);
            due.push(name.clone());
        }
        due
    }
}

impl Volumes {
    /// Updates limits until the future is dropped. It watches the CSIDriver objects from the first registration on.
    pub(crate) async fn update_limits(&self) {
        let mut registrations = self.registry.registrations();
        if self.registry.names().is_empty() {
            // It cannot fail: `self` owns the sender.
            let _ = registrations.changed().await;
        }
        let (sender, mut periods) = watch::channel(UpdatePeriods::new());
        let mut watching = self.cluster.watch_update_periods(&sender);
        let mut schedule = Schedule::default();
        loop {
            let names = self.registry.names();
            let mut known = periods.borrow_and_update().clone();
            known.retain(|name, _| names.contains(name));
            schedule.set(&known, Instant::now());
            let next = schedule.next();
            tokio::select! {
                () = &mut watching => return,
                // Both cannot fail: this function and `self` own the senders.
                Ok(()) = periods.changed() => {}
                Ok(()) = registrations.changed() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    for name in schedule.take_due(Instant::now()) {
                        self.update_limit(&name).await;
                    }
                }
            }
        }
    }

    /// Updates the limit of a driver now.
    pub(crate) async fn update_limit(&self, name: &str) {
        if let Err(error) = self.try_update_limit(name).await {
            tracing::warn!(driver = name, error, "failed to update the limit of a driver");
        }
    }

    async fn try_update_limit(&self, name: &str) -> Result<(), String> {
        let node = self.registry.driver(name)?.node().await.map_err(|error| error.to_string())?;
        // The driver may have been deregistered meanwhile.
        self.registry.driver(name)?;
        self.cluster.update(&node).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn update_is_due_after_each_period_until_the_period_is_removed() {
        let start = Instant::now();
        let at = |second| start.checked_add(Duration::from_secs(second)).unwrap_or(start);
        let periods = |of: &[(&str, u64)]| -> UpdatePeriods {
            let of = of.iter();
            of.map(|(name, period)| ((*name).to_owned(), Duration::from_secs(*period))).collect()
        };
        let mut schedule = Schedule::default();
        assert_eq!(schedule.next(), None);
        schedule.set(&periods(&[("a", 10), ("b", 30), ("c", u64::MAX)]), start);
        schedule.set(&periods(&[("a", 10), ("b", 30)]), at(5));
        assert_eq!(schedule.next(), Some(at(10)));
        assert_eq!(schedule.take_due(at(9)), [""; 0]);
        assert_eq!(schedule.take_due(at(10)), ["a"]);
        assert_eq!(schedule.take_due(at(30)), ["a", "b"]);
        assert_eq!(schedule.next(), Some(at(40)));
        schedule.set(&periods(&[("a", 20)]), at(35));
        assert_eq!(schedule.next(), Some(at(55)));
        schedule.set(&periods(&[]), at(36));
        assert_eq!(schedule.next(), None);
    }
}
