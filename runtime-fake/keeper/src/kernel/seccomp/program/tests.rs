//! Runs programs in a small BPF interpreter, and compares them with a direct reading of the rules.
#![allow(clippy::unwrap_used, reason = "a test")]

use proptest::prelude::*;
use rstest::rstest;

use crate::kernel::seccomp::{
    default,
    interpret::{self, CallData as Call},
    profile::{self, HostContext},
    program::*,
    rules::Rule,
};

const EPERM: u16 = 1;

/// Runs a program as the kernel does. Panics if the kernel's checker would reject it.
fn run(program: &[Instruction], call: Call) -> Action {
    interpret::run(program, call).unwrap()
}

fn call(arch: Arch, name: &str, arguments: &[u64]) -> Call {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    Call { audit: arch.audit(), number: arch.number(name).unwrap(), arguments: all }
}

fn host(capabilities: &[u8]) -> HostContext<'_> {
    HostContext { native: Arch::X86_64, kernel: (6, 1), capabilities }
}

fn profile(text: &str) -> Vec<Instruction> {
    build(&profile::read(text, host(&[])).unwrap())
}

const DENIED: Action = Action::errno(EPERM);
const NOT_THERE: Action = Action::errno(ENOSYS);

#[rstest]
#[case::plain(&[], Arch::X86_64, "read", &[], Action::ALLOW)]
#[case::of_32_bits(&[], Arch::X86, "socketcall", &[], Action::ALLOW)]
#[case::of_x32(&[], Arch::X32, "ioctl", &[], Action::ALLOW)]
#[case::never(&[], Arch::X86_64, "kexec_load", &[], DENIED)]
#[case::never_of_32_bits(&[], Arch::X86, "kexec_load", &[], DENIED)]
#[case::not_without_the_capability(&[], Arch::X86_64, "mount", &[], DENIED)]
#[case::with_the_capability(&[21], Arch::X86_64, "mount", &[], Action::ALLOW)]
#[case::threads(&[], Arch::X86_64, "clone", &[0x3d_0f00], Action::ALLOW)]
#[case::a_user_namespace(&[], Arch::X86_64, "clone", &[0x1000_0011], DENIED)]
#[case::a_user_namespace_for_an_admin(&[21], Arch::X86_64, "clone", &[0x1000_0011], Action::ALLOW)]
#[case::clone3(&[], Arch::X86_64, "clone3", &[], NOT_THERE)]
#[case::clone3_for_an_admin(&[21], Arch::X86_64, "clone3", &[], Action::ALLOW)]
#[case::linux(&[], Arch::X86_64, "personality", &[0], Action::ALLOW)]
#[case::what_is_it(&[], Arch::X86_64, "personality", &[0xffff_ffff], Action::ALLOW)]
#[case::solaris(&[], Arch::X86_64, "personality", &[0xd], DENIED)]
#[case::internet(&[], Arch::X86_64, "socket", &[2], Action::ALLOW)]
#[case::the_machine_around(&[], Arch::X86_64, "socket", &[40], DENIED)]
#[case::the_machine_around_in_the_lower_half(&[], Arch::X86_64, "socket", &[0x1_0000_0028], DENIED)]
#[case::the_machine_around_of_32_bits(&[], Arch::X86, "socket", &[40], DENIED)]
#[case::ciphers_of_the_kernel(&[], Arch::X86_64, "socket", &[38], DENIED)]
#[case::ciphers_of_the_kernel_in_the_lower_half(&[], Arch::X86_64, "socket", &[0x1_0000_0026], DENIED)]
#[case::ciphers_of_the_kernel_of_32_bits(&[], Arch::X86, "socket", &[38], DENIED)]
#[case::between_both(&[], Arch::X86_64, "socket", &[39], Action::ALLOW)]
#[case::internet_of_32_bits(&[], Arch::X86, "socket", &[2], Action::ALLOW)]
#[case::ptrace(&[], Arch::X86_64, "ptrace", &[], Action::ALLOW)]
#[case::io_uring(&[], Arch::X86_64, "io_uring_setup", &[], DENIED)]
#[case::reboot(&[], Arch::X86_64, "reboot", &[], DENIED)]
#[case::reboot_by_who_may(&[22], Arch::X86_64, "reboot", &[], Action::ALLOW)]
fn default_profile_filters_as_documented(
    #[case] capabilities: &[u8],
    #[case] arch: Arch,
    #[case] name: &str,
    #[case] arguments: &[u64],
    #[case] expected: Action,
) {
    let program = build(&default::rules(host(capabilities)));
    assert!(program.len() < 1500, "{}", program.len());
    assert_eq!(run(&program, call(arch, name, arguments)), expected);
}

#[test]
fn default_profile_covers_architecture_family() {
    let program = build(&default::rules(HostContext { native: Arch::Aarch64, ..host(&[]) }));
    assert_eq!(run(&program, call(Arch::Aarch64, "read", &[])), Action::ALLOW);
    assert_eq!(run(&program, call(Arch::Arm, "open", &[])), Action::ALLOW);
    assert_eq!(run(&program, call(Arch::Aarch64, "mount", &[])), DENIED);
    assert_eq!(run(&program, call(Arch::X86_64, "read", &[])), Action::KILL_PROCESS);
}

/// Every name of the default profile is a call of some interface: a misspelt one would have no effect.
#[test]
fn default_profile_names_existing_calls_only() {
    let arches = [Arch::X86_64, Arch::X86, Arch::Aarch64, Arch::Arm];
    let all: Vec<u8> = (0..41).collect();
    let unknown: Vec<String> = default::rules(host(&all))
        .rules
        .into_iter()
        .map(|rule| rule.name)
        .filter(|name| arches.iter().all(|arch| arch.number(name).is_none()))
        .collect();
    assert_eq!(unknown, Vec::<String>::new());
}

#[test]
fn calls_newer_than_profile_return_enosys() {
    let strict = profile(
        r#"{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read","chmod"],"action":"SCMP_ACT_ALLOW"}]}"#,
    );
    let number = |number| Call { number, ..call(Arch::X86_64, "read", &[]) };
    assert_eq!(run(&strict, number(0)), Action::ALLOW);
    assert_eq!(run(&strict, number(1)), DENIED);
    assert_eq!(run(&strict, number(90)), Action::ALLOW);
    assert_eq!(run(&strict, number(91)), NOT_THERE);
    assert_eq!(run(&strict, number(100_000)), NOT_THERE);
    assert_eq!(run(&strict, number(NO_CALL)), NOT_THERE);
    // The profile names neither x32 nor 32-bit programs.
    assert_eq!(run(&strict, number(X32_BIT)), Action::KILL_PROCESS);
    assert_eq!(run(&strict, call(Arch::X86, "read", &[])), Action::KILL_PROCESS);
    let lax = profile(
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chmod"],"action":"SCMP_ACT_ERRNO","errnoRet":13}]}"#,
    );
    assert_eq!(run(&lax, number(90)), Action::errno(13));
    assert_eq!(run(&lax, number(100_000)), Action::ALLOW);
}

#[test]
fn unconditional_rule_wins_then_first_match() {
    let rule = |action, value: Option<u64>| Rule {
        name: "read".to_owned(),
        action,
        conditions: value.map_or_else(Vec::new, |value| {
            vec![Condition { argument: 0, comparison: Comparison::Equal, value }]
        }),
    };
    let with = |rules: Vec<Rule>| {
        build(&Rules { default: Action::TRAP, arches: vec![Arch::X86_64], rules, flags: 0 })
    };
    let read = |value| call(Arch::X86_64, "read", &[value]);
    for order in [[0, 1], [1, 0]] {
        let both = [rule(Action::LOG, Some(1)), rule(Action::ALLOW, None)];
        let program = with(order.map(|at: usize| both[at].clone()).to_vec());
        assert_eq!(run(&program, read(1)), Action::ALLOW);
    }
    let program = with(vec![rule(Action::LOG, None), rule(Action::ALLOW, None)]);
    assert_eq!(run(&program, read(1)), Action::LOG);
    let program = with(vec![rule(Action::LOG, Some(1)), rule(Action::ALLOW, Some(1))]);
    assert_eq!(run(&program, read(1)), Action::LOG);
    assert_eq!(run(&program, read(2)), Action::TRAP);
}

fn holds(condition: &Condition, arguments: &[u64; 6], narrow: bool) -> bool {
    let cut = |value: u64| if narrow { value & 0xffff_ffff } else { value };
    let (have, want) = (cut(arguments[usize::from(condition.argument)]), cut(condition.value));
    match condition.comparison {
        Comparison::NotEqual => have != want,
        Comparison::Less => have < want,
        Comparison::LessOrEqual => have <= want,
        Comparison::Equal => have == want,
        Comparison::GreaterOrEqual => have >= want,
        Comparison::Greater => have > want,
        Comparison::MaskedEqual { mask } => have & cut(mask) == want,
    }
}

/// Numbers that are often equal, in both halves.
fn word() -> impl Strategy<Value = u64> {
    (0..3_u64, 0..3_u64).prop_map(|(high, low)| high << 32 | low)
}

fn condition() -> impl Strategy<Value = Condition> {
    let comparison = prop_oneof![
        Just(Comparison::NotEqual),
        Just(Comparison::Less),
        Just(Comparison::LessOrEqual),
        Just(Comparison::Equal),
        Just(Comparison::GreaterOrEqual),
        Just(Comparison::Greater),
        word().prop_map(|mask| Comparison::MaskedEqual { mask }),
    ];
    (0..6_u8, comparison, word()).prop_map(|(argument, comparison, value)| Condition {
        argument,
        comparison,
        value,
    })
}

proptest! {
    /// For any rules on a few calls, the program returns what a direct reading of the rules returns.
    #[test]
    fn program_agrees_with_rule_interpreter(
        rules in prop::collection::vec(
            (0..4_usize, prop::collection::vec(condition(), 0..4), 1..9_u16),
            0..12,
        ),
        asked in 0..4_usize,
        arguments in prop::array::uniform6(word()),
        arch in prop_oneof![Just(Arch::X86_64), Just(Arch::X86), Just(Arch::X32)],
    ) {
        const NAMES: [&str; 4] = ["read", "write", "chmod", "mseal"];
        let rules: Vec<Rule> = rules
            .into_iter()
            .map(|(name, conditions, errno)| Rule {
                name: NAMES[name].to_owned(),
                action: Action::errno(errno),
                conditions,
            })
            .collect();
        let name = NAMES[asked];
        let own = || rules.iter().filter(|rule| rule.name == name);
        let always = own().find(|rule| rule.conditions.is_empty());
        let narrow = arch.is_narrow();
        let first = own().find(|rule| {
            rule.conditions.iter().all(|one| holds(one, &arguments, narrow))
        });
        let expected = always.or(first).map_or(Action::ALLOW, |rule| rule.action);
        let all = Rules {
            default: Action::ALLOW,
            arches: vec![Arch::X86_64, Arch::X86, Arch::X32],
            rules: rules.clone(),
            flags: 0,
        };
        prop_assert_eq!(run(&build(&all), call(arch, name, &arguments)), expected);
    }
}
