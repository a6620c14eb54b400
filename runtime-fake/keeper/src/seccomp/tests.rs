//! Filters that survive their file.

use super::*;

#[test]
fn a_filter_is_the_same_when_it_is_read_again() {
    let host = HostContext {
        native: Arch::X86_64,
        kernel: (6, 1),
        capabilities: &[],
    };
    let filter = filter(None, host).unwrap();
    let bytes = filter.to_bytes();
    assert_eq!(Filter::from_bytes(&bytes), Some(filter));
    for broken in [&bytes[..4], &bytes[..bytes.len() - 1], &[]] {
        assert_eq!(Filter::from_bytes(broken), None);
    }
}

#[test]
fn a_profile_that_is_too_long_is_refused() {
    let host = HostContext {
        native: Arch::X86_64,
        kernel: (6, 1),
        capabilities: &[],
    };
    let rule = r#"{"names":["read"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":7,"op":"SCMP_CMP_EQ"}]}"#;
    let text = format!(
        r#"{{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{}]}}"#,
        vec![rule; 1000].join(",")
    );
    let reason = filter(Some(&text), host).unwrap_err();
    assert!(reason.contains("the kernel takes 4096"), "{reason}");
}
