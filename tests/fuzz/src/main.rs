//! Searches for inputs that violate a parser's invariants, guided by coverage: libFuzzer with the targets of all packages.
//!
//! `CRIB_FUZZ_TARGET` names the target; arguments are those of libFuzzer. With `CRIB_FUZZ_SEEDS`, the target's valid inputs are
//! written into that directory instead. Without a target, the names of all targets are printed.
#![no_main]

use std::{env, fs, path::Path, process, sync::OnceLock};

use fuzz_target::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<Target> = OnceLock::new();

/// The targets of all packages.
fn targets() -> Vec<Target> {
    [
        api::fuzz::targets(),
        file_copy::fuzz::targets(),
        image::fuzz::targets(),
        keeper::fuzz::targets(),
        network::fuzz::targets(),
        proxy::fuzz::targets(),
        runtime_fake::fuzz::targets(),
        stream::fuzz::targets(),
    ]
    .concat()
}

fn choose() {
    let Ok(name) = env::var("CRIB_FUZZ_TARGET") else {
        for target in targets() {
            println!("{}", target.name);
        }
        process::exit(0);
    };
    let Some(target) = targets().into_iter().find(|target| target.name == name) else {
        eprintln!("no target is named {name}");
        process::exit(2);
    };
    if let Some(directory) = env::var_os("CRIB_FUZZ_SEEDS") {
        for (number, seed) in (target.seeds)().iter().enumerate() {
            let path = Path::new(&directory).join(format!("seed-{number}"));
            fs::write(path, seed).expect("write a seed");
        }
        process::exit(0);
    }
    TARGET.get_or_init(|| target);
}

fuzz_target!(init: choose(), |data: &[u8]| {
    if let Some(target) = TARGET.get() {
        (target.run)(data);
    }
});
