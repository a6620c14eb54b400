//! ◆ Seccomp: makes the kernel's filter from a profile. Pure.

mod default;
mod interpret;
mod machine;
mod profile;
mod program;
mod rules;

pub use interpret::SystemCall;
pub use machine::Arch;
pub use profile::HostContext;
pub use program::Instruction;

/// A filter in the kernel's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// `SECCOMP_FILTER_FLAG_*`.
    pub flags: u32,
    /// The program, not empty.
    pub program: Vec<Instruction>,
}

/// Makes a filter from the runtime's own profile, or from the
/// text of `profile`. An error completes "the seccomp profile …".
pub fn filter(profile: Option<&str>, host: HostContext<'_>) -> Result<Filter, String> {
    let rules = match profile {
        None => default::rules(host),
        Some(text) => profile::read(text, host)?,
    };
    let program = program::build(&rules);
    if program.len() > program::LONGEST {
        return Err(format!(
            "needs {} instructions: the kernel takes {}",
            program.len(),
            program::LONGEST
        ));
    }
    Ok(Filter { flags: rules.flags, program })
}

/// The system calls of the pause process after its set-up: report, close all descriptors, and wait.
const WAITING: &str = r#"{
    "defaultAction": "SCMP_ACT_ERRNO",
    "syscalls": [{
        "names": ["ppoll", "restart_syscall", "rt_sigreturn", "exit_group", "write", "close_range"],
        "action": "SCMP_ACT_ALLOW"
    }]
}"#;

impl Filter {
    /// The filter of the pause process; none if this machine's architecture is not supported.
    pub fn waiting(kernel: (u32, u32)) -> Option<Self> {
        let host = HostContext { native: Arch::native()?, kernel, capabilities: &[] };
        filter(Some(WAITING), host).ok()
    }

    /// The form in a file: the flags, then eight bytes for each instruction.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.flags.to_le_bytes().to_vec();
        for one in &self.program {
            bytes.extend(one.code.to_le_bytes());
            bytes.extend([one.jt, one.jf]);
            bytes.extend(one.k.to_le_bytes());
        }
        bytes
    }

    /// Parses the form of [`Self::to_bytes`]; none if it is invalid.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
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
        (!program.is_empty()).then_some(Self { flags: u32::from_le_bytes(*flags), program })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_round_trips_through_file() {
        let host = HostContext { native: Arch::X86_64, kernel: (6, 1), capabilities: &[] };
        let filter = filter(None, host).unwrap();
        let bytes = filter.to_bytes();
        assert_eq!(Filter::from_bytes(&bytes), Some(filter));
        for broken in [&bytes[..4], &bytes[..bytes.len() - 1], &[]] {
            assert_eq!(Filter::from_bytes(broken), None);
        }
    }

    #[test]
    fn profile_over_program_limit_is_refused() {
        let host = HostContext { native: Arch::X86_64, kernel: (6, 1), capabilities: &[] };
        let rule = r#"{"names":["read"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":7,"op":"SCMP_CMP_EQ"}]}"#;
        let text = format!(
            r#"{{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{}]}}"#,
            vec![rule; 1000].join(",")
        );
        let reason = filter(Some(&text), host).unwrap_err();
        assert!(reason.contains("the kernel takes 4096"), "{reason}");
    }
}
