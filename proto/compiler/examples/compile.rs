//! Writes the compiled contract to a directory. It is an example and not a binary, so that `crib` is the only binary
//! for `cargo run`.

use std::path::Path;
use std::{env, io};

fn main() -> io::Result<()> {
    let into = env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: compile DIR"))?;
    cri_compiler::write(Path::new(&into))
}
