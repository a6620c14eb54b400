//! ◆ Decides the AppArmor profile of a container's processes. Pure.

use std::collections::BTreeSet;

use cri::v1::{LinuxContainerSecurityContext, SecurityProfile, security_profile::ProfileType};
use keeper::setup::lsm;

use crate::launch::{Invalid, invalid};

/// The name of the runtime's own profile.
pub(crate) const DEFAULT: &str = "crib-default";

/// The runtime's own profile, in the syntax of `apparmor_parser`: allows programs the usual operations in a container, but denies
/// access to the host through `/proc`, `/sys` and mounts, and to processes with other profiles.
pub(crate) const DEFAULT_RULES: &str = "\
profile crib-default flags=(attach_disconnected,mediate_deleted) {
  file,
  network,
  # The kernel's ciphers (CVE-2026-31431), also by the 32-bit call socketcall, which no seccomp filter can read.
  deny network alg,
  capability,
  umount,

  # The runtime and others outside may end what runs here; in here everybody may signal and trace everybody.
  signal (receive) peer=unconfined,
  signal (send, receive) peer=crib-default,
  ptrace (trace, tracedby, read, readby) peer=crib-default,

  deny mount,

  # What is the kernel's and not a process's: neither files of /proc itself, nor directories that are not numbers. Of
  # /proc/sys what belongs to the pod's own namespaces, as far as the mounts let it be written: net, fs/mqueue and what
  # System V keeps in kernel.
  deny /proc/* w,
  deny /proc/{[^1-9s]*,s[^ey]*}/** w,
  deny /proc/sys/{[^fkn]**,f[^s]**} w,
  deny /proc/sys/fs/{[^m]**,m[^q]**} w,
  deny /proc/sys/kernel/{[^ms]**,m[^s]**,s[^eh]**,se[^m]**,sh[^m]**} w,
  deny /proc/{sysrq-trigger,kcore,kmem,mem} rwklx,

  # Control groups aside, which their own mount protects, nobody changes the machine; some of it nobody reads.
  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
  deny /sys/fs/c[^g]*/** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/kernel/security/** rwklx,
}
";

/// The AppArmor profiles of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Profiles {
    /// No AppArmor.
    None,
    /// These profiles are loaded.
    Loaded(BTreeSet<String>),
    /// This user may not read the list; the kernel then rejects a profile that is not loaded.
    Hidden,
}

/// Why a container gets no profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProfileError {
    /// The kernel does not have this profile yet: an administrator or another pod may load it.
    #[error("{}", lsm::profile_not_found(.0))]
    NotLoaded(String),
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// The requested profile.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ProfileRequest {
    Unconfined,
    Default,
    Named(String),
}

/// The profile for a container, if it gets one. `profiles` is called only if needed.
pub(crate) fn profile(
    context: &LinuxContainerSecurityContext,
    profiles: impl FnOnce() -> Profiles,
) -> Result<Option<String>, ProfileError> {
    let request = request(context)?;
    // Privileged containers are unconfined (Kubernetes, "Privileged containers ignore any applied AppArmor profiles").
    if request == ProfileRequest::Unconfined || context.privileged {
        return Ok(None);
    }
    match (request, profiles()) {
        (ProfileRequest::Named(name), Profiles::None) => Err(Invalid(format!(
            "{}: the AppArmor profile {name:?} is unavailable: this kernel has no AppArmor, or it is switched off; leave the profile out",
            field(context)
        ))
        .into()),
        (ProfileRequest::Named(name), Profiles::Loaded(loaded)) if !loaded.contains(&name) => {
            Err(ProfileError::NotLoaded(name))
        }
        (ProfileRequest::Named(name), Profiles::Loaded(_) | Profiles::Hidden) => Ok(Some(name)),
        // The runtime's own profile may be unavailable: Status reports that.
        (ProfileRequest::Default, Profiles::Loaded(loaded)) if loaded.contains(DEFAULT) => {
            Ok(Some(DEFAULT.to_owned()))
        }
        (ProfileRequest::Default, _) | (ProfileRequest::Unconfined, _) => Ok(None),
    }
}

/// Reads both forms of the request; the newer one takes precedence. Without either, the runtime's default profile
/// applies (Kubernetes, as in both containerd and CRI-O).
fn request(context: &LinuxContainerSecurityContext) -> Result<ProfileRequest, Invalid> {
    if let Some(profile) = &context.apparmor {
        return by_type(field(context), profile);
    }
    #[allow(deprecated, reason = "clients from before Kubernetes 1.30 say it this way")]
    match context.apparmor_profile.as_str() {
        "" | "runtime/default" => Ok(ProfileRequest::Default),
        "unconfined" => Ok(ProfileRequest::Unconfined),
        old if old.starts_with("localhost/") => named(field(context), old),
        old => invalid(format!(
            "apparmor_profile {old:?} is none of runtime/default, unconfined, localhost/NAME"
        )),
    }
}

/// The field of the CRI that names a profile.
fn field(context: &LinuxContainerSecurityContext) -> &'static str {
    match context.apparmor {
        Some(_) => "apparmor.localhost_ref",
        None => "apparmor_profile",
    }
}

fn by_type(field: &str, profile: &SecurityProfile) -> Result<ProfileRequest, Invalid> {
    match ProfileType::try_from(profile.profile_type) {
        Ok(ProfileType::RuntimeDefault) => Ok(ProfileRequest::Default),
        Ok(ProfileType::Unconfined) => Ok(ProfileRequest::Unconfined),
        Ok(ProfileType::Localhost) => named(field, &profile.localhost_ref),
        Err(_) => invalid(format!("apparmor.profile_type {} is unknown", profile.profile_type)),
    }
}

fn named(field: &str, reference: &str) -> Result<ProfileRequest, Invalid> {
    let name = reference.strip_prefix("localhost/").unwrap_or(reference);
    if name.is_empty() {
        return invalid(format!("{field}: the AppArmor profile has no name"));
    }
    if name.contains(char::is_control) {
        return invalid(format!("{field} {name:?} cannot be the name of a profile"));
    }
    Ok(ProfileRequest::Named(name.to_owned()))
}

/// The names in the kernel's list of profiles: one per line, followed by its mode.
pub(crate) fn names(list: &str) -> BTreeSet<String> {
    let name = |line: &str| line.rsplit_once(" (").map(|(name, _)| name.to_owned());
    list.lines().filter_map(name).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn loaded() -> Profiles {
        Profiles::Loaded(names(
            "crib-default (enforce)\nweb server (complain)\n/usr/sbin/x//hat (enforce)\n",
        ))
    }

    fn without_default() -> Profiles {
        Profiles::Loaded(names("other (enforce)\n"))
    }

    fn new(kind: ProfileType, reference: &str) -> LinuxContainerSecurityContext {
        LinuxContainerSecurityContext {
            apparmor: Some(SecurityProfile {
                profile_type: kind.into(),
                localhost_ref: reference.into(),
            }),
            ..Default::default()
        }
    }

    #[allow(deprecated, reason = "old clients")]
    fn old(profile: &str) -> LinuxContainerSecurityContext {
        LinuxContainerSecurityContext { apparmor_profile: profile.into(), ..Default::default() }
    }

    #[allow(deprecated, reason = "old clients")]
    fn both(profile: &str) -> LinuxContainerSecurityContext {
        LinuxContainerSecurityContext {
            apparmor_profile: "localhost/gone".into(),
            ..new(ProfileType::Localhost, profile)
        }
    }

    fn privileged(context: LinuxContainerSecurityContext) -> LinuxContainerSecurityContext {
        LinuxContainerSecurityContext { privileged: true, ..context }
    }

    #[rstest]
    #[case::says_nothing(old(""), loaded(), Some("crib-default"))]
    #[case::default_is_not_loaded(old(""), without_default(), None)]
    #[case::default_may_be_loaded(old(""), Profiles::Hidden, None)]
    #[case::no_kernel(old(""), Profiles::None, None)]
    #[case::default(new(ProfileType::RuntimeDefault, ""), loaded(), Some("crib-default"))]
    #[case::default_without_kernel(new(ProfileType::RuntimeDefault, ""), Profiles::None, None)]
    #[case::old_default(old("runtime/default"), loaded(), Some("crib-default"))]
    #[case::unconfined(new(ProfileType::Unconfined, ""), loaded(), None)]
    #[case::old_unconfined(old("unconfined"), loaded(), None)]
    #[case::named(new(ProfileType::Localhost, "web server"), loaded(), Some("web server"))]
    #[case::prefixed(
        new(ProfileType::Localhost, "localhost/web server"),
        loaded(),
        Some("web server")
    )]
    #[case::old_named(old("localhost//usr/sbin/x//hat"), loaded(), Some("/usr/sbin/x//hat"))]
    #[case::hidden(new(ProfileType::Localhost, "p"), Profiles::Hidden, Some("p"))]
    #[case::the_newer_wins(both("web server"), loaded(), Some("web server"))]
    #[case::privileged(privileged(old("")), loaded(), None)]
    #[case::privileged_and_named(privileged(old("localhost/gone")), loaded(), None)]
    fn apparmor_profile_follows_request_and_kernel(
        #[case] context: LinuxContainerSecurityContext,
        #[case] has: Profiles,
        #[case] wanted: Option<&str>,
    ) {
        assert_eq!(profile(&context, || has).unwrap().as_deref(), wanted);
    }

    #[rstest]
    #[case::not_loaded(new(ProfileType::Localhost, "p"), loaded(), "p")]
    #[case::no_profile_is_loaded(
        new(ProfileType::Localhost, "p"),
        Profiles::Loaded(names("")),
        "p"
    )]
    #[case::a_beginning(new(ProfileType::Localhost, "web"), loaded(), "web")]
    #[case::a_mode(
        new(ProfileType::Localhost, "web server (complain)"),
        loaded(),
        "web server (complain)"
    )]
    #[case::old(old("localhost/p"), loaded(), "p")]
    #[case::the_newer_is_gone(both("p"), loaded(), "p")]
    fn apparmor_profile_that_is_not_loaded_may_be_loaded_later(
        #[case] context: LinuxContainerSecurityContext,
        #[case] has: Profiles,
        #[case] name: &str,
    ) {
        let error = profile(&context, || has).unwrap_err();
        assert_eq!(error, ProfileError::NotLoaded(name.to_owned()));
        let expected = format!("apparmor profile not found {name}: load it on this node");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }

    #[rstest]
    #[case::no_kernel(new(ProfileType::Localhost, "p"), Profiles::None, "no AppArmor")]
    #[case::field(new(ProfileType::Localhost, "p"), Profiles::None, "apparmor.localhost_ref: ")]
    #[case::old_field(old("localhost/p"), Profiles::None, "apparmor_profile: ")]
    #[case::new_no_name(new(ProfileType::Localhost, ""), loaded(), "apparmor.localhost_ref: the A")]
    #[case::nonsense(old("default"), loaded(), "runtime/default")]
    #[case::no_name(old("localhost/"), loaded(), "no name")]
    #[case::two_lines(old("localhost/a\nexec unconfined"), Profiles::Hidden, "cannot be the name")]
    #[case::nonsense_of_privileged(privileged(old("default")), loaded(), "runtime/default")]
    fn apparmor_profile_is_refused_for_good_without_kernel_or_when_invalid(
        #[case] context: LinuxContainerSecurityContext,
        #[case] has: Profiles,
        #[case] wanted: &str,
    ) {
        let error = profile(&context, || has).unwrap_err();
        assert!(
            matches!(&error, ProfileError::Invalid(Invalid(said)) if said.contains(wanted)),
            "{error}"
        );
    }

    #[test]
    fn unknown_apparmor_profile_type_is_refused() {
        let mut context = new(ProfileType::Localhost, "p");
        context.apparmor.as_mut().unwrap().profile_type = 7;
        assert!(profile(&context, loaded).unwrap_err().to_string().contains('7'));
    }

    #[test]
    fn default_rules_use_default_profile_name_and_deny_ciphers_of_the_kernel() {
        assert!(DEFAULT_RULES.starts_with(&format!("profile {DEFAULT} ")));
        assert!(DEFAULT_RULES.contains(&format!("peer={DEFAULT},")));
        assert!(DEFAULT_RULES.contains("  deny network alg,\n"));
    }
}
