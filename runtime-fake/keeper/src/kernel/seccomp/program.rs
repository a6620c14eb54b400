//! Compiles rules to a program of the kernel's classic BPF ◆
//!
//! ```text
//! interface? ──▶ number: a binary search over ranges with the same verdict ──▶ arguments, if checked ──▶ verdict
//! ```
//! Every block ends in a verdict, so that blocks can be concatenated without labels. A conditional jump reaches 255
//! instructions; a longer distance takes an unconditional one, which reaches everywhere.

use std::collections::BTreeMap;

use crate::kernel::seccomp::{
    machine::{Arch, X32_BIT},
    rules::{Action, Comparison, Condition, Rules},
};

/// One instruction (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// The number of instructions to skip if the condition holds.
    pub jt: u8,
    /// The number of instructions to skip if it does not.
    pub jf: u8,
    /// Its operand.
    pub k: u32,
}

/// The longest program that the kernel accepts (`BPF_MAXINSNS`).
pub(super) const LONGEST: usize = 4096;

/// `BPF_LD | BPF_W | BPF_ABS`: a word of `struct seccomp_data`.
pub(super) const LOAD: u16 = 0x20;
/// `BPF_ALU | BPF_AND | BPF_K`.
pub(super) const AND: u16 = 0x54;
/// `BPF_JMP | BPF_JA`.
pub(super) const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
pub(super) const EQUAL: u16 = 0x15;
/// `BPF_JMP | BPF_JGT | BPF_K`.
pub(super) const GREATER: u16 = 0x25;
/// `BPF_JMP | BPF_JGE | BPF_K`.
pub(super) const NOT_LESS: u16 = 0x35;
/// `BPF_RET | BPF_K`.
pub(super) const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data`.
pub(super) const NUMBER: u32 = 0;
pub(super) const ARCH: u32 = 4;
pub(super) const ARGUMENTS: u32 = 16;

/// The number that a tracer sets to skip a call.
const NO_CALL: u32 = u32::MAX;
const ENOSYS: u16 = 38;
/// More than any gap between two calls that a profile names.
const WIDE_GAP: u32 = 4096;

fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// The verdict on one call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Always(Action),
    /// The action of the first rule whose conditions all hold, otherwise the last one.
    Depends(Vec<(Vec<Condition>, Action)>, Action),
}

/// Compiles `rules`.
pub(super) fn build(rules: &Rules) -> Vec<Instruction> {
    let mut by_audit: BTreeMap<u32, Vec<Arch>> = BTreeMap::new();
    for arch in &rules.arches {
        by_audit.entry(arch.audit()).or_default().push(*arch);
    }
    let mut program = vec![plain(LOAD, ARCH)];
    for (audit, arches) in by_audit {
        let mut block = vec![plain(LOAD, NUMBER)];
        let narrow = arches.iter().all(|arch| arch.is_narrow());
        block.extend(search(&ranges(rules, &arches), narrow));
        program.push(branch(EQUAL, audit, 1, 0));
        program.push(plain(JUMP, length(&block)));
        program.extend(block);
    }
    // An interface that the profile does not name would bypass it.
    program.push(plain(RETURN, Action::KILL_PROCESS.0));
    program
}

fn length(block: &[Instruction]) -> u32 {
    u32::try_from(block.len()).unwrap_or(u32::MAX)
}

/// The verdicts by first number, for the interfaces that share one audit value.
fn ranges(rules: &Rules, arches: &[Arch]) -> Vec<(u32, Verdict)> {
    let mut ranges = Vec::new();
    if arches.contains(&Arch::X32) && !arches.contains(&Arch::X86_64) {
        ranges.push((0, Verdict::Always(Action::KILL_PROCESS)));
    }
    for arch in arches {
        let start = if *arch == Arch::X32 { X32_BIT } else { 0 };
        let verdicts = verdicts(rules, *arch);
        let mut next = start;
        for (number, verdict) in verdicts {
            if number > next {
                // Future calls will fill the gap below the ARM-only calls.
                let gap = if number - next > WIDE_GAP { unknown(rules) } else { rules.default };
                ranges.push((next, Verdict::Always(gap)));
            }
            ranges.push((number, verdict));
            next = number + 1;
        }
        ranges.push((next, Verdict::Always(unknown(rules))));
    }
    if arches.contains(&Arch::X86_64) {
        if !arches.contains(&Arch::X32) {
            ranges.push((X32_BIT, Verdict::Always(Action::KILL_PROCESS)));
        }
        ranges.push((NO_CALL, Verdict::Always(unknown(rules))));
    }
    ranges.sort_by_key(|(start, _)| *start);
    ranges.dedup_by(|later, earlier| later.1 == earlier.1);
    ranges
}

/// The action for calls that are newer than the profile: programs try them and expect ENOSYS if they are missing. They
/// would take any other error for a result (runc does the same).
fn unknown(rules: &Rules) -> Action {
    if rules.default.lets_pass() { rules.default } else { Action::errno(ENOSYS) }
}

/// The calls that have rules. A rule without conditions wins over all with conditions, and an earlier one over later
/// ones (as in libseccomp).
fn verdicts(rules: &Rules, arch: Arch) -> BTreeMap<u32, Verdict> {
    let mut verdicts: BTreeMap<u32, Verdict> = BTreeMap::new();
    for rule in &rules.rules {
        let Some(number) = arch.number(&rule.name) else {
            continue;
        };
        let found = verdicts.entry(number);
        if rule.conditions.is_empty() {
            let always = Verdict::Always(rule.action);
            found
                .and_modify(|verdict| {
                    if matches!(verdict, Verdict::Depends(..)) {
                        *verdict = always.clone();
                    }
                })
                .or_insert(always.clone());
        } else if let Verdict::Depends(cases, _) =
            found.or_insert_with(|| Verdict::Depends(Vec::new(), rules.default))
        {
            cases.push((rule.conditions.clone(), rule.action));
        }
    }
    verdicts
}

/// Finds the range of the loaded call number.
fn search(ranges: &[(u32, Verdict)], narrow: bool) -> Vec<Instruction> {
    let (below, above) = match ranges {
        [] => return vec![plain(RETURN, Action::KILL_PROCESS.0)],
        [(_, verdict)] => return judge(verdict, narrow),
        several => several.split_at(several.len() / 2),
    };
    let split = above.first().map_or(0, |(start, _)| *start);
    let (below, above) = (search(below, narrow), search(above, narrow));
    let mut block = match u8::try_from(below.len()) {
        Ok(far) => vec![branch(NOT_LESS, split, far, 0)],
        Err(_) => vec![branch(NOT_LESS, split, 0, 1), plain(JUMP, length(&below))],
    };
    block.extend(below);
    block.extend(above);
    block
}

fn judge(verdict: &Verdict, narrow: bool) -> Vec<Instruction> {
    match verdict {
        Verdict::Always(action) => vec![plain(RETURN, action.0)],
        Verdict::Depends(cases, otherwise) => {
            let mut block = Vec::new();
            for (conditions, action) in cases {
                block.extend(when(conditions, *action, narrow));
            }
            block.push(plain(RETURN, otherwise.0));
            block
        }
    }
}

/// Returns `action` if all conditions hold, and falls through otherwise.
fn when(conditions: &[Condition], action: Action, narrow: bool) -> Vec<Instruction> {
    let mut block = vec![plain(RETURN, action.0)];
    for condition in conditions.iter().rev() {
        // The profile's parser limits the conditions of a rule, so that this jump is never too long.
        let rest = u8::try_from(block.len()).unwrap_or(u8::MAX);
        let mut test = check(condition, rest, narrow);
        test.extend(block);
        block = test;
    }
    block
}

/// Falls through if `condition` holds, and otherwise skips the next `no` instructions.
fn check(condition: &Condition, no: u8, narrow: bool) -> Vec<Instruction> {
    let low_at = ARGUMENTS + 8 * u32::from(condition.argument);
    let (high, low) = halves(condition.value);
    let (mask_high, mask_low) = halves(match condition.comparison {
        Comparison::MaskedEqual { mask } => mask,
        Comparison::Equal
        | Comparison::NotEqual
        | Comparison::Greater
        | Comparison::GreaterOrEqual
        | Comparison::Less
        | Comparison::LessOrEqual => u64::MAX,
    });
    let mut test = Vec::new();
    if !narrow {
        test.push(plain(LOAD, low_at + 4));
        // Compare the upper halves first; if that decides, the jump skips the comparison of the lower halves.
        match condition.comparison {
            Comparison::Equal => test.push(branch(EQUAL, high, 0, 2 + no)),
            Comparison::NotEqual => test.push(branch(EQUAL, high, 0, 2)),
            Comparison::MaskedEqual { .. } => {
                test.push(plain(AND, mask_high));
                test.push(branch(EQUAL, high, 0, 3 + no));
            }
            Comparison::Greater | Comparison::GreaterOrEqual => {
                test.push(branch(GREATER, high, 3, 0));
                test.push(branch(EQUAL, high, 0, 2 + no));
            }
            Comparison::Less | Comparison::LessOrEqual => {
                test.push(branch(GREATER, high, 3 + no, 0));
                test.push(branch(EQUAL, high, 0, 2));
            }
        }
    }
    test.push(plain(LOAD, low_at));
    if matches!(condition.comparison, Comparison::MaskedEqual { .. }) {
        test.push(plain(AND, mask_low));
    }
    test.push(match condition.comparison {
        Comparison::Equal | Comparison::MaskedEqual { .. } => branch(EQUAL, low, 0, no),
        Comparison::NotEqual => branch(EQUAL, low, no, 0),
        Comparison::Greater => branch(GREATER, low, 0, no),
        Comparison::GreaterOrEqual => branch(NOT_LESS, low, 0, no),
        Comparison::Less => branch(NOT_LESS, low, no, 0),
        Comparison::LessOrEqual => branch(GREATER, low, no, 0),
    });
    test
}

#[allow(clippy::cast_possible_truncation, reason = "halves are what is wanted")]
pub(super) fn halves(value: u64) -> (u32, u32) {
    ((value >> 32) as u32, value as u32)
}

#[cfg(test)]
mod tests;
