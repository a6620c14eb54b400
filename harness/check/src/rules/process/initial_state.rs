//! Rules for the initial state of a container's process: umask, signals, open files, environment, `/dev`, `/sys` and default
//! capabilities.

use compact::Set;

use crate::prelude::*;
use crate::rules::content::{image, script};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-PRC-013": "Container commands and ExecSync commands start with umask 0022, no blocked or ignored signals, and only the three standard streams open.",
        CONTAINERD, tags ["process", "leaks"], calls [CreateContainer, ExecSync],
        command_starts_with_clean_state given [namespaces, pod], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"umask 077; umask; sleep 1000\"]",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"trap '' USR1; umask; cat /proc/self/status; echo; ls /proc/self/fd; echo end; sleep 1000\"]",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"exec 7<>/dev/null; umask; cat /proc/self/status; echo; ls /proc/self/fd; echo end; sleep 1000\"]",
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"exec 7<>/dev/null; umask; cat /proc/self/status; echo; ls /proc/self/fd\"]",
        ];
    Should "CRI-CFG-018": "PATH, HOME and, in a container with a terminal, TERM are set even if neither the image nor the configuration sets these variables.",
        CONTAINERD, tags ["process"], calls [CreateContainer],
        usual_variables_are_set given [namespaces], faults [
            "CreateContainer request drop config.tty",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"unset PATH; /bin/cat /proc/self/environ\"]",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"unset HOME; /bin/cat /proc/self/environ\"]",
        ];
    Must "CRI-CFG-019": "CreateContainer accepts 200 KiB of environment variables and passes them to the process unchanged: values from ConfigMaps are often long.",
        KUBELET, tags ["kubelet", "process", "input"], calls [CreateContainer],
        long_variables_are_whole, faults [
            "CreateContainer request drop config.envs",
            "CreateContainer answer RESOURCE_EXHAUSTED",
        ];
    Must "CRI-MNT-010": "/dev has the standard devices with mode 0666, the symlinks to the standard streams, /dev/ptmx, /dev/pts and /dev/shm.",
        CRITEST, tags ["devices", "files"], calls [CreateContainer],
        usual_devices_are_there given [namespaces], faults [
            "CreateContainer request set config.mounts [{\"container_path\": \"/dev/null\", \"host_path\": \"/etc/passwd\"}]",
            "CreateContainer request set config.mounts [{\"container_path\": \"/dev/zero\", \"host_path\": \"/dev/null\"}]",
            "CreateContainer request set config.mounts [{\"container_path\": \"/dev/pts\", \"host_path\": \"/usr\", \"readonly\": true}]",
            "CreateContainer request set config.mounts [{\"container_path\": \"/dev/shm\", \"host_path\": \"/usr\", \"readonly\": true}]",
        ];
    Must "CRI-MNT-011": "An unprivileged container has its own /proc and a read-only /sys.",
        CRITEST, tags ["files"], calls [CreateContainer],
        kernel_is_shown_read_only given [namespaces], faults [
            "CreateContainer request set config.mounts [{\"container_path\": \"/sys\", \"host_path\": \"/sys\"}]",
            "CreateContainer request set config.mounts [{\"container_path\": \"/proc\", \"host_path\": \"/usr\", \"readonly\": true}]",
        ];
    Must "CRI-SEC-014": "A container without capability settings has the usual default capabilities, and no powerful ones such as SYS_ADMIN.",
        API, tags ["kubelet"], calls [CreateContainer],
        usual_capabilities_are_there given [namespaces], faults [
            "CreateContainer request set config.linux.security_context.privileged true",
            "CreateContainer request set config.linux.security_context.capabilities {\"add_capabilities\": [\"SYS_ADMIN\"]}",
            "CreateContainer request set config.linux.security_context.capabilities {\"add_capabilities\": [\"SYS_PTRACE\"]}",
            "CreateContainer request set config.linux.security_context.capabilities {\"drop_capabilities\": [\"CHOWN\"]}",
        ];
    Must "CRI-SEC-015": "A container cannot open host devices that its configuration does not list, even through a device node that it creates.",
        API, tags ["devices", "resources"], calls [CreateContainer],
        other_devices_are_not_opened given [users, limits], faults [
            "CreateContainer request set config.linux.security_context.privileged true",
        ];
};

/// Prints the umask, the signals and the open files.
const PRINT_INITIAL_STATE: &str = "umask; cat /proc/self/status; echo; ls /proc/self/fd";
/// The signals 1 to 31 except SIGPIPE, which some monitors ignore; libraries reserve some of the higher signals.
const STANDARD: u64 = 0x7fff_ffff & !(1 << 12);

/// A command without a shell.
const CAT_STATUS: [&str; 2] = ["/bin/cat", "/proc/self/status"];

/// Fails if a process has blocked or ignored signals.
fn no_signals(what: &str, text: &str) -> Verdict {
    for name in ["SigBlk", "SigIgn"] {
        let signals = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
        let signals = signals.map(|signals| signals & STANDARD);
        equal(&format!("{name} of {what}"), &signals, &Some(0))?;
    }
    Ok(())
}

fn expect_initial_state(what: &str, text: &str) -> Verdict {
    let mask = text.lines().next().unwrap_or_default();
    let mask = mask.trim_start_matches('0');
    equal(&format!("the umask of {what}"), mask, "22")?;
    no_signals(what, text)?;
    let files = text.lines().skip_while(|line| !line.is_empty()).skip(1);
    let mut files: Set<u32> = files.filter_map(|file| file.trim().parse().ok()).collect();
    let streams = [0, 1, 2].iter().all(|stream| files.remove(stream));
    // ls opens the directory that it lists.
    let expected = "0, 1, 2 and the listed directory";
    ensure(streams && files.len() <= 1, &format!("the open files of {what}"), expected, text)
}

async fn command_starts_with_clean_state(x: &Context, pod: Pod) -> Verdict {
    let config = x.script("c", &format!("{PRINT_INITIAL_STATE}; echo end; sleep 1000"));
    let id = pod.start(config).await?;
    x.logged(&pod, "end").await?;
    let lines = x.lines(&pod).into_iter().map(|line| line.text + "\n");
    expect_initial_state("the container's command", &lines.collect::<String>())?;
    let text = x.client.sh(&id, PRINT_INITIAL_STATE).await?;
    expect_initial_state("a command of ExecSync", &text)?;
    // A shell resets some of this state for its children; these commands run without a shell.
    let mut config = x.script("d", "");
    config.command = CAT_STATUS.map(str::to_owned).into();
    config.log_path = "c.log".to_owned();
    let other = x.pod().await?;
    let of_container = x.output_in(&other, config).await?;
    no_signals("a container's command without a shell", &of_container)?;
    let answer = x.client.exec(&id, CAT_STATUS, 30).await?;
    let of_command = String::from_utf8_lossy(&answer.stdout).into_owned();
    no_signals("a command of ExecSync without a shell", &of_command)
}

async fn usual_variables_are_set(x: &Context) -> Verdict {
    let image = image(x, "1", |image| image).await?;
    for tty in [false, true] {
        let mut config = script(x, &image, "/bin/cat /proc/self/environ");
        config.tty = tty;
        let output = x.output(config).await?;
        let has = |name: &str, value: &str| {
            let mut all = output.split('\0').filter_map(|pair| pair.split_once('='));
            all.any(|(of, is)| of == name && is.starts_with(value))
        };
        ensure(has("PATH", "/"), "PATH", "directories", &output)?;
        ensure(has("HOME", "/"), "HOME", "a directory", &output)?;
        if tty {
            ensure(has("TERM", "xterm"), "TERM", "xterm", &output)?;
        }
    }
    Ok(())
}

async fn long_variables_are_whole(x: &Context) -> Verdict {
    // The kernel accepts at most 128 KiB per variable.
    const LENGTH: usize = 100 << 10;
    let mut config = x.script("c", "echo \"$FIRST\"; echo \"$SECOND\"");
    let mut expected = String::new();
    for (key, part) in [("FIRST", "a long value, "), ("SECOND", "another one, ")] {
        let value: String = part.chars().cycle().take(LENGTH).collect();
        expected += &format!("{value}\n");
        config.envs.push(v1::KeyValue { key: key.to_owned(), value: value.into() });
    }
    let output = x.output(config).await?;
    let bytes = format!("{} bytes in order", expected.len());
    ensure(output == expected, "the variables", &bytes, format!("{} bytes", output.len()))
}

/// Character devices and their numbers.
const DEVICES: &[(&str, &str)] = &[
    ("null", "1:3"),
    ("zero", "1:5"),
    ("full", "1:7"),
    ("random", "1:8"),
    ("urandom", "1:9"),
    ("tty", "5:0"),
];

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, Copy)]
struct Mounted<'a> {
    id: &'a str,
    /// The id of the mount that it covers, or that it is below.
    parent: &'a str,
    options: &'a str,
    kind: &'a str,
    /// The options of its file system.
    super_options: &'a str,
}

/// The visible mount at a path: of several mounts, the one that no other mount covers.
fn mounted<'a>(text: &'a str, path: &str) -> Option<Mounted<'a>> {
    let parse = |line: &'a str| {
        let mut fields = line.split(' ');
        let (id, parent) = (fields.next()?, fields.next()?);
        (fields.nth(2)? == path).then_some(())?;
        let options = fields.next()?;
        let mut rest = fields.skip_while(|field| *field != "-").skip(1);
        Some(Mounted { id, parent, options, kind: rest.next()?, super_options: rest.nth(1)? })
    };
    let all: Vec<Mounted<'_>> = text.lines().filter_map(parse).collect();
    let covered = |mount: &&Mounted<'_>| all.iter().any(|other| other.parent == mount.id);
    all.iter().find(|mount| !covered(mount)).copied()
}

async fn usual_devices_are_there(x: &Context) -> Verdict {
    // ls prints a device as its type and mode, its links, its owners, and its numbers with a comma.
    let text = "cd /dev; ls -lL null zero full random urandom tty | while read -r mode links user group major minor rest; do
        echo ${mode%[.+]} ${major%,}:$minor ${rest##* }; done
        for name in fd stdin stdout stderr; do [ -L $name ] && echo link $name; done
        [ -c ptmx ] && echo device ptmx; echo; cat /proc/self/mountinfo";
    let output = x.output(x.script("c", text)).await?;
    let has = |line: &str| output.lines().any(|have| have == line);
    for (name, numbers) in DEVICES {
        let line = format!("crw-rw-rw- {numbers} {name}");
        ensure(has(&line), &format!("/dev/{name}"), &format!("{line:?}"), &output)?;
    }
    for name in ["fd", "stdin", "stdout", "stderr"] {
        let there = has(&format!("link {name}"));
        ensure(there, &format!("/dev/{name}"), "a link", &output)?;
    }
    ensure(has("device ptmx"), "/dev/ptmx", "a device", &output)?;
    for (path, expected) in [("/dev/pts", "devpts"), ("/dev/shm", "tmpfs")] {
        let kind = mounted(&output, path).map(|mount| mount.kind);
        let what = format!("the file system at {path}");
        equal(&what, &kind, &Some(expected))?;
    }
    Ok(())
}

async fn kernel_is_shown_read_only(x: &Context) -> Verdict {
    let output = x.output(x.script("c", "cat /proc/self/mountinfo")).await?;
    let kind = mounted(&output, "/proc").map(|mount| mount.kind);
    equal("the file system at /proc", &kind, &Some("proc"))?;
    let mount = present(mounted(&output, "/sys"), "/sys", "to be mounted", output.as_str())?;
    let read_only = [mount.options, mount.super_options]
        .iter()
        .any(|options| options.split(',').any(|option| option == "ro"));
    ensure(read_only, "the mount of /sys", "read-only", output)
}

/// The bits of the capabilities that all runtimes grant by default: CHOWN, `DAC_OVERRIDE`, FOWNER, FSETID, KILL, SETGID, SETUID,
/// SETPCAP and `NET_BIND_SERVICE`.
const ALWAYS: u64 = 0x5fb;
/// The bits of the capabilities that some runtimes grant in addition: `NET_RAW`, `SYS_CHROOT`, MKNOD, `AUDIT_WRITE` and SETFCAP.
const SOMETIMES: u64 = 1 << 13 | 1 << 18 | 1 << 27 | 1 << 29 | 1 << 31;

async fn usual_capabilities_are_there(x: &Context) -> Verdict {
    let text = x.output(x.script("c", "cat /proc/self/status")).await?;
    for name in ["CapPrm", "CapEff", "CapBnd"] {
        let set = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        let set = present(set, "/proc/self/status", format!("the line {name}"), text.as_str())?;
        let usual = set & ALWAYS == ALWAYS && set & !(ALWAYS | SOMETIMES) == 0;
        let expected = format!("{ALWAYS:x}, and at most {SOMETIMES:x} in addition");
        ensure(usual, name, &expected, format!("{set:x}"))?;
    }
    Ok(())
}

async fn other_devices_are_not_opened(x: &Context) -> Verdict {
    // /dev/kmsg, /dev/loop-control and /dev/loop0: most machines have one of them.
    let text = "command -v mknod >/dev/null || { echo no mknod; exit; }
        for device in c:1:11 c:10:237 b:7:0; do
            kind=${device%%:*}; minor=${device##*:}; major=${device#*:}; major=${major%:*}
            mknod /dev/$device $kind $major $minor 2>/dev/null || echo not made
            (: </dev/$device) 2>/dev/null && echo opened $device
        done; echo end";
    let mut config = x.script("c", text);
    let capabilities = fixture::security(&mut config).capabilities.get_or_insert_default();
    capabilities.add_capabilities = vec!["MKNOD".to_owned()];
    let output = x.output(config).await?;
    if output == "no mknod\n" {
        return skipped("the image has no mknod");
    }
    let opened: Vec<&str> = output.lines().filter(|line| line.starts_with("opened")).collect();
    equal("devices that a container opened", &opened, &Vec::<&str>::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_that_is_seen_covers_others() {
        let text = "20 1 0:5 / /sys rw - ext4 /dev/x rw\n10 1 0:6 / /a ro,nodev master:1 - tmpfs none rw,size=1k\n\
            15 20 0:7 / /sys ro - sysfs none rw\n";
        let seen = |path| mounted(text, path).map(|mount| (mount.kind, mount.options));
        assert_eq!(seen("/sys"), Some(("sysfs", "ro")));
        assert_eq!(seen("/a"), Some(("tmpfs", "ro,nodev")));
        assert_eq!(seen("/none"), None);
    }
}
