//! docs/manifests.md, written from the table.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use api::manifest::fields::{self, Support, Type};

/// Where the document is.
pub(crate) fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manifests.md")
}

/// The document's text.
pub(crate) fn text(kinds: &[&str]) -> String {
    let mut text = String::from(
        "# What crib does about each field of a manifest\n\n\
         Every field of Kubernetes 1.36 in Pods and their configuration; pods.md has the [other kinds](pods.md#kinds). This page is written by\n\
         `CRIB_UPDATE_DOCS=1 cargo test -p api --test manifests` from the table by which manifests are checked; a test compares\n\
         that table with Kubernetes' types.\n\n\
         A field *has its effect* if it does what it does on a node of a cluster. *No effect* means that the field is accepted,\n\
         and that nothing here depends on it. *A warning* means that it has no effect, and that `crib run` warns. What is\n\
         *refused* is an error: nothing is started; in a PersistentVolumeClaim or a PersistentVolume that no pod uses, \
         `crib run` warns.\n\
         An unknown field, and a key that an object has twice, are errors too, \
         unless `--lenient` is given;\nthen, and in documents that are skipped, the last of equal keys counts, as for kubectl, and `crib run` \
         warns.\n\n`localhostProfile` of a seccomp profile is relative to `/var/lib/kubelet/seccomp` for root, as on a node, and to\n\
         `$XDG_DATA_HOME/crib/seccomp` for others, or to `--seccomp-profile-root`; it is read when the container is created.\n\n\
         [Paths of a node](pods.md#paths-of-a-node) in `hostPath` are those of this machine.\n\n",
    );
    writeln!(text, "Kinds: {}, and lists of them.", list(kinds)).unwrap();
    let (whole, others): (Vec<&Type>, Vec<&Type>) =
        fields::types().partition(|known| known.others.is_empty());
    for known in others {
        section(&mut text, known);
    }
    text.push_str(
        "\n## Types whose fields all have their effect\n\n| type | fields |\n|---|---|\n",
    );
    for known in whole {
        let names: Vec<&str> = known.done.split_whitespace().collect();
        writeln!(text, "| {} | {} |", known.name, list(&names)).unwrap();
    }
    text + include_str!("repositories.md")
}

fn section(text: &mut String, known: &Type) {
    write!(text, "\n## {}\n\n| field | what is done |\n|---|---|\n", known.name).unwrap();
    let names: Vec<&str> = known.done.split_whitespace().collect();
    if !names.is_empty() {
        writeln!(text, "| {} | has its effect |", list(&names)).unwrap();
    }
    for fields in known.others {
        let done = match fields.support {
            Support::Done(remark) => format!("has its effect: {remark}"),
            Support::NoEffect(missing) => format!("no effect: {missing}"),
            Support::Warned(warning) => format!("a warning: {warning}"),
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
