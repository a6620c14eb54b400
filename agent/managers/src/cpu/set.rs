//! ◆ Sets of CPUs, and their text form: `0-3,7`. Pure.
//!
//! Source: Kubernetes 1.36, k8s.io/utils/cpuset.

use compact::Set;

/// CPUs by number.
pub(crate) type CpuSet = Set<usize>;

/// Formats a set as the kernel and the kubelet do.
pub(crate) fn format(set: &CpuSet) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in set {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            Some(_) | None => ranges.push((*cpu, *cpu)),
        }
    }
    let range = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(",")
}

/// Parses a set; `None` if it is malformed.
pub(crate) fn parse(text: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    if text.is_empty() {
        return Some(set);
    }
    for part in text.split(',') {
        match part.split_once('-') {
            None => {
                set.insert(part.parse().ok()?);
            }
            Some((first, last)) => {
                let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
                if first > last {
                    return None;
                }
                set.extend(first..=last);
            }
        }
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", &[])]
    #[case("0", &[0])]
    #[case("0-1,3,5-7", &[0, 1, 3, 5, 6, 7])]
    fn sets_have_a_text(#[case] text: &str, #[case] cpus: &[usize]) {
        let set: CpuSet = cpus.iter().copied().collect();
        assert_eq!(format(&set), text);
        assert_eq!(parse(text), Some(set));
    }

    #[rstest]
    #[case("3-1")]
    #[case("a")]
    #[case("1,")]
    #[case("1-2-3")]
    fn malformed_texts_are_no_sets(#[case] text: &str) {
        assert_eq!(parse(text), None);
    }
}
