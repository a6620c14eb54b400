//! Seccomp: the kernel's filter made from a profile: pure.

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

/// A filter as the kernel takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// `SECCOMP_FILTER_FLAG_*`.
    pub flags: u32,
    /// The program, not empty.
    pub program: Vec<Instruction>,
}

/// Makes a filter of the runtime's own profile, or of `profile`'s text. The reason of a failure completes "the seccomp
/// profile …".
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
    pub fn waiting(kernel: (u32, u32)) -> Option<Self> {
        let host = HostContext {
            native: Arch::native()?,
            kernel,
            capabilities: &[],
        };
        filter(Some(WAITING), host).ok()
    }

    /// As it is kept in a file: the flags, then eight bytes an instruction.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.flags.to_le_bytes().to_vec();
        for one in &self.program {
            bytes.extend(one.code.to_le_bytes());
            bytes.extend([one.jt, one.jf]);
            bytes.extend(one.k.to_le_bytes());
        }
        bytes
    }

    /// Reads what [`Self::to_bytes`] wrote; none if it is something else.
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
        (!program.is_empty()).then_some(Self {
            flags: u32::from_le_bytes(*flags),
            program,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
