//! Fuzz target: the interpreter that a program of an image names.

use fuzz_target::Target;

use crate::kernel::interpreter::{elf, interpreter, read_from};

pub(super) const TARGETS: &[Target] = &[Target::new("interpreter", names, seeds)];

/// A named path is in the file, as it is, and no longer than a path may be.
fn names(data: &[u8]) {
    use std::os::unix::ffi::OsStrExt as _;
    let Some(path) = interpreter(&read_from(data)) else {
        return;
    };
    let path = path.as_os_str().as_bytes();
    assert!(!path.is_empty() && path.len() < 4096 && !path.contains(&0));
    assert!(data.windows(path.len()).any(|window| window == path));
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        b"#!/bin/sh -e\necho hello\n".to_vec(),
        elf(1, 3, b"/lib/ld-linux.so.2\0"),
        elf(2, 3, b"/lib64/ld-linux-x86-64.so.2\0"),
    ]
}
