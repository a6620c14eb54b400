//! Links `crib` at a fixed address.
//!
//! A position-independent executable has to be relocated at every start: of the daemon, of the zygote that keepers are forked
//! from, and of each command.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-no-pie");
}
