//! Writes the compiled contract to a directory. An example, and not a binary, so that `cargo run` has `crib` alone to run.

use std::path::Path;
use std::{env, io};

fn main() -> io::Result<()> {
    let into = env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: compile DIR"))?;
    cri_compiler::write(Path::new(&into))
}
