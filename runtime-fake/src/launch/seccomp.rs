//! ◆ Decides the seccomp profile of a container, and where its filter is stored. Pure.

use std::path::{Path, PathBuf};

use cri::v1::{LinuxContainerSecurityContext, SecurityProfile, security_profile::ProfileType};

use crate::launch::{Invalid, invalid};

/// The requested profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProfileRequest {
    /// No filter.
    Unconfined,
    /// The runtime's own profile.
    Default,
    /// The profile in this file.
    File(PathBuf),
}

/// Reads both forms of the request; the newer one takes precedence. Privileged containers have no filter
/// (Kubernetes, Pod Security Context).
pub(crate) fn request(context: &LinuxContainerSecurityContext) -> Result<ProfileRequest, Invalid> {
    if context.privileged {
        return Ok(ProfileRequest::Unconfined);
    }
    if let Some(profile) = &context.seccomp {
        return by_type(profile);
    }
    #[allow(deprecated, reason = "clients from before Kubernetes 1.19 say it this way")]
    let path = context.seccomp_profile_path.as_str();
    match path {
        "" | "unconfined" => Ok(ProfileRequest::Unconfined),
        "runtime/default" | "docker/default" => Ok(ProfileRequest::Default),
        _ if path.starts_with("localhost/") => file(path),
        _ => invalid(format!(
            "seccomp_profile_path {path:?} is none of unconfined, runtime/default, localhost//PATH"
        )),
    }
}

/// The path of a container's filter, if it has one. The filter is compiled when the container is created, so
/// later changes of the profile have no effect.
pub(super) fn kept(
    context: &LinuxContainerSecurityContext,
    container: &Path,
) -> Result<Option<PathBuf>, Invalid> {
    Ok((request(context)? != ProfileRequest::Unconfined).then(|| container.join("seccomp.bpf")))
}

fn by_type(profile: &SecurityProfile) -> Result<ProfileRequest, Invalid> {
    match ProfileType::try_from(profile.profile_type) {
        Ok(ProfileType::RuntimeDefault) => Ok(ProfileRequest::Default),
        Ok(ProfileType::Unconfined) => Ok(ProfileRequest::Unconfined),
        Ok(ProfileType::Localhost) => file(&profile.localhost_ref),
        Err(_) => invalid(format!("seccomp.profile_type {} is unknown", profile.profile_type)),
    }
}

fn file(reference: &str) -> Result<ProfileRequest, Invalid> {
    let path = reference.strip_prefix("localhost/").unwrap_or(reference);
    if !path.starts_with('/') || path.contains('\0') {
        return invalid(format!(
            "the seccomp profile {reference:?} is not an absolute path (CRI v1, SecurityProfile.localhost_ref)"
        ));
    }
    Ok(ProfileRequest::File(PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
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
}
