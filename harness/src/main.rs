//! The `crib` command.
fn main() {}
