//! Wire types (`cri::v1`), which only the agent's CRI client may name.

use std::collections::BTreeSet;
use std::path::Path;

use super::code::{code_only, lines_naming};
use super::{Tree, must_be_none, rust, tree, tree_of};

/// The only modules of the agent that name wire types.
const AGENT_WIRE: [&str; 2] = ["agent/src/cri/grpc", "agent/src/cri/wire"];

fn wire_types_outside_the_client(tree: &Tree) -> Vec<String> {
    let mut offences = Vec::new();
    for (path, text) in rust(tree) {
        let module = path.trim_end_matches(".rs");
        let allowed = |place: &&str| Path::new(module).starts_with(place);
        if !path.starts_with("agent/") || AGENT_WIRE.iter().any(allowed) {
            continue;
        }
        let code = code_only(text);
        // `cri::` after a space or a semicolon is the contract's package: the agent's own module is `crate::cri`.
        for name in ["cri::v1", "use cri::", "use ::cri", "(::cri", " ::cri", "<::cri"] {
            let lines = lines_naming(&code, name);
            offences.extend(lines.iter().map(|line| format!("{path}:{line}: {name}")));
        }
    }
    offences
}

#[test]
fn agent_names_wire_types_in_its_client_only() {
    must_be_none("wire types", &wire_types_outside_the_client(&tree()));
}

#[test]
fn wire_types_are_found_outside_the_client() {
    let wire = tree_of(&[
        ("agent/src/decide/plan.rs", "//! x\nuse cri::v1::Pod;\nfn f(_: ::cri::v1::Pod) {}"),
        (
            "agent/src/worker.rs",
            "use cri::{self, v1};\nuse crate::{cri::Cri, x};\nuse super::cri::Y; // cri::v1",
        ),
        ("agent/src/cri/wire.rs", "use cri::v1;"),
        ("runtime-fake/src/wire.rs", "use cri::v1;"),
    ]);
    let places: BTreeSet<String> = wire_types_outside_the_client(&wire)
        .into_iter()
        .map(|offence| offence.rsplit_once(": ").unwrap().0.to_owned())
        .collect();
    let expected =
        ["agent/src/decide/plan.rs:2", "agent/src/decide/plan.rs:3", "agent/src/worker.rs:1"];
    assert_eq!(places, expected.map(str::to_owned).into());
}
