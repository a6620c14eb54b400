//! Finds the interpreter that a program names: PT_INTERP of an ELF file, or the `#!` line of a script ◆
//!
//! The kernel reports ENOENT both for a program and for its interpreter. The file is an image's and may contain anything.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::PathBuf};

/// The kernel reads a script's first line in its first bytes only (BINPRM_BUF_SIZE).
const FIRST_LINE: usize = 256;
/// The longest path of an interpreter, with its NUL (PATH_MAX).
const MAX_PATH: u64 = 4096;
/// The kernel refuses longer tables of program headers.
const MAX_HEADERS: usize = 65536;
/// The type of the program header that locates the interpreter's path.
const PT_INTERP: u64 = 3;

/// Reads up to this many bytes at an offset of a file; fewer at its end, none after an error.
pub(crate) type ReadAt<'a> = &'a dyn Fn(u64, usize) -> Vec<u8>;

/// The positions of the fields that locate the interpreter, in the ELF header and in a program header.
struct Layout {
    /// The size of an address or offset.
    word: usize,
    headers_offset: usize,
    header_size: usize,
    header_count: usize,
    smallest_header: usize,
    offset: usize,
    size: usize,
}

const ELF_32: Layout = Layout {
    word: 4,
    headers_offset: 28,
    header_size: 42,
    header_count: 44,
    smallest_header: 32,
    offset: 4,
    size: 16,
};

const ELF_64: Layout = Layout {
    word: 8,
    headers_offset: 32,
    header_size: 54,
    header_count: 56,
    smallest_header: 56,
    offset: 8,
    size: 32,
};

/// The path of the interpreter that a program names; none if it names none.
pub(crate) fn interpreter(read: ReadAt<'_>) -> Option<PathBuf> {
    let head = read(0, FIRST_LINE);
    let path = match head.strip_prefix(b"#!") {
        Some(line) => of_script(line, head.len() < FIRST_LINE)?.to_vec(),
        None => of_elf(&head, read)?,
    };
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&path)))
}

/// The first word after `#!`. `complete`: whether the file ends with `line`.
fn of_script(line: &[u8], complete: bool) -> Option<&[u8]> {
    let start = line.iter().position(|byte| !matches!(byte, b' ' | b'\t'))?;
    let word = line.get(start..)?;
    match word.iter().position(|byte| matches!(byte, b' ' | b'\t' | b'\n' | 0)) {
        Some(end) => word.get(..end),
        None => complete.then_some(word),
    }
}

/// The path that PT_INTERP locates. The kernel runs files of its own byte order only.
fn of_elf(head: &[u8], read: ReadAt<'_>) -> Option<Vec<u8>> {
    let layout = match head.strip_prefix(b"\x7fELF")?.first()? {
        1 => &ELF_32,
        2 => &ELF_64,
        _ => return None,
    };
    let size = usize::try_from(number(head, layout.header_size, 2)?).ok()?;
    let count = usize::try_from(number(head, layout.header_count, 2)?).ok()?;
    let table = size.checked_mul(count).filter(|length| *length <= MAX_HEADERS)?;
    if size < layout.smallest_header {
        return None;
    }
    let headers = read(number(head, layout.headers_offset, layout.word)?, table);
    let header =
        headers.chunks_exact(size).find(|header| number(header, 0, 4) == Some(PT_INTERP))?;
    let offset = number(header, layout.offset, layout.word)?;
    let length = number(header, layout.size, layout.word).filter(|length| *length <= MAX_PATH)?;
    let path = read(offset, usize::try_from(length).ok()?);
    let end = path.iter().position(|byte| *byte == 0)?;
    path.get(..end).map(<[u8]>::to_vec)
}

/// The number of `size` bytes at `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(size)?)?;
    match size {
        2 => field.try_into().ok().map(|field| u64::from(u16::from_ne_bytes(field))),
        4 => field.try_into().ok().map(|field| u64::from(u32::from_ne_bytes(field))),
        _ => field.try_into().ok().map(u64::from_ne_bytes),
    }
}

/// Reads of a file whose bytes are these.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_from(bytes: &[u8]) -> impl Fn(u64, usize) -> Vec<u8> {
    |offset, length| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        bytes[start..start.saturating_add(length).min(bytes.len())].to_vec()
    }
}

/// An ELF file whose only program header has this type, and whose interpreter's path is these bytes.
#[cfg(any(test, fuzzing))]
pub(crate) fn elf(class: u8, kind: u32, path: &[u8]) -> Vec<u8> {
    let layout = if class == 1 { &ELF_32 } else { &ELF_64 };
    let (table, end) = (64, 64 + layout.smallest_header);
    let mut file = vec![0; end];
    let mut put = |at: usize, number: usize, size: usize| {
        let bytes = match size {
            2 => u16::try_from(number).map(|n| n.to_ne_bytes().to_vec()),
            4 => u32::try_from(number).map(|n| n.to_ne_bytes().to_vec()),
            _ => Ok((number as u64).to_ne_bytes().to_vec()),
        };
        file[at..at + size].copy_from_slice(&bytes.unwrap_or_default());
    };
    put(layout.headers_offset, table, layout.word);
    put(layout.header_size, layout.smallest_header, 2);
    put(layout.header_count, 1, 2);
    put(table, kind as usize, 4);
    put(table + layout.offset, end, layout.word);
    put(table + layout.size, path.len(), layout.word);
    file[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
    file.extend(path);
    file
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rstest::rstest;

    use super::*;

    const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";

    fn of(bytes: &[u8]) -> Option<PathBuf> {
        interpreter(&read_from(bytes))
    }

    #[rstest]
    #[case::plain(b"#!/bin/sh\necho", Some("/bin/sh"))]
    #[case::argument(b"#!/usr/bin/env -S python3\n", Some("/usr/bin/env"))]
    #[case::blanks(b"#! \t /bin/sh\t-e\n", Some("/bin/sh"))]
    #[case::only_line(b"#!/bin/sh", Some("/bin/sh"))]
    #[case::windows_line(b"#!/bin/sh\r\n", Some("/bin/sh\r"))]
    #[case::relative(b"#!bin/sh\n", Some("bin/sh"))]
    #[case::empty(b"", None)]
    #[case::marker_only(b"#!", None)]
    #[case::blank(b"#!   \n", None)]
    #[case::text(b"echo hello\n", None)]
    fn script_names_interpreter(#[case] bytes: &[u8], #[case] expected: Option<&str>) {
        assert_eq!(of(bytes).as_deref(), expected.map(Path::new));
    }

    #[test]
    fn script_line_longer_than_kernel_reads_names_none() {
        let cut = format!("#!/{}\n", "d".repeat(FIRST_LINE));
        assert_eq!(of(cut.as_bytes()), None);
    }

    #[rstest]
    #[case::bits_64(elf(2, 3, LOADER), true)]
    #[case::bits_32(elf(1, 3, LOADER), true)]
    #[case::static_program(elf(2, 1, LOADER), false)]
    #[case::no_such_class(elf(2, 3, LOADER).iter().enumerate().map(|(at, byte)| if at == 4 { 9 } else { *byte }).collect(), false)]
    #[case::path_without_nul(elf(2, 3, b"/lib/ld.so"), false)]
    #[case::empty_path(elf(2, 3, b"\0"), false)]
    #[case::too_long(elf(2, 3, &[b"/".repeat(5000), vec![0]].concat()), false)]
    fn elf_names_interpreter(#[case] bytes: Vec<u8>, #[case] named: bool) {
        let expected = named.then_some(Path::new("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(of(&bytes).as_deref(), expected);
    }

    /// Every offset and size may have any value.
    #[test]
    fn cut_or_changed_elf_names_none_or_a_bounded_path() {
        let whole = elf(2, 3, LOADER);
        for length in 0..whole.len() {
            assert_eq!(of(&whole[..length]), None, "{length}");
        }
        for at in 4..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                let path = of(&changed).unwrap_or_default();
                assert!(path.as_os_str().len() < 4096, "{at} {byte}");
            }
        }
    }

    #[test]
    fn program_of_this_machine_names_its_loader() {
        let bytes = std::fs::read("/proc/self/exe").unwrap_or_default();
        let named = of(&bytes);
        // A static test program has none.
        assert!(named.is_none_or(|path| path.is_absolute() && path.exists()));
    }
}
