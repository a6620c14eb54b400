//! Valid and invalid profiles.
#![allow(clippy::unwrap_used, reason = "a test")]

use rstest::rstest;

use crate::kernel::seccomp::profile::*;

fn host(capabilities: &[u8]) -> HostContext<'_> {
    HostContext { native: Arch::X86_64, kernel: (5, 10), capabilities }
}

fn names(rules: &Rules) -> Vec<&str> {
    rules.rules.iter().map(|rule| rule.name.as_str()).collect()
}

#[test]
fn docker_profile_is_read() {
    let text = r#"{
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "defaultErrno": "ENOSYS",
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]}
        ],
        "syscalls": [
            {"names": ["accept", "read"], "action": "SCMP_ACT_ALLOW", "args": null, "comment": "", "includes": {}, "excludes": {}},
            {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
            {"names": ["newer"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "5.11"}},
            {"names": ["arm"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["arm", "arm64"]}},
            {"names": ["arch_prctl"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["amd64", "x32"]}},
            {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["chroot"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_CHROOT"]}},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "excludes": {"caps": ["CAP_SYS_ADMIN"], "arches": ["s390x"]}}
        ]
    }"#;
    let rules = read(text, host(&[18])).unwrap();
    assert_eq!(rules.default, Action::errno(38));
    assert_eq!(rules.arches, [Arch::X86_64, Arch::X86, Arch::X32]);
    assert_eq!(names(&rules), ["accept", "read", "ptrace", "arch_prctl", "chroot", "clone3"]);
    assert_eq!(rules.rules[5].action, Action::errno(38));
    let admin = read(text, host(&[18, 21])).unwrap();
    assert_eq!(names(&admin), ["accept", "read", "ptrace", "arch_prctl", "mount", "chroot"]);
}

#[test]
fn oci_profile_is_read() {
    let text = r#"{
        "defaultAction": "SCMP_ACT_LOG", "architectures": ["SCMP_ARCH_X86", "SCMP_ARCH_S390X"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "syscalls": [
            {"name": "chmod", "action": "SCMP_ACT_ERRNO", "errno": "EACCES"},
            {"names": ["kill"], "action": "SCMP_ACT_KILL_PROCESS", "args": [
                {"index": 1, "value": 9, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 1, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
            ]},
            {"names": ["tkill"], "action": "SCMP_ACT_TRACE", "errnoRet": 7, "args": [
                {"index": 1, "value": 9, "op": "SCMP_CMP_EQ"}, {"index": 1, "value": 15, "op": "SCMP_CMP_EQ"}
            ]}
        ]
    }"#;
    let rules = read(text, host(&[])).unwrap();
    assert_eq!(
        (rules.default, rules.flags, rules.arches.as_slice()),
        (Action::LOG, 2, [Arch::X86_64, Arch::X86].as_slice())
    );
    assert_eq!(names(&rules), ["chmod", "kill", "tkill", "tkill"]);
    assert_eq!(rules.rules[0].action, Action::errno(13));
    let equal = |argument, value| Condition { argument, comparison: Comparison::Equal, value };
    let masked =
        Condition { argument: 0, comparison: Comparison::MaskedEqual { mask: 1 }, value: 0 };
    assert_eq!(rules.rules[1].conditions, [equal(1, 9), masked]);
    assert_eq!(rules.rules[2].conditions, [equal(1, 9)]);
    assert_eq!(rules.rules[3].conditions, [equal(1, 15)]);
    assert_eq!(rules.rules[3].action, Action::trace(7));
}

#[rstest]
#[case::nothing("", "is not one")]
#[case::another_document(r#"{"kind":"Pod"}"#, "defaultAction")]
#[case::no_such_action(r#"{"defaultAction":"ALLOW"}"#, "unknown action \"ALLOW\"")]
#[case::a_listener(r#"{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/s"}"#, "listenerPath")]
#[case::notify(
    r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_NOTIFY"}]}"#,
    "SCMP_ACT_NOTIFY"
)]
#[case::no_such_machine(
    r#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["VAX"]}"#,
    "architecture \"VAX\""
)]
#[case::both(
    r#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86"],"archMap":[{"architecture":"SCMP_ARCH_X86"}]}"#,
    "both"
)]
#[case::no_such_flag(r#"{"defaultAction":"SCMP_ACT_ALLOW","flags":["FAST"]}"#, "unknown flag")]
#[case::no_names(
    r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"action":"SCMP_ACT_ALLOW"}]}"#,
    "without names"
)]
#[case::a_seventh_argument(
    r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"name":"a","action":"SCMP_ACT_LOG","args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#,
    "argument 6"
)]
#[case::no_such_comparison(
    r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"name":"a","action":"SCMP_ACT_LOG","args":[{"index":0,"value":0,"op":"=="}]}]}"#,
    "comparison \"==\""
)]
#[case::no_error(r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":70000}"#, "70000")]
#[case::no_such_error(r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrno":"EWHAT"}"#, "EWHAT")]
#[case::no_such_capability(
    r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"name":"a","action":"SCMP_ACT_LOG","includes":{"caps":["CAP_FLY"]}}]}"#,
    "CAP_FLY"
)]
#[case::no_version(
    r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"name":"a","action":"SCMP_ACT_LOG","includes":{"minKernel":"new"}}]}"#,
    "\"new\""
)]
fn invalid_profiles_are_refused(#[case] text: &str, #[case] expected: &str) {
    let reason = read(text, host(&[])).unwrap_err();
    assert!(reason.contains(expected), "{reason}");
}
