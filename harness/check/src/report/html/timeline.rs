//! ◆ The calls of a rule as bars over time; overlapping calls are in different lanes.

use super::super::escaped;

/// The minimum width of a bar, in percent, so that it is visible.
const NARROWEST: f64 = 0.4;

/// A call.
#[derive(Debug)]
pub(super) struct Bar {
    /// The id of the linked element.
    pub(super) anchor: String,
    pub(super) name: String,
    pub(super) label: String,
    /// The result of the call: a CSS class of the page.
    pub(super) kind: &'static str,
    /// Seconds since the start of the rule.
    pub(super) start: f64,
    pub(super) end: Option<f64>,
}

/// The bars, on a time axis of at least `seconds`.
pub(super) fn html(bars: &[Bar], seconds: f64) -> String {
    let ends = bars.iter().filter_map(|bar| bar.end);
    let whole = ends.chain(bars.iter().map(|bar| bar.start)).fold(seconds, f64::max).max(0.001);
    let spans: Vec<(f64, f64)> =
        bars.iter().map(|bar| (bar.start.max(0.0), bar.end.unwrap_or(whole))).collect();
    let lanes = lanes(&spans);
    let count = lanes.iter().max().map_or(0, |last| last + 1);
    let mut text = format!(
        "<div class=\"timeline\" role=\"group\" aria-label=\"Calls over {whole:.3} s\" style=\"--lanes:{count}\">\n"
    );
    for ((bar, (start, end)), lane) in bars.iter().zip(&spans).zip(&lanes) {
        let left = (start / whole * 100.0).min(100.0 - NARROWEST);
        let width = ((end - start) / whole * 100.0).clamp(NARROWEST, 100.0 - left);
        text += &format!(
            "<a class=\"bar {}\" href=\"#{}\" title=\"{}\" style=\"left:{left:.2}%;width:{width:.2}%;--lane:{lane}\">{}</a>\n",
            bar.kind,
            bar.anchor,
            escaped(&bar.label),
            escaped(&bar.name),
        );
    }
    text + &format!("</div>\n<p class=\"axis\"><span>0 s</span><span>{whole:.3} s</span></p>\n")
}

/// The lane of each span: the first lane that is free when the span starts. The spans are sorted by their starts.
fn lanes(spans: &[(f64, f64)]) -> Vec<usize> {
    let mut ends: Vec<f64> = Vec::new();
    let mut lanes = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        match ends.iter_mut().enumerate().find(|(_, last)| **last <= *start) {
            Some((lane, last)) => {
                *last = *end;
                lanes.push(lane);
            }
            None => {
                lanes.push(ends.len());
                ends.push(*end);
            }
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(&[], &[])]
    #[case::after_each_other(&[(0.0, 1.0), (1.0, 2.0)], &[0, 0])]
    #[case::overlapping(&[(0.0, 3.0), (1.0, 2.0), (1.5, 4.0)], &[0, 1, 2])]
    #[case::lane_is_used_again(&[(0.0, 3.0), (1.0, 2.0), (2.0, 4.0), (3.5, 5.0)], &[0, 1, 1, 0])]
    fn overlapping_spans_have_lanes_of_their_own(
        #[case] spans: &[(f64, f64)],
        #[case] expected: &[usize],
    ) {
        assert_eq!(lanes(spans), expected);
    }

    #[test]
    fn bars_stay_inside_and_call_without_end_lasts_to_the_end() {
        let bar = |start, end| Bar {
            anchor: "a".to_owned(),
            name: "Version".to_owned(),
            label: "Version".to_owned(),
            kind: "ok",
            start,
            end,
        };
        let text = html(&[bar(-1.0, Some(2.0)), bar(1.0, None), bar(4.0, Some(4.0))], 4.0);
        for part in [
            "left:0.00%;width:50.00%;--lane:0",
            "left:25.00%;width:75.00%;--lane:1",
            "left:99.60%;width:0.40%;--lane:0",
            "--lanes:2",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
