//! Rules of the settings and files that containers take from their image: command, environment, user, layers.

pub(crate) mod files;
pub(crate) mod removal;

use crate::images::programs;
use crate::prelude::*;
use crate::rules::image::{add, pull};
use crate::rules::security::words;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CNT-001": "Without a command and arguments, the image's Entrypoint runs with its Cmd as arguments.",
        KUBELET, tags ["kubelet", "process"], calls [CreateContainer],
        command_is_that_of_image given [namespaces], faults [
            "CreateContainer request set config.args [\"other\"]",
            "CreateContainer request set config.command [\"/bin/sh\", \"/entry\"]",
        ];
    Must "CRI-CNT-002": "Arguments replace the image's Cmd and keep its Entrypoint; a command replaces Entrypoint and Cmd.",
        KUBELET, tags ["kubelet", "process"], calls [CreateContainer],
        command_replaces_that_of_image given [namespaces], faults [
            "CreateContainer request drop config.args",
            "CreateContainer request drop config.command",
            "CreateContainer after 1 request set config.args [\"from\", \"image\"]",
        ];
    Must "CRI-CNT-003": "The image's environment variables are set, and variables in the configuration override them.",
        KUBELET, tags ["kubelet", "process"], calls [CreateContainer],
        environment_is_that_of_image given [namespaces], faults [
            "CreateContainer request drop config.envs",
            "CreateContainer request set config.envs [{\"key\": \"KEPT\", \"value\": \"eA==\"}]",
        ];
    Must "CRI-CNT-004": "The command runs in the image's working directory, unless the configuration sets a working directory.",
        KUBELET, tags ["kubelet", "process"], calls [CreateContainer],
        directory_is_that_of_image given [namespaces], faults [
            "CreateContainer request set config.working_dir \"/\"",
            "CreateContainer request drop config.working_dir",
        ];
    Must "CRI-CNT-005": "The command runs as the image's user and group unless the configuration sets a user.",
        CRITEST, tags ["kubelet", "user"], calls [CreateContainer],
        user_is_that_of_image given [users], faults [
            "CreateContainer request set config.linux.security_context.run_as_user {\"value\": \"3\"}",
            "CreateContainer request drop config.linux.security_context.run_as_user",
        ];
    Must "CRI-CNT-006": "A file comes from the topmost layer that contains it; whiteouts and opaque directories hide files of the layers below.",
        API, tags ["files"], calls [CreateContainer],
        layers_are_stacked given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"ls /over\"]",
        ];
    Must "CRI-CNT-007": "Files keep the modes of their layer, including set-user-ID and sticky bits, and links keep their targets.",
        API, tags ["files"], calls [CreateContainer],
        modes_and_links_are_kept given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"ls /\"]",
        ];
    Must "CRI-CNT-008": "Without a configured stop signal, StopContainer sends the image's stop signal, and ContainerStatus reports no other stop signal.",
        KUBELET, tags ["kubelet", "signal"], calls [StopContainer, ContainerStatus],
        signal_is_that_of_image("SIGUSR1"), faults [
            "StopContainer request drop timeout",
            "ContainerStatus set status.exit_code 143",
            "ContainerStatus set status.stop_signal \"SIGTERM\"",
        ];
    Should "CRI-CNT-018": "StopContainer sends the image's stop signal even if the image configuration contains a signal number, as some builders write.",
        CONTAINERD, tags ["kubelet", "signal"], calls [StopContainer, ContainerStatus],
        signal_is_that_of_image("10"), faults [
            "StopContainer request drop timeout",
            "ContainerStatus set status.exit_code 143",
            "ContainerStatus set status.stop_signal \"SIGTERM\"",
        ];
    Must "CRI-CNT-009": "A container's writes are not visible in other containers of the same image, nor in the container's next attempt.",
        API, tags ["kubelet", "files"], calls [CreateContainer],
        writes_are_of_one_container given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo mine >/tmp/f; cat /tmp/f\"]",
        ];
    Must "CRI-CNT-010": "ContainerStatus and ListContainers identify the image by a name, digest or id that ImageStatus returns.",
        KUBELET, tags ["kubelet", "names", "echo"], calls [CreateContainer, ContainerStatus, ListContainers, ImageStatus],
        status_names_image given [namespaces], faults [
            "ContainerStatus drop status.image_ref",
            "ContainerStatus set status.image_ref \"sha256:none\"",
            "ImageStatus drop image.repo_digests",
            "ContainerStatus drop status.image",
            "ListContainers set containers.image_ref \"sha256:none\"",
            "ListContainers set containers.image.image \"none\"",
        ];
    Should "CRI-CNT-011": "A missing working directory is created, and a working directory that is a file is refused.",
        CRIO, tags ["files", "process"], calls [CreateContainer],
        working_directory_is_made given [namespaces], faults [
            "CreateContainer request drop config.working_dir",
            "CreateContainer request set config.working_dir \"/tmp\"",
        ];
};

/// A script that prints its arguments.
const ENTRY: &str = "for word; do echo \"$word\"; done\n";

/// Pulls an image with a shell and these layers on top; returns its name.
pub(crate) async fn image(
    x: &Context,
    tag: &str,
    change: impl FnOnce(ImageBuilder) -> ImageBuilder,
) -> Verdict<String> {
    let base = programs(&["sh", "cat", "ls", "id", "sleep", "stat"]);
    let base = base.map_err(|error| Outcome::Skipped(error.to_string()))?;
    let base = base.file("entry", 0o755, ENTRY).directory("work", 0o755);
    let (name, _) = add(x, tag, |image| change(image.layer(base)))?;
    pull(x, &name).await?;
    Ok(name)
}

/// A container that runs the image's own command.
fn of(x: &Context, image: &str) -> v1::ContainerConfig {
    let mut config = x.script("c", "");
    config.command.clear();
    image.clone_into(&mut config.image.get_or_insert_default().image);
    config
}

/// A container of an image that runs a script.
pub(crate) fn script(x: &Context, image: &str, text: &str) -> v1::ContainerConfig {
    let mut config = of(x, image);
    config.command = ["/bin/sh", "-c", text].map(str::to_owned).into();
    config
}

fn with_command(image: ImageBuilder) -> ImageBuilder {
    let image = image.entrypoint(["/bin/sh", "/entry"]);
    image.cmd(["from", "image"])
}

async fn command_is_that_of_image(x: &Context) -> Verdict {
    let image = image(x, "1", with_command).await?;
    x.prints(of(x, &image), "the arguments", "from\nimage\n").await
}

async fn command_replaces_that_of_image(x: &Context) -> Verdict {
    let image = image(x, "1", with_command).await?;
    let mut config = of(x, &image);
    config.args = words(&["given"]);
    x.prints(config, "the arguments", "given\n").await?;
    let mut config = of(x, &image);
    config.command = words(&["/bin/sh", "-c", "echo $# $0", "zero"]);
    x.prints(config, "the output of the command", "0 zero\n").await
}

async fn environment_is_that_of_image(x: &Context) -> Verdict {
    let of_image = ["PATH=/bin:/usr/bin", "KEPT=image", "REPLACED=image"];
    let image = image(x, "1", |image| image.env(of_image)).await?;
    let mut config = script(x, &image, "echo $KEPT $REPLACED $ADDED");
    for (key, value) in [("REPLACED", "given"), ("ADDED", "too")] {
        config.envs.push(v1::KeyValue { key: key.to_owned(), value: value.into() });
    }
    x.prints(config, "the environment", "image given too\n").await
}

async fn directory_is_that_of_image(x: &Context) -> Verdict {
    let image = image(x, "1", |image| image.working_dir("/work")).await?;
    x.prints(script(x, &image, "pwd"), "the working directory", "/work\n").await?;
    let mut config = script(x, &image, "pwd");
    config.working_dir = "/tmp".to_owned();
    x.prints(config, "the working directory", "/tmp\n").await
}

async fn user_is_that_of_image(x: &Context) -> Verdict {
    let image = image(x, "1", |image| image.user("1234:5678")).await?;
    x.prints(script(x, &image, "id -u; id -g"), "user and group", "1234\n5678\n").await?;
    let mut config = script(x, &image, "id -u");
    fixture::security(&mut config).run_as_user = Some(v1::Int64Value { value: 4321 });
    x.prints(config, "the user", "4321\n").await?;
    let mut config = script(x, &image, "id -u");
    fixture::security(&mut config).run_as_user = Some(v1::Int64Value { value: 0 });
    x.prints(config, "the user 0", "0\n").await
}

async fn layers_are_stacked(x: &Context) -> Verdict {
    let below = Layer::new()
        .directory("over", 0o755)
        .file("over/changed", 0o644, "below\n")
        .file("over/removed", 0o644, "below\n")
        .file("over/kept", 0o644, "below\n")
        .directory("over/opaque", 0o755)
        .file("over/opaque/hidden", 0o644, "below\n");
    let above = Layer::new()
        .file("over/changed", 0o644, "above\n")
        .whiteout("over/removed")
        .opaque("over/opaque")
        .file("over/opaque/new", 0o644, "above\n");
    let image = image(x, "1", |image| image.layer(below).layer(above)).await?;
    let text = "cd /over; ls; cat changed kept; ls opaque";
    let output = x.output(script(x, &image, text)).await?;
    let expected = "changed\nkept\nopaque\nabove\nbelow\nnew\n";
    equal("the files", output.as_str(), expected)
}

async fn modes_and_links_are_kept(x: &Context) -> Verdict {
    let layer = Layer::new()
        .directory("kept", 0o1777)
        .file("kept/plain", 0o644, "text\n")
        .file("kept/secret", 0o640, "text\n")
        .file("kept/setuid", 0o4755, "text\n")
        .symlink("kept/symbolic", "plain")
        .hard_link("kept/hard", "kept/plain");
    let image = image(x, "1", |image| image.layer(layer)).await?;
    let text =
        "cd /kept; ls -ld . plain secret setuid hard symbolic | while read mode links rest; do
        echo ${mode%[.+]} $links; done; cat symbolic hard";
    let output = x.output(script(x, &image, text)).await?;
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    // Filesystems count the links of a directory differently.
    lines.retain(|line| !line.starts_with('d'));
    let expected = [
        "-rw-r----- 1",
        "-rw-r--r-- 2",
        "-rw-r--r-- 2",
        "-rwsr-xr-x 1",
        "lrwxrwxrwx 1",
        "text",
        "text",
    ];
    equal("modes, links and content", &lines, &expected.as_slice())?;
    let sticky = output.contains("drwxrwxrwt ");
    equal("whether the directory is sticky", &sticky, &true)
}

async fn signal_is_that_of_image(x: &Context, signal: &str) -> Verdict {
    x.needs_namespaces()?;
    let image = image(x, "1", |image| image.stop_signal(signal)).await?;
    let text = "trap 'exit 10' USR1; trap 'exit 11' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, script(x, &image, text)).await?;
    x.client.stop(&id, 3600).await?;
    let status = x.client.container(&id).await?;
    equal("the exit code", &status.exit_code, &10)?;
    let named = status.stop_signal();
    // Older runtimes do not have the field.
    if named == v1::Signal::RuntimeDefault {
        return Ok(());
    }
    equal("stop_signal in ContainerStatus", &named, &v1::Signal::Sigusr1)
}

async fn writes_are_of_one_container(x: &Context) -> Verdict {
    let image = image(x, "1", |image| image).await?;
    let text = "cat /tmp/f 2>/dev/null; echo mine >/tmp/f; echo end";
    for _ in 0..2 {
        x.prints(script(x, &image, text), "the output of a new container", "end\n").await?;
    }
    let pod = x.pod().await?;
    x.prints_in(&pod, script(x, &image, text), "the output of a new container", "end\n").await?;
    let mut next = script(x, &image, text);
    next.metadata.get_or_insert_default().attempt = 1;
    "next.log".clone_into(&mut next.log_path);
    let id = pod.start(next).await?;
    x.exited(&id).await?;
    let log = std::fs::read(pod.log_directory().join("next.log")).unwrap_or_default();
    let lines = harness::cri_log::lines(&log);
    let lines: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
    equal("the output of the next attempt", &lines, &["end"].as_slice())
}

async fn status_names_image(x: &Context) -> Verdict {
    let name = image(x, "1", |image| image).await?;
    let Some(image) = x.client.image(&name).await? else {
        return equal("the pulled image", &None::<()>, &Some(()));
    };
    let pod = x.pod().await?;
    // By id, like the kubelet.
    let mut config = script(x, &image.id, "exit 0");
    name.clone_into(&mut config.image.get_or_insert_default().user_specified_image);
    let id = pod.create(config).await?;
    let status = x.client.container(&id).await?;
    let of_image = status.image.unwrap_or_default().image;
    let known = [&name, &image.id].contains(&&of_image);
    equal("whether image.image is the name or the id", &(known, &of_image), &(true, &of_image))?;
    let reference = &status.image_ref;
    let known = image.repo_digests.contains(reference) || reference == &image.id;
    let digests = image.repo_digests.len();
    let what = "whether image_ref is a digest or the id, and the number of digests";
    equal(what, &(known, reference, digests), &(true, reference, 1))?;
    let listed = x.listed_container(&id).await?.unwrap_or_default();
    let of_image = listed.image.unwrap_or_default().image;
    let references = [&of_image, &listed.image_ref];
    let known =
        references.map(|one| [&name, &image.id].contains(&one) || image.repo_digests.contains(one));
    let what =
        "whether image.image and image_ref in ListContainers are the name, the id or a digest";
    equal(what, &(known, references), &([true, true], references))
}

async fn working_directory_is_made(x: &Context) -> Verdict {
    let layer = |image: ImageBuilder| image.layer(Layer::new().file("a-file", 0o644, ""));
    let image = image(x, "1", layer).await?;
    let mut config = script(x, &image, "pwd");
    config.working_dir = "/made/for/it".to_owned();
    x.prints(config, "the working directory", "/made/for/it\n").await?;
    let mut config = script(x, &image, "pwd");
    config.working_dir = "/a-file".to_owned();
    let pod = x.pod().await?;
    match pod.create(config).await {
        Ok(id) => refused("StartContainer in a file", x.client.start(&id).await).map(drop),
        answer => refused("CreateContainer in a file", answer).map(drop),
    }
}
