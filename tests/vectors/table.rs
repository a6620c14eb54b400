//! The table of all sets, for a terminal.

use crate::judge::Outcome;

/// One line a set, then one for each exception that was used.
pub(crate) fn text(outcomes: &[Outcome]) -> String {
    let width = outcomes.iter().map(|outcome| outcome.set.len()).max().unwrap_or_default();
    let mut lines = vec![format!("{:width$}  cases  agree differ excluded", "set")];
    for outcome in outcomes {
        let excluded: usize = outcome.excluded.iter().map(|(_, count)| count).sum();
        lines.push(format!(
            "{:width$}  {:5}  {:5}  {:5}    {excluded:5}",
            outcome.set,
            outcome.cases,
            outcome.agree,
            outcome.differ.len(),
        ));
        let used = outcome.excluded.iter().filter(|(_, count)| *count > 0);
        lines.extend(used.map(|(reason, count)| format!("{:width$}  {count:5}  {reason}", "")));
    }
    lines.join("\n")
}
