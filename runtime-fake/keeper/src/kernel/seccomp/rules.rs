//! The action of a filter for each call: a profile, resolved for one container on one machine ◆

use crate::kernel::seccomp::machine::Arch;

/// The kernel's action for a call: a value of `SECCOMP_RET_*` with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Action(pub u32);

impl Action {
    pub(super) const KILL_PROCESS: Self = Self(0x8000_0000);
    pub(super) const KILL_THREAD: Self = Self(0);
    pub(super) const TRAP: Self = Self(0x0003_0000);
    pub(super) const LOG: Self = Self(0x7ffc_0000);
    pub(super) const ALLOW: Self = Self(0x7fff_0000);

    /// The call fails with this errno.
    pub(super) const fn errno(number: u16) -> Self {
        Self(0x0005_0000 | number as u32)
    }

    /// The kernel notifies a tracer, with this number.
    pub(super) const fn trace(number: u16) -> Self {
        Self(0x7ff0_0000 | number as u32)
    }

    /// Whether the call is executed.
    pub(super) fn lets_pass(self) -> bool {
        matches!(self, Self::ALLOW | Self::LOG) || self.0 & 0xffff_0000 == 0x7ff0_0000
    }
}

/// How an argument is compared with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    NotEqual,
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
    /// Equal in the bits of the mask.
    MaskedEqual {
        mask: u64,
    },
}

/// A condition on one of a call's six arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Condition {
    pub argument: u8,
    pub comparison: Comparison,
    pub value: u64,
}

/// The action for a call if all conditions hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub name: String,
    pub action: Action,
    pub conditions: Vec<Condition>,
}

/// All inputs of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rules {
    /// The action for every other call.
    pub default: Action,
    /// The filtered interfaces; a call through another one kills the process.
    pub arches: Vec<Arch>,
    /// In the profile's order.
    pub rules: Vec<Rule>,
    /// `SECCOMP_FILTER_FLAG_*`.
    pub flags: u32,
}
