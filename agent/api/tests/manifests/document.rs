//! docs/manifests.md, generated from the table.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use api::manifest::fields::{self, Support, Type};

/// The path of the document.
pub(crate) fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manifests.md")
}

/// The document's text.
pub(crate) fn text(kinds: &[&str]) -> String {
    let mut text = String::from(
        "# Support for each field of a manifest\n\n\
         This page lists every field of the Kubernetes 1.36 kinds that crib reads; [pods.md](pods.md#kinds) describes the effect of each\n\
         kind. `CRIB_UPDATE_DOCS=1 cargo test -p api --test manifests` generates this page from the table that crib uses to check manifests;\n\
         a test compares the table with Kubernetes' types.\n\n\
         *Supported*: the field has the same effect as on a node of a cluster. *No effect*: crib accepts the field, but ignores its value.\n\
         *Warning*: the field does not work as in a cluster, and `crib run` warns about the field. *Refused*: crib reports the field as an\n\
         error and starts no pod. If no pod uses the PersistentVolumeClaim or PersistentVolume that contains a refused field, `crib run` only\n\
         warns. Unknown fields and duplicate keys are also errors, unless `--lenient` is given. With `--lenient`, and in documents that crib\n\
         skips, the last value of a duplicate key applies, as with kubectl, and `crib run` warns.\n\n\
         `localhostProfile` of a seccomp profile is a path relative to the directory in `--seccomp-profile-root`. The default directory is\n\
         `/var/lib/kubelet/seccomp` for root, as on a node, and `$XDG_DATA_HOME/crib/seccomp` for other users. crib reads the profile when it\n\
         creates the container. While the profile's file is missing or incomplete, crib retries, as the kubelet does: another pod may install\n\
         the file. crib also retries while an AppArmor profile is not loaded.\n\n\
         A `hostPath` is a path on this machine, even if it is one of the [paths of a node](pods.md#paths-of-a-node).\n\n",
    );
    writeln!(text, "Kinds: {}, and lists of them.", list(kinds)).unwrap();
    let (whole, others): (Vec<&Type>, Vec<&Type>) =
        fields::types().partition(|known| known.others.is_empty());
    for known in others {
        section(&mut text, known);
    }
    text.push_str("\n## Types whose fields are all supported\n\n| type | fields |\n|---|---|\n");
    for known in whole {
        let names: Vec<&str> = known.done.split_whitespace().collect();
        writeln!(text, "| {} | {} |", known.name, list(&names)).unwrap();
    }
    text + include_str!("repositories.md")
}

fn section(text: &mut String, known: &Type) {
    write!(text, "\n## {}\n\n| field | support |\n|---|---|\n", known.name).unwrap();
    let names: Vec<&str> = known.done.split_whitespace().collect();
    if !names.is_empty() {
        writeln!(text, "| {} | supported |", list(&names)).unwrap();
    }
    for fields in known.others {
        let done = match fields.support {
            Support::Done(remark) => format!("supported: {remark}"),
            Support::NoEffect(missing) => format!("no effect: {missing}"),
            Support::Warned(warning) => format!("warning: {warning}"),
            Support::Refused(reason) => format!("refused: {reason}"),
        };
        let names: Vec<&str> = fields.names.split_whitespace().collect();
        writeln!(text, "| {} | {done} |", list(&names)).unwrap();
    }
}

fn list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}
