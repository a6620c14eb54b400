//! The seccomp profile of a container, as tables.

use rstest::rstest;

use super::*;

fn context(
    seccomp: Option<(i32, &str)>,
    path: &str,
    privileged: bool,
) -> LinuxContainerSecurityContext {
    #[allow(deprecated)]
    LinuxContainerSecurityContext {
        seccomp: seccomp.map(|(profile_type, localhost_ref)| SecurityProfile {
            profile_type,
            localhost_ref: localhost_ref.to_owned(),
        }),
        seccomp_profile_path: path.to_owned(),
        privileged,
        ..Default::default()
    }
}

#[rstest]
#[case::nothing(None, "", false, Some(ProfileRequest::Unconfined))]
#[case::default(Some((0, "")), "", false, Some(ProfileRequest::Default))]
#[case::unconfined(Some((1, "")), "runtime/default", false, Some(ProfileRequest::Unconfined))]
#[case::file(Some((2, "/a/b.json")), "", false, Some(ProfileRequest::File("/a/b.json".into())))]
#[case::prefixed(Some((2, "localhost//a/b.json")), "", false, Some(ProfileRequest::File("/a/b.json".into())))]
#[case::relative(Some((2, "b.json")), "", false, None)]
#[case::empty(Some((2, "")), "", false, None)]
#[case::of_an_unknown_type(Some((3, "/b")), "", false, None)]
#[case::old_default(None, "runtime/default", false, Some(ProfileRequest::Default))]
#[case::older_default(None, "docker/default", false, Some(ProfileRequest::Default))]
#[case::old_unconfined(None, "unconfined", false, Some(ProfileRequest::Unconfined))]
#[case::old_file(None, "localhost//a/b.json", false, Some(ProfileRequest::File("/a/b.json".into())))]
#[case::old_relative(None, "localhost/b.json", false, None)]
#[case::old_nonsense(None, "runtime", false, None)]
#[case::privileged(Some((2, "/a")), "", true, Some(ProfileRequest::Unconfined))]
fn seccomp_request_reads_both_forms(
    #[case] seccomp: Option<(i32, &str)>,
    #[case] path: &str,
    #[case] privileged: bool,
    #[case] expected: Option<ProfileRequest>,
) {
    assert_eq!(request(&context(seccomp, path, privileged)).ok(), expected);
}
