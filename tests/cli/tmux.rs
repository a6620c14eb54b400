//! A terminal for tests: runs `crib` in its own tmux server, and reads the screen.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::process::Command;

use crate::command::*;

/// A window that runs a command, in a place.
pub(crate) struct Terminal<'a> {
    place: &'a Place,
    /// Its own socket, which would remain after the server's exit.
    socket: PathBuf,
}

impl<'a> Terminal<'a> {
    /// Runs `crib` in a window of this size, from a shell that survives Ctrl-C, prints the exit code, and stays.
    pub(crate) async fn start(
        place: &'a Place,
        columns: u16,
        rows: u16,
        variables: &[(&str, &str)],
        args: &[&str],
    ) -> Self {
        let mut words = vec!["env".to_owned()];
        words.extend(variables.iter().map(|(name, value)| format!("{name}={value}")));
        words.push(env!("CARGO_BIN_EXE_crib").to_owned());
        words.extend(args.iter().map(|arg| (*arg).to_owned()));
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        Self::shell(place, columns, rows, &quoted.join(" ")).await
    }

    /// Like [`Self::start`], with a line for the shell.
    pub(crate) async fn shell(place: &'a Place, columns: u16, rows: u16, line: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let terminal = Self { place, socket: place.path(&format!("tmux-{number}")) };
        let script = format!("trap : INT; {line}; echo \"exit code $?\"; exec cat");
        let size = [columns.to_string(), rows.to_string()];
        let start = ["new-session", "-d", "-x", &size[0], "-y", &size[1], &script];
        terminal.tmux(&start).await;
        terminal
    }

    /// Runs a tmux command and returns its output.
    async fn tmux(&self, args: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command
            .args(["-u", "-f", "/dev/null", "-S"])
            .arg(&self.socket)
            .args(args)
            .env("TMPDIR", self.place.path("tmp"))
            .env("SHELL", "/bin/sh")
            .env_remove("TMUX")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null());
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "tmux {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The lines on the screen, without empty lines at its end.
    pub(crate) async fn screen(&self) -> Vec<String> {
        lines(&self.tmux(&["capture-pane", "-p"]).await)
    }

    /// The lines on the screen with their colour sequences.
    pub(crate) async fn colours(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"]).await
    }

    /// The lines on the screen and in its history; lines that the terminal wrapped are joined.
    pub(crate) async fn history(&self) -> Vec<String> {
        lines(&self.tmux(&["capture-pane", "-p", "-J", "-S", "-"]).await)
    }

    /// Waits until `missing` returns false for the screen.
    pub(crate) async fn wait(&self, what: &str, missing: impl Fn(&[String]) -> bool) {
        harness::eventually(WAIT_LIMIT, what, async || {
            let screen = self.screen().await;
            if missing(&screen) { Err(screen) } else { Ok(()) }
        })
        .await;
    }

    pub(crate) async fn resize(&self, columns: u16, rows: u16) {
        let size = [columns.to_string(), rows.to_string()];
        self.tmux(&["resize-window", "-x", &size[0], "-y", &size[1]]).await;
    }

    pub(crate) async fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]).await;
    }

    /// Waits until the command has exited with this code, then closes the window.
    pub(crate) async fn end(self, code: i32) -> Vec<String> {
        let line = format!("exit code {code}");
        self.wait(&line, |screen| !screen.contains(&line)).await;
        let history = self.history().await;
        self.tmux(&["kill-server"]).await;
        history
    }
}

impl Drop for Terminal<'_> {
    /// Kills the server, even if the test has failed.
    fn drop(&mut self) {
        let _ = std::process::Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .arg("kill-server")
            .stderr(Stdio::null())
            .status();
    }
}

fn lines(text: &str) -> Vec<String> {
    let lines = text.trim_end().lines();
    lines.map(|line| line.trim_end().to_owned()).collect()
}
