//! Rounds in which each endpoint takes its turn.

use super::error::BenchError;
use super::target::Target;

/// The order of the endpoints in a round: each is the first one in turn.
pub(super) fn turns(endpoints: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..endpoints).map(move |place| (place + round) % endpoints.max(1))
}

/// Measures each endpoint once a round, and records the samples. A round before the first one warms up and is not recorded.
pub(super) async fn in_turns<T>(
    targets: &[Target],
    rounds: usize,
    mut measure: impl AsyncFnMut(usize, &Target) -> Result<T, BenchError>,
    mut record: impl FnMut(usize, T),
) -> Result<(), BenchError> {
    for round in 0..=rounds {
        for subject in turns(targets.len(), round) {
            let target = &targets[subject];
            target.check_interrupt()?;
            let sample = measure(subject, target).await?;
            if round > 0 {
                record(subject, sample);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::turns;

    #[rstest]
    #[case::one(1, 7, &[0])]
    #[case::first_round(2, 0, &[0, 1])]
    #[case::second_round(2, 1, &[1, 0])]
    #[case::none(0, 3, &[])]
    fn endpoints_take_turns(
        #[case] endpoints: usize,
        #[case] round: usize,
        #[case] expected: &[usize],
    ) {
        assert_eq!(turns(endpoints, round).collect::<Vec<_>>(), expected);
    }
}
