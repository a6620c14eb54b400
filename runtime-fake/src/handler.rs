//! ◆ Runtime handlers: named ways to run pods, each stricter than the default one. Pure.

use std::collections::BTreeMap;

use cri::v1::{ContainerConfig, SecurityProfile, security_profile::ProfileType};

use crate::launch::{self, Invalid};

/// The restrictions on containers of a handler, regardless of the client's request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Handler {
    /// Sets no_new_privs.
    pub no_new_privs: bool,
    /// The root file system is read-only.
    pub read_only_root: bool,
    /// A container without a seccomp profile gets `RuntimeDefault`, not `Unconfined`.
    pub seccomp_default: bool,
}

/// The handlers by name. The default handler, with the empty name, always exists and adds nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Handlers(BTreeMap<String, Handler>);

/// The name is not valid for a handler.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not a handler name: use a DNS label (lower-case letters, digits and -), as in a RuntimeClass"
)]
pub struct InvalidHandlerName(String);

impl Handlers {
    /// Adds a handler. Its name must be valid for `RuntimeClass.handler` (Kubernetes: a DNS label).
    ///
    /// # Errors
    /// When the name is invalid.
    pub fn add(&mut self, name: &str, handler: Handler) -> Result<(), InvalidHandlerName> {
        let edge = |c: Option<char>| c.is_some_and(|c| c != '-');
        let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.len() > 63
            || !name.chars().all(known)
            || !edge(name.chars().next())
            || !edge(name.chars().last())
        {
            return Err(InvalidHandlerName(name.to_owned()));
        }
        self.0.insert(name.to_owned(), handler);
        Ok(())
    }

    /// All names, the default one first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once("").chain(self.0.keys().map(String::as_str))
    }

    /// The handler of this name.
    pub(crate) fn get(&self, name: &str) -> Result<Handler, Invalid> {
        if name.is_empty() {
            return Ok(Handler::default());
        }
        self.0.get(name).copied().ok_or_else(|| {
            let names: Vec<String> = self.names().map(|name| format!("{name:?}")).collect();
            Invalid(format!(
                "no runtime for the handler {name:?} is configured; configured handlers: {}",
                names.join(", ")
            ))
        })
    }
}

impl Handler {
    /// Applies the restrictions to a client's configuration.
    pub(crate) fn harden(self, config: &mut ContainerConfig) {
        if self == Self::default() {
            return;
        }
        let linux = config.linux.get_or_insert_default();
        let context = linux.security_context.get_or_insert_with(launch::default_context);
        context.no_new_privs |= self.no_new_privs;
        context.readonly_rootfs |= self.read_only_root;
        #[allow(deprecated, reason = "a profile that old clients name is one, too")]
        let named = context.seccomp.is_some() || !context.seccomp_profile_path.is_empty();
        if self.seccomp_default && !named {
            context.seccomp = Some(SecurityProfile {
                profile_type: ProfileType::RuntimeDefault.into(),
                ..Default::default()
            });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("strict", true)]
    #[case("a-1", true)]
    #[case("", false)]
    #[case("-a", false)]
    #[case("a-", false)]
    #[case("A", false)]
    #[case("a.b", false)]
    #[case("a/b", false)]
    fn handler_names_are_dns_labels(#[case] name: &str, #[case] good: bool) {
        let mut handlers = Handlers::default();
        assert_eq!(handlers.add(name, Handler::default()).is_ok(), good);
        assert_eq!(handlers.names().count(), 1 + usize::from(good));
    }

    #[test]
    fn unknown_handler_error_lists_known_handlers() {
        let mut handlers = Handlers::default();
        handlers.add("strict", Handler::default()).unwrap();
        assert!(handlers.get("").is_ok() && handlers.get("strict").is_ok());
        let message = handlers.get("gvisor").unwrap_err().0;
        assert!(
            message.contains("\"gvisor\"") && message.contains("\"\", \"strict\""),
            "{message}"
        );
    }

    #[test]
    fn harden_adds_restrictions_only() {
        let strict = Handler { no_new_privs: true, read_only_root: true, seccomp_default: true };
        let mut config = ContainerConfig::default();
        Handler::default().harden(&mut config);
        assert_eq!(config, ContainerConfig::default());
        strict.harden(&mut config);
        let context =
            |config: &ContainerConfig| config.linux.clone().unwrap().security_context.unwrap();
        let hardened = context(&config);
        assert!(hardened.no_new_privs && hardened.readonly_rootfs);
        // As without a handler.
        assert!(hardened.masked_paths.iter().any(|path| path == "/proc/kcore"));
        assert!(hardened.readonly_paths.iter().any(|path| path == "/proc/sys"));
        assert_eq!(hardened.seccomp, Some(SecurityProfile::default()));
        let unconfined =
            SecurityProfile { profile_type: ProfileType::Unconfined.into(), ..Default::default() };
        let linux = config.linux.get_or_insert_default();
        linux.security_context.get_or_insert_default().seccomp = Some(unconfined.clone());
        strict.harden(&mut config);
        assert_eq!(context(&config).seccomp, Some(unconfined));
    }
}
