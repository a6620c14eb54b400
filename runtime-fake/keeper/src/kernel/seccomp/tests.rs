//! Filters written to a file and read back.

use super::*;

#[test]
fn filter_round_trips_through_file() {
    let host = HostContext { native: Arch::X86_64, kernel: (6, 1), capabilities: &[] };
    let filter = filter(None, host).unwrap();
    let bytes = filter.to_bytes();
    assert_eq!(Filter::from_bytes(&bytes), Some(filter));
    for broken in [&bytes[..4], &bytes[..bytes.len() - 1], &[]] {
        assert_eq!(Filter::from_bytes(broken), None);
    }
}

#[test]
fn profile_over_program_limit_is_refused() {
    let host = HostContext { native: Arch::X86_64, kernel: (6, 1), capabilities: &[] };
    let rule = r#"{"names":["read"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":7,"op":"SCMP_CMP_EQ"}]}"#;
    let text = format!(
        r#"{{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{}]}}"#,
        vec![rule; 1000].join(",")
    );
    let reason = filter(Some(&text), host).unwrap_err();
    assert!(reason.contains("the kernel takes 4096"), "{reason}");
}
