//! Rules of the files of an image: owners, times, and files that later layers replace.

use crate::prelude::*;
use crate::rules::content::{image, script};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CNT-015": "Files, links and empty directories keep the owners, modes and times of their layer.",
        API, tags ["files"], calls [CreateContainer],
        owners_and_times_are_kept given [users, namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"ls /\"]",
            "CreateContainer request set config.mounts [{\"container_path\": \"/owned\", \"host_path\": \"/usr\", \"readonly\": true}]",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"cd /owned; echo >file; stat -c '%n %a %u:%g %Y' file program empty; stat -c '%n %u:%g' link; ls empty\"]",
        ];
    Must "CRI-CNT-016": "A layer can replace a file, a directory or a symlink (not the symlink's target); a directory that is removed and recreated has no old files.",
        API, tags ["files"], calls [CreateContainer],
        layers_replace_what_was_there given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"ls /\"]",
            "CreateContainer request set config.mounts [{\"container_path\": \"/swap\", \"host_path\": \"/usr\", \"readonly\": true}]",
        ];
};

async fn owners_and_times_are_kept(x: &Context) -> Verdict {
    let layer = Layer::new()
        .directory("owned", 0o755)
        .file("owned/file", 0o640, "text\n")
        .owned_by(1000, 1001)
        .file("owned/program", 0o6755, "text\n")
        .owned_by(1002, 1003)
        .directory("owned/empty", 0o2750)
        .owned_by(7, 8)
        .symlink("owned/link", "nowhere")
        .owned_by(1004, 1005)
        .file("owned/naïve name", 0o600, "kept\n");
    let image = image(x, "1", |image| image.layer(layer)).await?;
    let text = "command -v stat >/dev/null || { echo no stat; exit; }; cd /owned
        stat -c '%n %a %u:%g %Y' file program empty; stat -c '%n %u:%g' link; ls empty; cat 'naïve name'";
    let output = x.output(script(x, &image, text)).await?;
    if output == "no stat\n" {
        return skipped("this machine has no stat program for the image");
    }
    // All entries of a layer have the same time.
    let expected = "file 640 1000:1001 1600000000\n\
        program 6755 1002:1003 1600000000\n\
        empty 2750 7:8 1600000000\n\
        link 1004:1005\n\
        kept\n";
    equal("modes, owners, times, and the content of the last file", output.as_str(), expected)
}

async fn layers_replace_what_was_there(x: &Context) -> Verdict {
    let first = Layer::new()
        .directory("swap", 0o755)
        .file("swap/file", 0o644, "first\n")
        .directory("swap/directory", 0o755)
        .file("swap/directory/below", 0o644, "first\n")
        .file("swap/target", 0o644, "first\n")
        .symlink("swap/link", "target")
        .directory("swap/gone", 0o755)
        .file("swap/gone/old", 0o644, "first\n");
    let second = Layer::new()
        .directory("swap/file", 0o755)
        .file("swap/file/below", 0o644, "second\n")
        .file("swap/directory", 0o644, "second\n")
        .file("swap/link", 0o644, "second\n")
        .whiteout("swap/gone");
    let third = Layer::new().directory("swap/gone", 0o755).file("swap/gone/new", 0o644, "third\n");
    let layers =
        |image: harness::fixture_image::ImageBuilder| image.layer(first).layer(second).layer(third);
    let image = image(x, "1", layers).await?;
    let text = "cd /swap; cat file/below directory link target; [ -L link ] && echo a link; ls gone; cat gone/new";
    let output = x.output(script(x, &image, text)).await?;
    equal("the files", output.as_str(), "second\nsecond\nsecond\nfirst\nnew\nthird\n")
}
