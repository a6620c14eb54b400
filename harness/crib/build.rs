//! Links `crib` at a fixed address.
//!
//! A keeper runs for each pod, re-executed from this binary. A position-independent executable has to be relocated at
//! every start, and each process then has its own copy of all relocated pages: more memory than everything else that a
//! keeper needs. ARCHITECTURE.md has the figures.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-no-pie");
}
