//! Interprets a filter for a system call, without a kernel ◆

use crate::kernel::seccomp::{
    Filter, Instruction,
    machine::Arch,
    program::{AND, ARCH, ARGUMENTS, EQUAL, GREATER, JUMP, LOAD, NOT_LESS, NUMBER, RETURN, halves},
    rules::Action,
};

/// A call of this machine's native interface, by its name. Missing arguments are 0.
#[derive(Debug, Clone, Copy)]
pub struct SystemCall {
    name: &'static str,
    arguments: [u64; 6],
}

impl SystemCall {
    /// A call with these arguments.
    #[must_use]
    pub fn new(name: &'static str, given: &[u64]) -> Self {
        let mut arguments = [0; 6];
        arguments.iter_mut().zip(given).for_each(|(argument, given)| *argument = *given);
        Self { name, arguments }
    }
}

/// A call as the kernel passes it to a filter.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallData {
    pub audit: u32,
    pub number: u32,
    pub arguments: [u64; 6],
}

impl Filter {
    /// Whether the filter allows all of `calls` on a machine of `arch`.
    pub fn allows(&self, arch: Arch, calls: &[SystemCall]) -> bool {
        calls.iter().all(|call| {
            let shown = arch.number(call.name).map(|number| CallData {
                audit: arch.audit(),
                number,
                arguments: call.arguments,
            });
            let action = shown.and_then(|shown| run(&self.program, shown));
            matches!(action, Some(Action::ALLOW | Action::LOG))
        })
    }
}

/// Runs a program as the kernel does; none for one that the kernel's checker rejects.
pub(super) fn run(program: &[Instruction], call: CallData) -> Option<Action> {
    let word = |offset: u32| match offset {
        NUMBER => Some(call.number),
        ARCH => Some(call.audit),
        _ => {
            let index = usize::try_from(offset.checked_sub(ARGUMENTS)? / 8).ok()?;
            let (high, low) = halves(*call.arguments.get(index)?);
            Some(if offset.is_multiple_of(8) { low } else { high })
        }
    };
    let (mut at, mut value) = (0usize, 0);
    loop {
        let one = program.get(at)?;
        at += 1;
        let way = |holds: bool| usize::from(if holds { one.jt } else { one.jf });
        match one.code {
            LOAD => value = word(one.k)?,
            AND => value &= one.k,
            JUMP => at += usize::try_from(one.k).ok()?,
            EQUAL => at += way(value == one.k),
            GREATER => at += way(value > one.k),
            NOT_LESS => at += way(value >= one.k),
            RETURN => return Some(Action(one.k)),
            _ => return None,
        }
    }
}
