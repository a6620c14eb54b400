//! ◆ Parses the id mappings of user namespaces. Pure.

/// The extent of a `uid_map`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MappedIds {
    /// All ids, as in the initial user namespace.
    All,
    /// This many ids.
    Count(u32),
}

/// Parses `/proc/PID/uid_map`.
pub(super) fn mapped_ids(map: &str) -> MappedIds {
    let ranges = || {
        map.lines().filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse::<u32>);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
    };
    if ranges().any(|range| range == (0, 0, u32::MAX)) {
        return MappedIds::All;
    }
    MappedIds::Count(ranges().map(|(.., count)| count).sum())
}

/// A range of subordinate ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u32,
    pub(super) count: u32,
}

/// The ranges of a user in `/etc/subuid` or `/etc/subgid`, by name or number (subuid(5)).
pub(super) fn subordinate(file: &str, name: &str, uid: u32) -> Vec<Range> {
    file.lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let owner = fields.next()?;
            let (first, count) =
                (fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?);
            (count > 0 && (owner == name || owner == uid.to_string()))
                .then_some(Range { first, count })
        })
        .collect()
}

/// The arguments of `newuidmap` or `newgidmap` after the process id: `own` becomes 0, the ranges follow.
pub(super) fn arguments(own: u32, ranges: &[Range]) -> Vec<String> {
    let mut inside = 1u32;
    let mut arguments = vec![0, own, 1];
    for range in ranges {
        let Some(next) = inside.checked_add(range.count) else {
            break;
        };
        arguments.extend([inside, range.first, range.count]);
        inside = next;
    }
    arguments.iter().map(u32::to_string).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::whole_box("         0          0 4294967295\n", MappedIds::All)]
    #[case::single("         0       1000          1\n", MappedIds::Count(1))]
    #[case::subordinate("0 1000 1\n1 100000 65536\n", MappedIds::Count(65537))]
    #[case::unwritten("", MappedIds::Count(0))]
    fn mapped_ids_counts_uid_map(#[case] map: &str, #[case] expected: MappedIds) {
        assert_eq!(mapped_ids(map), expected);
    }

    #[test]
    fn subordinate_ranges_match_name_or_number() {
        let file = "other:100000:65536\nme:165536:65536\n1000:300000:10\nme:broken\nme:5:0\n";
        let ranges = subordinate(file, "me", 1000);
        assert_eq!(
            ranges,
            [Range { first: 165_536, count: 65_536 }, Range { first: 300_000, count: 10 }]
        );
        assert_eq!(arguments(1000, &ranges).join(" "), "0 1000 1 1 165536 65536 65537 300000 10");
    }
}
