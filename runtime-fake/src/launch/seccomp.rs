//! Seccomp: which profile a container gets, and the kernel's filter made from it: pure.

mod default;
mod interpret;
mod machine;
mod profile;
mod program;
mod rules;

use std::path::{Path, PathBuf};

use cri::v1::{LinuxContainerSecurityContext, SecurityProfile, security_profile::ProfileType};

pub(crate) use interpret::SystemCall;
pub(crate) use machine::Arch;
pub(crate) use profile::Surroundings;
pub(crate) use program::Instruction;

use super::{Invalid, plan::invalid};

/// Which profile is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wish {
    /// No filter.
    Unconfined,
    /// The runtime's own.
    Default,
    /// The one in this file.
    File(PathBuf),
}

/// Reads both forms of the wish; the newer one wins. Nobody filters what is privileged (Kubernetes, Pod Security Context).
pub(crate) fn wish(context: &LinuxContainerSecurityContext) -> Result<Wish, Invalid> {
    if context.privileged {
        return Ok(Wish::Unconfined);
    }
    if let Some(profile) = &context.seccomp {
        return by_type(profile);
    }
    #[allow(
        deprecated,
        reason = "clients from before Kubernetes 1.19 say it this way"
    )]
    let path = context.seccomp_profile_path.as_str();
    match path {
        "" | "unconfined" => Ok(Wish::Unconfined),
        "runtime/default" | "docker/default" => Ok(Wish::Default),
        _ if path.starts_with("localhost/") => file(path),
        _ => invalid(format!(
            "seccomp_profile_path {path:?} is none of unconfined, runtime/default, localhost//PATH"
        )),
    }
}

/// Where a container's filter is kept, if it has one: made when the container was, whatever becomes of the profile later.
pub(super) fn kept(
    context: &LinuxContainerSecurityContext,
    container: &Path,
) -> Result<Option<PathBuf>, Invalid> {
    Ok((wish(context)? != Wish::Unconfined).then(|| container.join("seccomp.bpf")))
}

fn by_type(profile: &SecurityProfile) -> Result<Wish, Invalid> {
    match ProfileType::try_from(profile.profile_type) {
        Ok(ProfileType::RuntimeDefault) => Ok(Wish::Default),
        Ok(ProfileType::Unconfined) => Ok(Wish::Unconfined),
        Ok(ProfileType::Localhost) => file(&profile.localhost_ref),
        Err(_) => invalid(format!(
            "the seccomp profile type {} is unknown",
            profile.profile_type
        )),
    }
}

fn file(reference: &str) -> Result<Wish, Invalid> {
    let path = reference.strip_prefix("localhost/").unwrap_or(reference);
    if !path.starts_with('/') || path.contains('\0') {
        return invalid(format!(
            "the seccomp profile {reference:?} is not an absolute path (CRI v1, SecurityProfile.localhost_ref)"
        ));
    }
    Ok(Wish::File(PathBuf::from(path)))
}

/// A filter as the kernel takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Filter {
    /// `SECCOMP_FILTER_FLAG_*`.
    pub(crate) flags: u32,
    /// The program, not empty.
    pub(crate) program: Vec<Instruction>,
}

/// Makes a filter of the runtime's own profile, or of `profile`'s text. The reason of a failure completes "the seccomp
/// profile …".
pub(crate) fn filter(profile: Option<&str>, around: Surroundings<'_>) -> Result<Filter, String> {
    let rules = match profile {
        None => default::rules(around),
        Some(text) => profile::read(text, around)?,
    };
    let program = program::build(&rules);
    if program.len() > program::LONGEST {
        return Err(format!(
            "needs {} instructions: the kernel takes {}",
            program.len(),
            program::LONGEST
        ));
    }
    Ok(Filter {
        flags: rules.flags,
        program,
    })
}

/// What a pod's process may do once it is set up: say so, close what it has open, and wait.
const WAITING: &str = r#"{
    "defaultAction": "SCMP_ACT_ERRNO",
    "syscalls": [{
        "names": ["ppoll", "restart_syscall", "rt_sigreturn", "exit_group", "write", "close_range"],
        "action": "SCMP_ACT_ALLOW"
    }]
}"#;

impl Filter {
    /// The filter of a pod's process; none on a machine that no filter can be made for.
    pub(crate) fn waiting(kernel: (u32, u32)) -> Option<Self> {
        let around = Surroundings {
            native: Arch::native()?,
            kernel,
            capabilities: &[],
        };
        filter(Some(WAITING), around).ok()
    }

    /// As it is kept in a file: the flags, then eight bytes an instruction.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.flags.to_le_bytes().to_vec();
        for one in &self.program {
            bytes.extend(one.code.to_le_bytes());
            bytes.extend([one.jt, one.jf]);
            bytes.extend(one.k.to_le_bytes());
        }
        bytes
    }

    /// Reads what [`Self::to_bytes`] wrote; none if it is something else.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (flags, rest) = bytes.split_first_chunk::<4>()?;
        let (instructions, []) = rest.as_chunks::<8>() else {
            return None;
        };
        let program: Vec<_> = instructions
            .iter()
            .map(|&[c0, c1, jt, jf, k0, k1, k2, k3]| Instruction {
                code: u16::from_le_bytes([c0, c1]),
                jt,
                jf,
                k: u32::from_le_bytes([k0, k1, k2, k3]),
            })
            .collect();
        (!program.is_empty()).then_some(Self {
            flags: u32::from_le_bytes(*flags),
            program,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
