//! Rules of Exec beside ExecSync: its command runs as one of ExecSync does, and its stream stays open.

use cri::v1;

use super::image_content::{image, script};
use super::security::rights;
use super::stream::{BOTH_WAYS, OUTPUTS, TERMINAL, ended, read_until, shell};
use crate::check::context::Context;
use crate::check::outcome::{Verdict, ensure, equal, failed};
use crate::check::rule::sources::{CONTAINERD, CRITEST, KUBELET};
use crate::check::rule::{Rule, Severity};
use crate::fixture;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-STR-021",
        severity: Severity::Must,
        says: "Commands of Exec and of ExecSync have the user, the groups, the capabilities, the filter, the environment and the working directory of their container, also those of its image.",
        source: CRITEST,
        tags: &["kubelet", "stream", "exec", "security"],
        calls: &["Exec", "ExecSync"],
        faults: &[
            "Exec drop url",
            "ExecSync drop stdout",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"cd /; cat /proc/self/status; echo of=image-pod; pwd; echo end\"]",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"OF_POD=other; cat /proc/self/status; echo of=$OF_IMAGE-$OF_POD; pwd; echo end\"]",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"echo Uid: 0 0 0 0; echo Gid: 0 0 0 0; echo of=image-pod; pwd; echo end\"]",
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"echo Uid: 0 0 0 0; echo Gid: 0 0 0 0; echo of=image-pod; pwd; echo end\"]",
        ],
        body: |x| Box::pin(commands_are_alike(x)),
    },
    Rule {
        id: "CRI-STR-022",
        severity: Severity::Should,
        says: "The stream of an Exec over which nothing comes for a while stays open: clients keep one for hours.",
        source: KUBELET,
        tags: &["kubelet", "stream"],
        calls: &["Exec"],
        faults: &[
            "Exec drop url",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"echo begin; sleep 3\"]",
        ],
        body: |x| Box::pin(idle_stream_stays_open(x)),
    },
    Rule {
        id: "CRI-STR-023",
        severity: Severity::Must,
        says: "Commands of Exec and of ExecSync in a privileged container have every capability that it has.",
        source: KUBELET,
        tags: &["kubelet", "stream", "exec", "capabilities"],
        calls: &["Exec", "ExecSync"],
        faults: &[
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"echo CapEff: 0; echo end\"]",
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"echo CapEff: 0; echo end\"]",
        ],
        body: |x| Box::pin(commands_are_privileged(x)),
    },
    Rule {
        id: "CRI-STR-024",
        severity: Severity::Should,
        says: "A command of Exec with a terminal has TERM in its environment.",
        source: CONTAINERD,
        tags: &["stream", "tty"],
        calls: &["Exec"],
        faults: &[
            "Exec request drop tty",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"echo term=\"]",
        ],
        body: |x| Box::pin(terminal_has_name(x)),
    },
    Rule {
        id: "CRI-STR-025",
        severity: Severity::Must,
        says: "Standard input of an Exec reaches its command whole, also 5 MB of it.",
        source: KUBELET,
        tags: &["kubelet", "stream"],
        calls: &["Exec"],
        faults: &[
            "Exec request drop stdin",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"head -c 1000000 >/tmp/in; exit 1\"]",
        ],
        body: |x| Box::pin(input_is_whole(x)),
    },
];

/// What tells of the rights, the environment and the directory of a process.
const TELL: &str = "cat /proc/self/status; echo of=$OF_IMAGE-$OF_POD; pwd; echo end";

/// The lines that tell of rights, and those after `of=`.
fn told(text: &str) -> Vec<String> {
    let mut all = rights(text);
    let rest = text.lines().map(str::trim_end);
    let rest = rest.skip_while(|line| !line.starts_with("of="));
    all.extend(rest.map(str::to_owned));
    all
}

async fn commands_are_alike(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    x.needs_users()?;
    let image = image(x, "1", |image| {
        image.user("1234:2345").env(["OF_IMAGE=image"])
    });
    let image = image.await?;
    let mut config = script(x, &image, &format!("{TELL}; while :; do sleep 1000; done"));
    config.working_dir = "/work".to_owned();
    config.envs.push(v1::KeyValue {
        key: "OF_POD".to_owned(),
        value: b"pod".to_vec(),
    });
    let security = fixture::security(&mut config);
    security.no_new_privs = true;
    security.seccomp = Some(v1::SecurityProfile {
        profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
        ..Default::default()
    });
    let capabilities = security.capabilities.get_or_insert_default();
    capabilities.drop_capabilities = ["CHOWN", "KILL"].map(str::to_owned).into();
    let pod = x.pod().await?;
    let id = pod.start(config).await?;
    x.logged(&pod, "end").await?;
    let lines = x.lines(&pod).into_iter().map(|line| line.text + "\n");
    let of_container = told(&lines.collect::<String>());
    let is_user = |line: &String| line.split_whitespace().nth(1) == Some("1234");
    let is_ours = of_container.first().is_some_and(is_user);
    let what = "what the container tells of its own process";
    ensure(is_ours, what, "the user 1234 first", &of_container)?;
    let of_sync = told(&x.client.sh(&id, TELL).await?);
    let what = "what a command of ExecSync tells, beside its container";
    equal(what, &of_sync, &of_container)?;
    let mut command = shell(x, &id, TELL, OUTPUTS).await?;
    let text = read_until(x, &mut command.stdout, "\nend\n").await?;
    let what = "what a command of Exec tells, beside its container";
    equal(what, &told(&text), &of_container)
}

async fn commands_are_privileged(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let mut sandbox = x.sandbox();
    let linux = sandbox.linux.get_or_insert_default();
    linux.security_context.get_or_insert_default().privileged = true;
    let pod = x.pod_of(sandbox).await?;
    let tell = "cat /proc/self/status; echo end";
    let mut config = x.script("c", &format!("{tell}; while :; do sleep 1000; done"));
    fixture::security(&mut config).privileged = true;
    let id = pod.start(config).await?;
    x.logged(&pod, "end").await?;
    let lines = x.lines(&pod).into_iter().map(|line| line.text + "\n");
    let of_container = rights(&lines.collect::<String>());
    let of_sync = rights(&x.client.sh(&id, tell).await?);
    let what = "the rights of a command of ExecSync, beside its privileged container";
    equal(what, &of_sync, &of_container)?;
    let mut command = shell(x, &id, tell, OUTPUTS).await?;
    let text = read_until(x, &mut command.stdout, "end\n").await?;
    let what = "the rights of a command of Exec, beside its privileged container";
    equal(what, &rights(&text), &of_container)
}

async fn terminal_has_name(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let mut command = shell(x, &id, "[ -t 0 ] && echo term=$TERM", TERMINAL).await?;
    let text = read_until(x, &mut command.stdout, "\n").await?;
    let named = text.trim().strip_prefix("term=");
    let has_name = named.is_some_and(|name| !name.is_empty());
    ensure(
        has_name,
        "TERM of a command with a terminal",
        "a name",
        text,
    )
}

async fn input_is_whole(x: &Context) -> Verdict {
    const LENGTH: usize = 5_000_000;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let text = "cat >/tmp/in; set -- $(ls -ln /tmp/in); exit $(($5 / 1000000))";
    let mut command = shell(x, &id, text, BOTH_WAYS).await?;
    let Some(stdin) = command.stdin.take() else {
        return failed("the streams", "standard input", "none");
    };
    let sending = async {
        let piece = bytes::Bytes::from(vec![b'x'; 10_000]);
        for _ in 0..LENGTH / piece.len() {
            if stdin.send(piece.clone()).await.is_err() {
                break;
            }
        }
        stdin.end().await;
    };
    if tokio::time::timeout(x.shared.patience, sending)
        .await
        .is_err()
    {
        return failed("standard input", "to be taken", "no more of it is");
    }
    let ended = ended(x, command).await?;
    let what = "the end of the stream: how many MB the command has read";
    equal(what, &ended, &Ok(5))
}

async fn idle_stream_stays_open(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    // Longer than any time that a server takes for "a moment", and short enough for a check of a minute.
    let text = "echo begin; sleep 12; echo end; exit 3";
    let mut command = shell(x, &id, text, OUTPUTS).await?;
    let output = read_until(x, &mut command.stdout, "end\n").await?;
    equal("the output", output.as_str(), "begin\nend\n")?;
    equal("the end of the stream", &ended(x, command).await?, &Ok(3))
}
