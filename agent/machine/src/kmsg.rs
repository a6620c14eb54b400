//! OOM kills, read from the kernel log `/dev/kmsg`.
//!
//! Source: cAdvisor 0.56, utils/oomparser/oomparser.go; kernel documentation, ABI/testing/dev-kmsg.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;

use agent::machine::OomKill;
use tokio::sync::mpsc;

/// The kernel log of this machine.
pub const KMSG: &str = "/dev/kmsg";

/// The maximum length of a record (CONSOLE_EXT_LOG_MAX).
const RECORD: usize = 8192;

/// Reads OOM kills from the kernel log and sends them. The thread ends when the receiver is dropped.
///
/// # Errors
/// If the log cannot be opened: without CAP_SYSLOG, if the sysctl kernel.dmesg_restrict is 1, or in a container.
pub fn oom_kills(path: &Path) -> io::Result<mpsc::UnboundedReceiver<OomKill>> {
    let mut log = open(path)?;
    let (sender, receiver) = mpsc::unbounded_channel();
    let read = move || {
        let mut parser = OomParser::default();
        let mut text = Vec::new();
        let mut buffer = vec![0; RECORD];
        loop {
            match log.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => text.extend_from_slice(buffer.get(..length).unwrap_or_default()),
                // Records were overwritten before they were read; the next read continues after them.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "failed to read /dev/kmsg; OOM kills are no longer reported");
                    return;
                }
            }
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let killed = parser.line(&String::from_utf8_lossy(&line));
                if killed.is_some_and(|killed| sender.send(killed).is_err()) {
                    return;
                }
            }
            text.truncate(RECORD);
            if sender.is_closed() {
                return;
            }
        }
    };
    thread::Builder::new().name("kmsg".to_owned()).spawn(read)?;
    Ok(receiver)
}

fn open(path: &Path) -> io::Result<File> {
    let kind = path.metadata()?.file_type();
    // A FIFO that is also open for writing has no end of file when another writer closes it.
    let is_pipe = kind.is_fifo();
    let flags = rustix::fs::OFlags::CLOEXEC.bits();
    let flags = i32::try_from(flags).unwrap_or_default();
    let mut log = File::options().read(true).write(is_pipe).custom_flags(flags).open(path)?;
    if kind.is_char_device() {
        // Skip earlier records.
        log.seek(SeekFrom::End(0))?;
    }
    Ok(log)
}

/// ◆ Finds OOM kills in the lines of the log.
#[derive(Debug, Default)]
struct OomParser {
    /// The cgroup of the OOM event whose lines follow.
    open: Option<String>,
}

impl OomParser {
    /// The killed process, if this line completes the report of a kill.
    fn line(&mut self, line: &str) -> Option<OomKill> {
        // Priority, sequence number, timestamp and flags precede the text. Lines that begin with a space continue a record.
        let text = line.split_once(';').map_or(line, |(_, text)| text).trim_end();
        if text.contains("invoked oom-killer:") {
            self.open = Some("/".to_owned());
            return None;
        }
        let cgroup = self.open.as_mut()?;
        if let Some(fields) = text.split_once("oom-kill:constraint=").map(|it| it.1) {
            let field = |name: &str| {
                let mut pairs = fields.split(',').filter_map(|pair| pair.split_once('='));
                pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
            };
            // Without this field, the machine is out of memory, and a later line names the process.
            let cgroup = field("oom_memcg")?;
            let process = field("pid").and_then(|pid| pid.parse().ok()).zip(field("task"));
            self.open = None;
            return Some(OomKill { cgroup, process });
        }
        // The format of kernels before 5.0.
        if let Some((_, limited)) = text.split_once(" killed as a result of limit of ") {
            limited.clone_into(cgroup);
            return None;
        }
        let (_, rest) = text.split_once("Killed process ")?;
        let (pid, rest) = rest.split_once(" (")?;
        let process = pid.parse().ok().zip(rest.split_once(')').map(|(name, _)| name.to_owned()));
        self.open.take().map(|cgroup| OomKill { cgroup, process })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write as _;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const OF_MACHINE: &str = "\
4,899,2435,-;stress invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0
4,900,2436,-;CPU: 1 PID: 100 Comm: stress
6,930,2440,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/x,task=big,pid=71,uid=0
3,931,2441,-;Out of memory: Killed process 71 (big) total-vm:9kB, anon-rss:8kB
";
    const OF_POD: &str = "\
4,899,2435,-;app invoked oom-killer: gfp_mask=0x0, order=0, oom_score_adj=999
6,930,2440,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/kubepods/podu,task_memcg=/kubepods/podu/c,task=app,pid=7,uid=0
3,931,2441,-;Memory cgroup out of memory: Killed process 7 (app) total-vm:9kB
";
    const OF_OLD_KERNEL: &str = "\
4,1,1,-;app invoked oom-killer: gfp_mask=0x0
6,2,2,-;Task in /kubepods/podu/c killed as a result of limit of /kubepods/podu
3,3,3,-;Killed process 8 (a b) total-vm:9kB
";

    fn kill(cgroup: &str, pid: i32, name: &str) -> OomKill {
        OomKill { cgroup: cgroup.to_owned(), process: Some((pid, name.to_owned())) }
    }

    #[rstest]
    #[case::of_machine(OF_MACHINE, vec![kill("/", 71, "big")])]
    #[case::of_pod(OF_POD, vec![kill("/kubepods/podu", 7, "app")])]
    #[case::of_old_kernel(OF_OLD_KERNEL, vec![kill("/kubepods/podu", 8, "a b")])]
    #[case::end_alone("3,3,3,-;Killed process 8 (a) total-vm:9kB\n", vec![])]
    #[case::begin_alone("4,1,1,-;app invoked oom-killer: gfp_mask=0x0\n", vec![])]
    #[case::others("6,1,1,-;eth0: link up\n SUBSYSTEM=net\n", vec![])]
    fn oom_kills_are_parsed(#[case] log: &str, #[case] expected: Vec<OomKill>) {
        let mut parser = OomParser::default();
        let found: Vec<OomKill> = log.lines().filter_map(|line| parser.line(line)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn oom_kills_are_received_as_they_are_logged() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("kmsg");
        let mode = rustix::fs::Mode::from(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(oom_kills(&directory.path().join("none")).is_err());
        let mut kills = oom_kills(&fifo).unwrap();
        for _ in 0..2 {
            // The log must not end when a writer closes it.
            let mut log = File::options().write(true).open(&fifo).unwrap();
            let (first, second) = OF_MACHINE.split_at(150);
            log.write_all(first.as_bytes()).unwrap();
            log.write_all(second.as_bytes()).unwrap();
            drop(log);
            assert_eq!(kills.blocking_recv(), Some(kill("/", 71, "big")));
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_without_a_panic(
            lines in prop::collection::vec("(invoked oom-killer:|oom-kill:constraint=|oom_memcg=/|,|pid=|[0-9]{1,12}|Killed process | \\(|\\)|;| ){0,12}", 0..6),
        ) {
            let mut parser = OomParser::default();
            for line in &lines {
                let _ = parser.line(line);
            }
        }
    }
}
