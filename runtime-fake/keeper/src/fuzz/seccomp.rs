//! Fuzz target: seccomp profiles.

use fuzz_target::{Target, bytes, text};

use crate::kernel::seccomp::{Arch, Filter, HostContext, Instruction, filter};

pub(super) const TARGETS: &[Target] =
    &[Target::new("seccomp_profile", seccomp_profile, profiles).slow(400)];

/// The kernel accepts every filter (`bpf_check_classic`): it is not too long, every jump goes forwards and stays
/// inside, and it ends with a verdict. A filter read from its file is the one written.
fn seccomp_profile(data: &[u8]) {
    let host = HostContext { native: Arch::X86_64, kernel: (6, 1), capabilities: &[0, 1, 21] };
    let Ok(made) = filter(Some(text(data)), host) else {
        return;
    };
    let program = &made.program;
    assert!(program.len() <= 4096);
    assert!(program.last().is_some_and(|last| last.code == 0x06));
    for (at, one) in program.iter().enumerate() {
        for target in targets(at, *one) {
            assert!(target < program.len(), "instruction {at} leads to {target}");
        }
    }
    assert_eq!(Filter::from_bytes(&made.to_bytes()), Some(made));
}

/// The instructions that can follow an instruction.
fn targets(at: usize, one: Instruction) -> Vec<usize> {
    match one.code {
        0x05 => vec![at + 1 + one.k as usize],
        0x15 | 0x25 | 0x35 => vec![at + 1 + usize::from(one.jt), at + 1 + usize::from(one.jf)],
        0x06 => vec![],
        _ => vec![at + 1],
    }
}

fn profiles() -> Vec<Vec<u8>> {
    bytes(&[
        r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":1,"architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86"],"syscalls":[{"names":["read","write"],"action":"SCMP_ACT_ALLOW"},{"names":["clone"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":2114060288,"valueTwo":0,"op":"SCMP_CMP_MASKED_EQ"}]}]}"#,
        r#"{"defaultAction":"SCMP_ACT_ALLOW","archMap":[{"architecture":"SCMP_ARCH_X86_64","subArchitectures":["SCMP_ARCH_X32"]}],"flags":["SECCOMP_FILTER_FLAG_LOG"],"syscalls":[{"names":["mount"],"action":"SCMP_ACT_ERRNO","errno":"ENOSYS","excludes":{"caps":["CAP_SYS_ADMIN"]},"includes":{"minKernel":"5.4","arches":["amd64"]}},{"name":"bpf","action":"SCMP_ACT_TRACE","args":[{"index":5,"value":1,"op":"SCMP_CMP_GE"},{"index":1,"value":3,"op":"SCMP_CMP_NE"}]}]}"#,
    ])
}
