//! Times by name.

use std::{
    collections::BTreeMap,
    future::Future,
    time::{Duration, Instant},
};

/// Times by name, in the order of their first appearance.
#[derive(Default)]
pub(crate) struct Table {
    order: Vec<&'static str>,
    times: BTreeMap<&'static str, Vec<Duration>>,
}

impl Table {
    pub(crate) fn add(&mut self, name: &'static str, time: Duration) {
        if !self.order.contains(&name) {
            self.order.push(name);
        }
        self.times.entry(name).or_default().push(time);
    }

    pub(crate) async fn time<T>(&mut self, name: &'static str, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let result = work.await;
        self.add(name, began.elapsed());
        result
    }

    /// The names with their times at these shares (in hundredths) of each name's rounds, in ms.
    pub(crate) fn at<const N: usize>(
        &mut self,
        shares: [usize; N],
    ) -> impl Iterator<Item = (&'static str, [f64; N])> {
        let all = &mut self.times;
        self.order.iter().map(move |name| {
            let times = all.entry(name).or_default();
            times.sort_unstable();
            let at = |share: usize| {
                times
                    .get((times.len() * share / 100).min(times.len().saturating_sub(1)))
                    .map_or(0.0, |t| t.as_secs_f64() * 1e3)
            };
            (*name, shares.map(at))
        })
    }

    pub(crate) fn print(&mut self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(out, "{:>9} {:>9} {:>9}  ms", "p50", "p90", "p99")?;
        for (name, [p50, p90, p99]) in self.at([50, 90, 99]) {
            writeln!(out, "{p50:9.2} {p90:9.2} {p99:9.2}  {name}")?;
        }
        Ok(())
    }
}
