//! ◆ Decides which rotated files of a log to remove and to compress before the next rotation.
//!
//! | file | action |
//! |---|---|
//! | `LOG.TIME.tmp` | removed: the rest of an interrupted compression |
//! | `LOG.TIME` beside `LOG.TIME.gz` | removed: it is already compressed |
//! | the oldest, beyond the limit | removed |
//! | `LOG.TIME` | compressed |
//! | `LOG.TIME.gz` | kept |

/// The suffix of compressed logs.
pub(super) const COMPRESSED: &str = ".gz";
/// The suffix of files that are being written.
pub(super) const UNFINISHED: &str = ".tmp";

/// The actions for the rotated files.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Names of files to remove, the oldest first.
    pub(super) remove: Vec<String>,
    /// Names of files to compress, the oldest first.
    pub(super) compress: Vec<String>,
}

/// Plans the actions for the rotated files `names`. `max_files` includes the current log and the one that is rotated now; names end
/// with their time, so that they sort by it.
pub(super) fn plan_rotation(mut names: Vec<String>, max_files: usize) -> Plan {
    names.sort();
    let in_use = |name: &String| {
        let done = format!("{name}{COMPRESSED}");
        !name.ends_with(UNFINISHED) && !names.contains(&done)
    };
    let (kept, mut remove): (Vec<String>, Vec<String>) = names.iter().cloned().partition(in_use);
    let excess = kept.len().saturating_sub(max_files.saturating_sub(2));
    let (excess, kept) = kept.split_at(excess);
    remove.extend_from_slice(excess);
    Plan {
        remove,
        compress: kept.iter().filter(|name| !name.ends_with(COMPRESSED)).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(&[], &[], &[])]
    #[case::one(&["l.1"], &[], &["l.1"])]
    #[case::compressed(&["l.1.gz", "l.2"], &[], &["l.2"])]
    #[case::excess(&["l.4", "l.1.gz", "l.3.gz", "l.2.gz"], &["l.1.gz"], &["l.4"])]
    #[case::unfinished(&["l.1.tmp", "l.1"], &["l.1.tmp"], &["l.1"])]
    #[case::not_removed_after_compression(&["l.1", "l.1.gz"], &["l.1"], &[])]
    fn rotation_keeps_five_files(
        #[case] names: &[&str],
        #[case] remove: &[&str],
        #[case] compress: &[&str],
    ) {
        let plan = plan_rotation(names.iter().map(|name| (*name).to_owned()).collect(), 5);
        assert_eq!((plan.remove, plan.compress), (texts(remove), texts(compress)));
    }

    #[test]
    fn two_files_keep_no_rotated_log() {
        assert_eq!(plan_rotation(texts(&["l.1.gz", "l.2"]), 2).remove, ["l.1.gz", "l.2"]);
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }
}
