//! Explains why `execve` failed, and names a missing interpreter.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use crate::kernel::failure::{Failure, FailureKind, plain};
use crate::kernel::interpreter::interpreter;
use crate::kernel::seccomp::{Arch, Filter, SystemCall};
use crate::kernel::secure_join::Root;

/// The kernel follows no more interpreters of interpreters.
const MAX_DEPTH: usize = 5;

/// Explains why `execve` of `name`, at the path `file`, failed. Called in the process that called `execve`, with its root, user
/// and seccomp filter.
pub(crate) fn explain(
    name: &str,
    file: &Path,
    error: &io::Error,
    filter: Option<&Filter>,
) -> Failure {
    let reason = match error.raw_os_error() {
        Some(libc::ENOENT) if may_read(filter) && file.exists() => {
            without_interpreter(file, missing_interpreter(file))
        }
        Some(libc::ENOENT) => "no such file or directory in the container's image".to_owned(),
        Some(libc::EACCES) => {
            "permission denied: it is not an executable file for this user".to_owned()
        }
        Some(libc::ENOEXEC) => {
            "not a program for this machine, nor a script with a #! line".to_owned()
        }
        _ => plain(error).to_string(),
    };
    Failure::new(FailureKind::Invalid, format!("exec: {name:?}: {reason}"))
}

/// The first file that exists although `execve` did not find it: its interpreter is missing.
pub(crate) fn first_existing<'a>(
    mut files: impl Iterator<Item = &'a Path>,
    filter: Option<&Filter>,
) -> Option<&'a Path> {
    may_read(filter).then(|| files.find(|file| file.exists()))?
}

fn without_interpreter(file: &Path, missing: Option<(PathBuf, PathBuf)>) -> String {
    let place = "is not in the container's image";
    match missing {
        Some((interpreter, of)) if of == file => format!("its interpreter {interpreter:?} {place}"),
        Some((interpreter, of)) => format!("the interpreter {interpreter:?} of {of:?} {place}"),
        None => format!("its interpreter {place}"),
    }
}

/// Whether the filter lets this process read files: otherwise the filter may kill it.
fn may_read(filter: Option<&Filter>) -> bool {
    let calls = ["statx", "openat", "openat2", "fstat", "newfstatat", "pread64", "getcwd", "close"];
    filter.is_none_or(|filter| {
        let calls = calls.map(|name| SystemCall::new(name, &[]));
        Arch::native().is_some_and(|native| filter.allows(native, &calls))
    })
}

/// The interpreter that is missing, and the file that names it: the program, or the interpreter of one.
fn missing_interpreter(program: &Path) -> Option<(PathBuf, PathBuf)> {
    let root = Root::own().ok()?;
    let mut file = program.to_owned();
    for _ in 0..MAX_DEPTH {
        let opened = root.regular(&absolute(&file)?, true).ok()?;
        let named = interpreter(&|offset, length| read_at(&opened, offset, length))?;
        if root.existing(&absolute(&named)?).ok()?.is_none() {
            return Some((named, file));
        }
        file = named;
    }
    None
}

fn absolute(path: &Path) -> Option<PathBuf> {
    match path.is_absolute() {
        true => Some(path.to_owned()),
        false => Some(std::env::current_dir().ok()?.join(path)),
    }
}

fn read_at(file: &OwnedFd, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let read = rustix::io::pread(file, &mut bytes, offset).unwrap_or(0);
    bytes.truncate(read);
    bytes
}
