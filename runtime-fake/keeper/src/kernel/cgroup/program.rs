//! Attaches a BPF program that restricts devices to a v2 cgroup (bpf(2)).
#![allow(unsafe_code, reason = "bpf(2) has no safe wrapper")]

use std::{
    ffi::CStr,
    fs::File,
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    path::Path,
};

use crate::kernel::cgroup::device::{DeviceRule, Instruction, program};

/// Commands, types and flags of linux/bpf.h.
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// The kernel also runs the programs of the cgroups above: all have to allow the access.
const ALLOW_MULTI: u32 = 2;
/// The kernel offers some functions only to programs with a GPL licence; this one calls none.
const LICENCE: &CStr = c"Apache-2.0";

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`; the rest may be left out.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// The same for `BPF_PROG_ATTACH`.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: the attributes are a structure that begins as the command's part of `union bpf_attr` does, without
    // padding, their size is passed, and what they point to outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    match RawFd::try_from(result) {
        Ok(fd) if fd >= 0 => Ok(fd),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let fd = bpf(
        PROG_LOAD,
        &Load {
            kind: TYPE_CGROUP_DEVICE,
            count: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
            instructions: instructions.as_ptr().expose_provenance() as u64,
            licence: LICENCE.as_ptr().expose_provenance() as u64,
            log_level: 0,
            log_size: 0,
            log: 0,
            kernel_version: 0,
            flags: 0,
        },
    )?;
    // SAFETY: the kernel has just made this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Checks whether this process may load such programs.
pub(super) fn probe() -> io::Result<()> {
    load(&program(&super::device::usual())).map(drop)
}

/// Restricts the processes in `cgroup` to the devices of `rules`, for the life of the cgroup.
pub(super) fn attach(cgroup: &Path, rules: &[DeviceRule]) -> io::Result<()> {
    let loaded = load(&program(rules))?;
    let directory = File::open(cgroup)?;
    let number = |fd: RawFd| fd.unsigned_abs();
    bpf(
        PROG_ATTACH,
        &Attach {
            target: number(directory.as_raw_fd()),
            program: number(loaded.as_raw_fd()),
            kind: ATTACH_CGROUP_DEVICE,
            flags: ALLOW_MULTI,
        },
    )
    .map(drop)
}
