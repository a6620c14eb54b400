//! The system call interfaces of a machine, and their call numbers ◆

use std::str::FromStr as _;

/// An interface to system calls, which seccomp calls an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    /// 64-bit x86.
    X86_64,
    /// 32-bit programs on x86_64.
    X86,
    /// The calls of x86_64 with 32-bit pointers, marked by a bit in the number.
    X32,
    /// 64-bit ARM.
    Aarch64,
    /// 32-bit programs on aarch64.
    Arm,
}

/// The bit that marks an x32 call number.
pub(super) const X32_BIT: u32 = 0x4000_0000;

/// The x32 calls whose numbers differ from x86_64's (the kernel's `syscall_64.tbl`).
const X32_OWN: [(&str, u32); 36] = [
    ("rt_sigaction", 512),
    ("rt_sigreturn", 513),
    ("ioctl", 514),
    ("readv", 515),
    ("writev", 516),
    ("recvfrom", 517),
    ("sendmsg", 518),
    ("recvmsg", 519),
    ("execve", 520),
    ("ptrace", 521),
    ("rt_sigpending", 522),
    ("rt_sigtimedwait", 523),
    ("rt_sigqueueinfo", 524),
    ("sigaltstack", 525),
    ("timer_create", 526),
    ("mq_notify", 527),
    ("kexec_load", 528),
    ("waitid", 529),
    ("set_robust_list", 530),
    ("get_robust_list", 531),
    ("vmsplice", 532),
    ("move_pages", 533),
    ("preadv", 534),
    ("pwritev", 535),
    ("rt_tgsigqueueinfo", 536),
    ("recvmmsg", 537),
    ("sendmmsg", 538),
    ("process_vm_readv", 539),
    ("process_vm_writev", 540),
    ("setsockopt", 541),
    ("getsockopt", 542),
    ("io_setup", 543),
    ("io_submit", 544),
    ("execveat", 545),
    ("preadv2", 546),
    ("pwritev2", 547),
];

/// The calls that only 32-bit ARM has, with numbers far above all others (the kernel's `asm/unistd.h`).
const ARM_OWN: [(&str, u32); 3] =
    [("breakpoint", 0xf_0001), ("cacheflush", 0xf_0002), ("set_tls", 0xf_0005)];

impl Arch {
    /// This machine's native interface; none if it is not supported.
    pub fn native() -> Option<Self> {
        if cfg!(target_arch = "x86_64") {
            Some(Self::X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Self::Aarch64)
        } else {
            None
        }
    }

    /// All interfaces of a machine whose native one is `self`.
    pub fn family(self) -> &'static [Self] {
        match self {
            Self::X86_64 | Self::X86 | Self::X32 => &[Self::X86_64, Self::X86, Self::X32],
            Self::Aarch64 | Self::Arm => &[Self::Aarch64, Self::Arm],
        }
    }

    /// Go's name for it, which profiles use in conditions.
    pub fn go_name(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::X86 => "x86",
            Self::X32 => "x32",
            Self::Aarch64 => "arm64",
            Self::Arm => "arm",
        }
    }

    /// Its value in `seccomp_data.arch` (`AUDIT_ARCH_*`).
    pub fn audit(self) -> u32 {
        match self {
            Self::X86_64 | Self::X32 => 0xc000_003e,
            Self::X86 => 0x4000_0003,
            Self::Aarch64 => 0xc000_00b7,
            Self::Arm => 0x4000_0028,
        }
    }

    /// Whether arguments have 32 bits.
    pub fn is_narrow(self) -> bool {
        matches!(self, Self::X86 | Self::Arm)
    }

    /// The number of a call; none if the interface lacks it.
    pub fn number(self, name: &str) -> Option<u32> {
        let among = |own: &[(&str, u32)]| own.iter().find(|(own, _)| *own == name).map(|(_, n)| *n);
        let number = match self {
            Self::X86_64 => syscalls::x86_64::Sysno::from_str(name).ok()?.id(),
            Self::X86 => syscalls::x86::Sysno::from_str(name).ok()?.id(),
            Self::Aarch64 => syscalls::aarch64::Sysno::from_str(name).ok()?.id(),
            Self::Arm => match among(&ARM_OWN) {
                Some(number) => return Some(number),
                None => syscalls::arm::Sysno::from_str(name).ok()?.id(),
            },
            Self::X32 => {
                let number = among(&X32_OWN).or_else(|| Self::X86_64.number(name))?;
                return Some(number | X32_BIT);
            }
        };
        u32::try_from(number).ok()
    }
}

/// Parses a profile's name such as `SCMP_ARCH_X86_64`. `Ok(None)` is an interface of other machines.
pub(super) fn named(name: &str) -> Result<Option<Arch>, ()> {
    const OTHERS: [&str; 16] = [
        "LOONGARCH64",
        "M68K",
        "MIPS",
        "MIPS64",
        "MIPS64N32",
        "MIPSEL",
        "MIPSEL64",
        "MIPSEL64N32",
        "PARISC",
        "PARISC64",
        "PPC",
        "PPC64",
        "PPC64LE",
        "RISCV64",
        "S390",
        "S390X",
    ];
    match name.strip_prefix("SCMP_ARCH_").ok_or(())? {
        "X86_64" => Ok(Some(Arch::X86_64)),
        "X86" => Ok(Some(Arch::X86)),
        "X32" => Ok(Some(Arch::X32)),
        "AARCH64" => Ok(Some(Arch::Aarch64)),
        "ARM" => Ok(Some(Arch::Arm)),
        other if OTHERS.contains(&other) => Ok(None),
        _ => Err(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Arch::X86_64, "chmod", Some(90))]
    #[case(Arch::X86, "chmod", Some(15))]
    #[case(Arch::X32, "chmod", Some(90 | X32_BIT))]
    #[case(Arch::X32, "execve", Some(520 | X32_BIT))]
    #[case(Arch::Aarch64, "chmod", None)]
    #[case(Arch::Aarch64, "fchmodat", Some(53))]
    #[case(Arch::X86_64, "socketcall", None)]
    #[case(Arch::X86, "socketcall", Some(102))]
    #[case(Arch::Arm, "set_tls", Some(0xf_0005))]
    #[case(Arch::X86_64, "no_such_call", None)]
    fn system_call_numbers_depend_on_architecture(
        #[case] arch: Arch,
        #[case] name: &str,
        #[case] number: Option<u32>,
    ) {
        assert_eq!(arch.number(name), number);
    }

    #[test]
    fn architectures_are_found_by_libseccomp_name() {
        assert_eq!(named("SCMP_ARCH_X86"), Ok(Some(Arch::X86)));
        assert_eq!(named("SCMP_ARCH_S390X"), Ok(None));
        assert_eq!(named("SCMP_ARCH_PDP11"), Err(()));
        assert_eq!(named("X86"), Err(()));
    }
}
