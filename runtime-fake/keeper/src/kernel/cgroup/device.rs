//! ◆ Which devices a container may use: as lines for v1, and as a BPF program for v2.

use serde::{Deserialize, Serialize};

use crate::kernel::cgroup::{hierarchy::Controller, plan::Write};

/// Character or block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A character device.
    Character,
    /// A block device.
    Block,
}

/// Devices and the allowed access to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRule {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Its major number; none matches all.
    pub major: Option<u32>,
    /// Its minor number; none matches all.
    pub minor: Option<u32>,
    /// Allow reads.
    pub read: bool,
    /// Allow writes.
    pub write: bool,
    /// Allow mknod(2).
    pub make: bool,
}

impl DeviceRule {
    /// A device with the access that the letters `r`, `w`, `m` grant (CRI v1, Device.permissions).
    pub fn new(kind: DeviceKind, major: u32, minor: u32, access: &str) -> Self {
        Self {
            kind,
            major: Some(major),
            minor: Some(minor),
            read: access.contains('r'),
            write: access.contains('w'),
            make: access.contains('m'),
        }
    }
}

/// The default rules of every container, as in other runtimes: create any node, and use the devices in its default `/dev`.
pub fn usual() -> Vec<DeviceRule> {
    use DeviceKind::{Block, Character};
    let nodes =
        |kind| DeviceRule { kind, major: None, minor: None, read: false, write: false, make: true };
    let mut rules = vec![nodes(Character), nodes(Block)];
    // null, zero, full, random, urandom; tty, console, ptmx.
    for (major, minor) in [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)] {
        rules.push(DeviceRule::new(Character, major, minor, "rwm"));
    }
    // The terminals of every devpts (Linux's list of devices: Unix98 slaves).
    rules.push(DeviceRule { minor: None, ..DeviceRule::new(Character, 136, 0, "rwm") });
    rules
}

/// The rules as lines for v1: deny all, then allow one after the other.
pub fn lines(rules: &[DeviceRule]) -> Vec<Write> {
    let write = |file: &str, value: String| Write {
        controller: Controller::Devices,
        file: file.to_owned(),
        value,
        optional: false,
    };
    let number = |number: Option<u32>| number.map_or("*".to_owned(), |n| n.to_string());
    let mut writes = vec![write("devices.deny", "a".to_owned())];
    writes.extend(rules.iter().map(|rule| {
        let kind = match rule.kind {
            DeviceKind::Character => 'c',
            DeviceKind::Block => 'b',
        };
        let access: String = [(rule.read, 'r'), (rule.write, 'w'), (rule.make, 'm')]
            .iter()
            .filter_map(|(yes, letter)| yes.then_some(*letter))
            .collect();
        let (major, minor) = (number(rule.major), number(rule.minor));
        write("devices.allow", format!("{kind} {major}:{minor} {access}"))
    }));
    writes
}

/// An instruction of the kernel's BPF virtual machine (linux/bpf.h, `struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    code: u8,
    /// Destination and source; which half is which depends on the byte order.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The opcodes that the program uses (linux/bpf.h, linux/bpf_common.h).
mod code {
    /// `dst = *(u32 *)(src + offset)`
    pub(super) const LOAD: u8 = 0x61;
    /// `dst = immediate`
    pub(super) const SET: u8 = 0xb7;
    /// `dst = src`
    pub(super) const COPY: u8 = 0xbf;
    /// `dst &= immediate`
    pub(super) const AND: u8 = 0x57;
    /// `dst >>= immediate`
    pub(super) const SHIFT: u8 = 0x77;
    /// Skip `offset` instructions if `dst != immediate`.
    pub(super) const UNLESS: u8 = 0x55;
    /// Skip `offset` instructions if `dst != src`.
    pub(super) const UNLESS_SAME: u8 = 0x5d;
    /// End with the value of register 0.
    pub(super) const EXIT: u8 = 0x95;
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers: if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from },
        offset,
        immediate,
    }
}

/// The registers that the program uses; the kernel passes the context in register 1.
mod register {
    pub(super) const RESULT: u8 = 0;
    pub(super) const CONTEXT: u8 = 1;
    pub(super) const KIND: u8 = 2;
    pub(super) const ACCESS: u8 = 3;
    pub(super) const MAJOR: u8 = 4;
    pub(super) const MINOR: u8 = 5;
    pub(super) const ALLOWED: u8 = 6;
}

/// The rules as a program for `BPF_CGROUP_DEVICE`, which returns 1 to allow and 0 to deny. Its context is `struct
/// bpf_cgroup_dev_ctx`: one number with the access in the upper and the type in the lower half, then major and minor.
pub fn program(rules: &[DeviceRule]) -> Vec<Instruction> {
    use register::{ACCESS, CONTEXT, KIND, MAJOR, MINOR, RESULT};
    let mut program = vec![
        instruction(code::LOAD, KIND, CONTEXT, 0, 0),
        instruction(code::COPY, ACCESS, KIND, 0, 0),
        instruction(code::AND, KIND, 0, 0, 0xffff),
        instruction(code::SHIFT, ACCESS, 0, 0, 16),
        instruction(code::LOAD, MAJOR, CONTEXT, 4, 0),
        instruction(code::LOAD, MINOR, CONTEXT, 8, 0),
    ];
    for rule in rules {
        program.extend(one(rule));
    }
    program.extend([instruction(code::SET, RESULT, 0, 0, 0), instruction(code::EXIT, 0, 0, 0, 0)]);
    program
}

/// Instructions that return 1 if the rule matches, and fall through otherwise.
fn one(rule: &DeviceRule) -> Vec<Instruction> {
    use register::{ACCESS, ALLOWED, KIND, MAJOR, MINOR, RESULT};
    // BPF_DEVCG_DEV_* and BPF_DEVCG_ACC_* (linux/bpf.h).
    let kind = match rule.kind {
        DeviceKind::Block => 1,
        DeviceKind::Character => 2,
    };
    let allowed = i32::from(rule.make) | i32::from(rule.read) << 1 | i32::from(rule.write) << 2;
    let number = |register, number: Option<u32>| {
        number.map(|n| instruction(code::UNLESS, register, 0, 0, n.cast_signed()))
    };
    let mut block = vec![
        instruction(code::UNLESS, KIND, 0, 0, kind),
        // Every requested access has to be allowed.
        instruction(code::COPY, ALLOWED, ACCESS, 0, 0),
        instruction(code::AND, ALLOWED, 0, 0, allowed),
        instruction(code::UNLESS_SAME, ALLOWED, ACCESS, 0, 0),
    ];
    block.extend(number(MAJOR, rule.major));
    block.extend(number(MINOR, rule.minor));
    block.extend([instruction(code::SET, RESULT, 0, 0, 1), instruction(code::EXIT, 0, 0, 0, 0)]);
    let length = block.len();
    for (at, instruction) in block.iter_mut().enumerate() {
        if [code::UNLESS, code::UNLESS_SAME].contains(&instruction.code) {
            instruction.offset = i16::try_from(length - at - 1).unwrap_or(i16::MAX);
        }
    }
    block
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn device_rules_become_v1_lines() {
        let values: Vec<String> = lines(&usual()).into_iter().map(|w| w.value).collect();
        assert_eq!(values[..4], ["a", "c *:* m", "b *:* m", "c 1:3 rwm"]);
        assert_eq!(values.last().unwrap(), "c 136:* rwm");
    }

    /// Executes a program as the kernel does, for the instructions used here.
    fn run(program: &[Instruction], context: [u32; 3]) -> u64 {
        let mut registers = [0u64; 11];
        let mut at = 0;
        loop {
            let i = program[at];
            let (to, from) = (usize::from(i.registers & 15), usize::from(i.registers >> 4));
            let immediate = i64::from(i.immediate).cast_unsigned();
            at += 1;
            let skip = match i.code {
                code::LOAD => {
                    registers[to] = context[usize::try_from(i.offset).unwrap() / 4].into();
                    false
                }
                code::SET => {
                    registers[to] = immediate;
                    false
                }
                code::COPY => {
                    registers[to] = registers[from];
                    false
                }
                code::AND => {
                    registers[to] &= immediate;
                    false
                }
                code::SHIFT => {
                    registers[to] >>= immediate;
                    false
                }
                code::UNLESS => registers[to] != immediate,
                code::UNLESS_SAME => registers[to] != registers[from],
                code::EXIT => return registers[0],
                other => panic!("an instruction that no program has: {other:#x}"),
            };
            if skip {
                at += usize::try_from(i.offset).unwrap();
            }
        }
    }

    const MAKE: u32 = 1;
    const READ: u32 = 2;
    const WRITE: u32 = 4;
    const BLOCK: u32 = 1;
    const CHARACTER: u32 = 2;

    #[rstest]
    #[case::null(READ | WRITE, CHARACTER, 1, 3, 1)]
    #[case::memory(READ, CHARACTER, 1, 1, 0)]
    #[case::terminal(READ, CHARACTER, 136, 77, 1)]
    #[case::any_node(MAKE, BLOCK, 8, 0, 1)]
    #[case::disk(READ, BLOCK, 8, 0, 0)]
    #[case::disk_with_a_node(READ | MAKE, BLOCK, 8, 0, 0)]
    #[case::extra(READ, BLOCK, 8, 1, 1)]
    #[case::extra_written(READ | WRITE, BLOCK, 8, 1, 0)]
    #[case::kind(READ, CHARACTER, 8, 1, 0)]
    fn device_program_allows_listed_access_only(
        #[case] access: u32,
        #[case] kind: u32,
        #[case] major: u32,
        #[case] minor: u32,
        #[case] expected: u64,
    ) {
        let mut rules = usual();
        rules.push(DeviceRule::new(DeviceKind::Block, 8, 1, "r"));
        let context = [access << 16 | kind, major, minor];
        assert_eq!(run(&program(&rules), context), expected);
    }
}
