//! Rules of command lookup, of HOME and file capabilities from the image, and of the devices of privileged containers.

use crate::prelude::*;
use crate::rules::content::{image, script};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CFG-020": "A command without a slash is looked up in the container's PATH, for containers and for ExecSync.",
        KUBELET, tags ["kubelet", "process", "probe"], calls [CreateContainer, ExecSync],
        path_is_that_of_container given [namespaces], faults [
            "CreateContainer request drop config.envs",
            "ExecSync request set cmd [\"cat\", \"/opt/own/tool\"]",
            "ExecSync set exit_code 127",
        ];
    Should "CRI-CFG-021": "In containers and ExecSync commands, HOME is the user's home directory from the image's /etc/passwd unless the configuration sets HOME.",
        CONTAINERD, tags ["process", "user"], calls [CreateContainer, ExecSync],
        home_is_that_of_user given [namespaces, users], faults [
            "CreateContainer request drop config.envs",
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"echo /\"]",
            "CreateContainer request drop config.linux.security_context.run_as_user",
        ];
    Must "CRI-SEC-023": "File capabilities of a program in the image apply to a non-root user, unless no_new_privs is set.",
        API, tags ["user", "files"], calls [CreateContainer],
        capabilities_of_files_are_kept given [namespaces, users], faults [
            "CreateContainer request set config.linux.security_context.no_new_privs true",
            "CreateContainer request drop config.linux.security_context.no_new_privs",
            "CreateContainer request set config.linux.security_context.run_as_user {\"value\": \"0\"}",
        ];
    Should "CRI-SEC-024": "A privileged container has the host's devices, and an unprivileged container does not.",
        CONTAINERD, tags ["devices"], calls [CreateContainer],
        privileged_container_has_devices given [namespaces, users], faults [
            "CreateContainer request drop config.linux.security_context.privileged",
            "CreateContainer request set config.linux.security_context.privileged true",
        ];
};

fn variable(key: &str, value: &str) -> v1::KeyValue {
    v1::KeyValue { key: key.to_owned(), value: value.into() }
}

async fn path_is_that_of_container(x: &Context) -> Verdict {
    let tool = "#!/bin/sh\necho \"the tool $1\"; [ $# -gt 1 ] && exec sleep 1000\nexit 0\n";
    let layer = Layer::new().directory("opt/own", 0o755).file("opt/own/tool", 0o755, tool);
    let image = image(x, "1", |image| image.layer(layer)).await?;
    let mut config = script(x, &image, "");
    config.command = ["tool", "starts", "and stays"].map(str::to_owned).into();
    config.envs = vec![variable("PATH", "/no/such/place:/opt/own:/bin:/usr/bin")];
    let pod = x.pod().await?;
    let id = pod.start(config).await?;
    x.logged(&pod, "the tool starts").await?;
    let answer = x.client.exec(&id, ["tool", "probes"], 10).await?;
    let output = String::from_utf8_lossy(&answer.stdout).into_owned();
    equal("the exit code of the probe", &answer.exit_code, &0)?;
    equal("the output of the probe", output.as_str(), "the tool probes\n")
}

async fn home_is_that_of_user(x: &Context) -> Verdict {
    let accounts = "root:x:0:0::/root:/bin/sh\nme:x:1234:1234::/home/me:/bin/sh\n";
    let layer = Layer::new().file("etc/passwd", 0o644, accounts);
    let image = image(x, "1", |image| image.layer(layer)).await?;
    for (home, expected) in [(None, "/home/me"), (Some("/tmp"), "/tmp")] {
        let mut config = script(x, &image, "");
        config.envs.extend(home.map(|home| variable("HOME", home)));
        let linux = config.linux.get_or_insert_default();
        let context = linux.security_context.get_or_insert_default();
        context.run_as_user = Some(v1::Int64Value { value: 1234 });
        config.command = ["/bin/sh", "-c", "echo \"$HOME\"; sleep 1000"].map(str::to_owned).into();
        let pod = x.pod().await?;
        let id = pod.start(config).await?;
        x.logged(&pod, expected).await?;
        let of_command = x.client.sh(&id, "echo \"$HOME\"").await?;
        equal("HOME in ExecSync", of_command.trim(), expected)?;
    }
    Ok(())
}

/// `cap_dac_read_search+ep`, as the kernel stores it with a file: the version and the flag of effective capabilities, the lower
/// half of the permitted and inheritable sets, and the upper one.
const READS_ALL: [u8; 20] = [0x01, 0, 0, 0x02, 0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

async fn capabilities_of_files_are_kept(x: &Context) -> Verdict {
    let cat = Layer::new()
        .host_program("/bin/cat")
        .map_err(|error| Outcome::Skipped(format!("no program for the image: {error}")))?
        .with_attribute("security.capability", &READS_ALL)
        .file("hidden", 0o600, "read\n");
    let image = image(x, "1", |image| image.layer(cat)).await?;
    for (fixed, expected) in [(false, "read\n"), (true, "not read\n")] {
        let text = "cat /hidden 2>/dev/null || echo not read";
        let mut config = script(x, &image, text);
        let linux = config.linux.get_or_insert_default();
        let context = linux.security_context.get_or_insert_default();
        context.run_as_user = Some(v1::Int64Value { value: 1234 });
        context.no_new_privs = fixed;
        // It is not among the default capabilities.
        let capabilities = context.capabilities.get_or_insert_default();
        capabilities.add_capabilities = vec!["DAC_READ_SEARCH".to_owned()];
        let output = x.output(config).await?;
        let what = format!("the output of reading a file of root, with no_new_privs {fixed}");
        equal(&what, output.as_str(), expected)?;
    }
    Ok(())
}

/// A device of most hosts that an unprivileged container does not have.
const DEVICE: &str = "/dev/kmsg";

async fn privileged_container_has_devices(x: &Context) -> Verdict {
    if !std::path::Path::new(DEVICE).exists() {
        return skipped(format!("this machine has no {DEVICE}"));
    }
    for (privileged, expected) in [(true, "there\n"), (false, "not there\n")] {
        let text = format!("[ -c {DEVICE} ] && echo there || echo not there");
        let mut config = x.script("c", &text);
        let mut sandbox = x.sandbox();
        if privileged {
            let linux = sandbox.linux.get_or_insert_default();
            linux.security_context.get_or_insert_default().privileged = true;
        }
        let linux = config.linux.get_or_insert_default();
        linux.security_context.get_or_insert_default().privileged = privileged;
        let pod = x.pod_of(sandbox).await?;
        let output = x.output_in(&pod, config).await?;
        let what = format!("{DEVICE} in a container with privileged {privileged}");
        equal(&what, output.as_str(), expected)?;
    }
    Ok(())
}
