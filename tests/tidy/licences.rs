//! Dependencies whose licence deny.toml does not allow, or that do not come from a registry.

use std::env;
use std::process::Command;

/// `package version: reason` for every dependency on this platform that deny.toml does not allow.
pub(crate) fn refused(deny: &str) -> Vec<String> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--offline", "--format-version=1"])
        .arg(format!("--filter-platform={}-unknown-linux-gnu", env::consts::ARCH))
        .current_dir(crate::root())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {errors}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 20, "only {} packages", packages.len());
    let allowed = allowed(deny);
    packages.iter().filter_map(|package| refusal(package, &allowed)).collect()
}

/// The licences of `allow = [ … ]`.
fn allowed(deny: &str) -> Vec<&str> {
    let list = deny.split_once("\nallow = [").unwrap().1.split(']').next().unwrap();
    list.split('"').skip(1).step_by(2).collect()
}

fn refusal(package: &serde_json::Value, allowed: &[&str]) -> Option<String> {
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    let reason = match (text("source"), text("license")) {
        ("", "Apache-2.0") => return None,
        ("", licence) => format!("is ours, yet its licence is {licence:?}"),
        (source, _) if !source.starts_with("registry+") => format!("comes from {source}"),
        (_, licence) if !satisfied(licence, allowed) => format!("its licence is {licence:?}"),
        _ => return None,
    };
    Some(format!("{} {}: {reason}", text("name"), text("version")))
}

/// Whether one of the allowed licences, or several together, satisfies an SPDX expression.
///
/// "and" has precedence over "or"; `/` is the old form of "or".
fn satisfied(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest, allowed) && rest.is_empty()
}

fn any(rest: &mut &[&str], allowed: &[&str]) -> bool {
    let mut satisfied = all(rest, allowed);
    while let ["OR", tail @ ..] = *rest {
        *rest = tail;
        satisfied |= all(rest, allowed);
    }
    satisfied
}

fn all(rest: &mut &[&str], allowed: &[&str]) -> bool {
    let mut satisfied = one(rest, allowed);
    while let ["AND", tail @ ..] = *rest {
        *rest = tail;
        satisfied &= one(rest, allowed);
    }
    satisfied
}

fn one(rest: &mut &[&str], allowed: &[&str]) -> bool {
    match *rest {
        ["(", tail @ ..] => {
            *rest = tail;
            let inner = any(rest, allowed);
            let closed = rest.first() == Some(&")");
            *rest = rest.get(1..).unwrap_or_default();
            inner && closed
        }
        [licence, "WITH", exception, tail @ ..] => {
            *rest = tail;
            allowed.contains(&format!("{licence} WITH {exception}").as_str())
        }
        [licence, tail @ ..] => {
            *rest = tail;
            allowed.contains(licence)
        }
        [] => false,
    }
}

#[test]
fn spdx_expressions_are_evaluated() {
    let allowed = ["MIT", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"];
    for yes in [
        "MIT",
        "GPL-3.0-only OR MIT",
        "MIT/Apache-2.0",
        "(GPL-2.0 OR MIT) AND Unicode-3.0",
        "GPL-2.0 AND Zlib OR MIT",
        "Apache-2.0 WITH LLVM-exception OR Apache-2.0",
    ] {
        assert!(satisfied(yes, &allowed), "{yes}");
    }
    for no in [
        "",
        "GPL-3.0-only",
        "MIT AND GPL-3.0-only",
        "(GPL-2.0 OR MIT) AND Zlib",
        "(GPL-2.0 OR Apache-2.0 AND MIT",
        "Apache-2.0",
        "MIT MIT",
    ] {
        assert!(!satisfied(no, &allowed), "{no}");
    }
}

#[test]
fn packages_are_rejected_for_licence_and_source() {
    let package = |source: &str, licence: &str| serde_json::json!({ "name": "x", "version": "1.0.0", "source": source, "license": licence });
    let allowed = allowed("[licenses]\nallow = [\n  \"MIT\",\n  \"ISC\",\n]\n");
    assert_eq!(allowed, ["MIT", "ISC"]);
    assert_eq!(refusal(&package("registry+x", "ISC"), &allowed), None);
    assert_eq!(refusal(&package("", "Apache-2.0"), &allowed), None);
    for (source, licence) in [
        ("registry+x", "GPL-3.0-only"),
        ("registry+x", ""),
        ("git+https://example.org/x", "MIT"),
        ("", "MIT"),
    ] {
        assert!(refusal(&package(source, licence), &allowed).is_some(), "{source} {licence}");
    }
}
