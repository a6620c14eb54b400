//! ◆ What a pod is told when its connection or datagram failed on the host.

use std::io::{Error, ErrorKind};

/// The answer to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The destination refuses: a reset, or "port unreachable".
    Refused,
    /// There is no way: "destination unreachable" with this code (RFC 792, RFC 1812).
    Unreachable(u8),
    /// None: the pod waits as it would for a host that does not answer.
    Silence,
}

impl Failure {
    /// The answer for the kernel's error.
    pub(super) fn of(error: &Error) -> Self {
        const NETWORK: u8 = 0;
        const HOST: u8 = 1;
        const PROHIBITED: u8 = 13;
        let kind = error.kind();
        match () {
            () if kind == ErrorKind::ConnectionRefused => Self::Refused,
            () if kind == ErrorKind::ConnectionReset => Self::Refused,
            () if kind == ErrorKind::NetworkUnreachable => Self::Unreachable(NETWORK),
            () if kind == ErrorKind::HostUnreachable => Self::Unreachable(HOST),
            () if kind == ErrorKind::PermissionDenied => Self::Unreachable(PROHIBITED),
            () => Self::Silence,
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Errno::ECONNREFUSED, Failure::Refused)]
    #[case(Errno::ECONNRESET, Failure::Refused)]
    #[case(Errno::ENETUNREACH, Failure::Unreachable(0))]
    #[case(Errno::EHOSTUNREACH, Failure::Unreachable(1))]
    #[case(Errno::EACCES, Failure::Unreachable(13))]
    #[case(Errno::ETIMEDOUT, Failure::Silence)]
    #[case(Errno::EMFILE, Failure::Silence)]
    fn failure_is_that_of_a_router(#[case] error: Errno, #[case] expected: Failure) {
        assert_eq!(Failure::of(&error.into()), expected);
    }
}
