//! Decides which seccomp profile a container gets, and where its filter is stored: pure.

use std::path::{Path, PathBuf};

use cri::v1::{LinuxContainerSecurityContext, SecurityProfile, security_profile::ProfileType};

use crate::launch::{Invalid, invalid::invalid};

/// The requested profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProfileRequest {
    /// No filter.
    Unconfined,
    /// The runtime's own.
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
#[allow(clippy::unwrap_used)]
mod tests;
