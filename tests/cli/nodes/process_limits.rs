//! Process limits (`ulimit`) that are too low: one line of output, and nothing left behind.

use crate::command::*;
use crate::runs::run::pod;

/// A command of an ordinary user, for whom process limits apply, after `ulimit`. Its outputs are pipes: a limit of file sizes would
/// also apply to files that a test reads.
fn limited(place: &Place, ulimit: &str, args: &[&str]) -> tokio::process::Command {
    place.as_ordinary_user(after_ulimit(place, ulimit, args))
}

fn after_ulimit(place: &Place, ulimit: &str, args: &[&str]) -> tokio::process::Command {
    let crib = place.command(args);
    let mut command = tokio::process::Command::new("bash");
    command.args(["-c", &format!("ulimit {ulimit} && exec \"$@\""), "bash"]);
    command.arg(crib.as_std().get_program()).args(args);
    for (name, value) in crib.as_std().get_envs() {
        command.env(name, value.unwrap());
    }
    command.stdin(std::process::Stdio::null()).kill_on_drop(true);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command
}

#[rstest]
#[case::processes("-u", &[2, 3, 4, 6, 7, 8, 10, 12, 14, 16, 18, 20, 24], "ulimit -u", &["run", "p.yaml"])]
#[case::processes_of_run_in_background("-u", &[2, 3, 8, 16, 24], "ulimit -u", &["run", "p.yaml", "--name", "n"])]
#[case::processes_of_runtime("-u", &[1, 2, 3, 4, 5, 6, 7, 8, 12], "ulimit -u", &["runtime", "--listen", "s", "--state-dir", "state"])]
#[case::threads_of_calls("-u", &[1, 2, 3], "ulimit -u", &["ps"])]
#[case::threads_of_registry("-u", &[1, 2, 3, 4, 5], "ulimit -u", &["registry", "--listen", "127.0.0.1:0"])]
#[case::threads_of_check("-u", &[1, 3], "ulimit -u", &["check", "--runtime-endpoint", "s"])]
#[case::threads_of_bench("-u", &[1, 3], "ulimit -u", &["bench", "--runtime-endpoint", "s"])]
#[case::files("-n", &[4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 32, 64, 128], "ulimit -Hn", &["run", "p.yaml"])]
#[case::files_of_runtime("-n", &[4, 6, 8, 16, 64], "ulimit -Hn", &["runtime", "--listen", "s", "--state-dir", "state"])]
#[case::files_of_calls("-n", &[4, 6, 7, 8, 16, 63], "ulimit -Hn", &["ps"])]
#[case::address_space("-v", &[250_000, 400_000], "ulimit -Hv", &["run", "p.yaml"])]
#[case::data("-d", &[40_000, 100_000], "ulimit -Hd", &["run", "p.yaml"])]
#[case::stack("-s", &[64, 256, 1024], "ulimit -Hs", &["run", "p.yaml"])]
#[case::file_size("-f", &[0, 1, 64], "ulimit -Hf", &["run", "p.yaml"])]
#[tokio::test]
async fn too_low_limit_is_reported_in_one_line(
    #[case] limit: &str,
    #[case] values: &[u32],
    #[case] remedy: &str,
    #[case] args: &[&str],
) {
    let place = Place::new();
    place.file("p.yaml", &pod("p", "echo done"));
    let paths = ["p.yaml", "s", "state"];
    let args: Vec<String> = args
        .iter()
        .map(|arg| match paths.contains(arg) {
            true => place.path(arg).to_str().unwrap().to_owned(),
            false => (*arg).to_owned(),
        })
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    for value in values {
        let ended = place.end(limited(&place, &format!("{limit} {value}"), &args)).await;
        assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{value}: {}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{value}: {}", ended.err);
        ended.err_begins("crib: ");
        ended.err_has(remedy);
        place.assert_clean();
        for made in ["s", "xdg", "data"] {
            assert!(!place.path(made).exists(), "{value}: {made} is left");
        }
    }
}

/// A soft limit is only a default.
#[tokio::test]
async fn soft_limits_that_are_too_low_are_raised() {
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "echo done"));
    let soft = "-Ss 512 && ulimit -Sn 16 && ulimit -Sf 1 && ulimit -Sd 10000";
    let ended = place.end(limited(&place, soft, &["run", "--quiet", &manifest])).await.exits(0);
    assert_eq!(ended.out, "p/main | done\n");
}

/// Otherwise the kernel would kill the runtime, or the keeper with its pod.
#[tokio::test]
async fn log_longer_than_limit_of_files_does_not_end_pod() {
    let place = Place::new();
    let script = "head -c 3000000 /dev/zero | tr '\\\\0' x | fold -w 100; exit 7";
    let manifest = place.file("p.yaml", &pod("p", script));
    let ended = place.end(limited(&place, "-f 1024", &["run", &manifest])).await.exits(1);
    ended.err_has("container main ended with exit code 7");
}

/// Processes of a rootless pod count as its user's, so the runtime and the run cannot start any more either.
#[tokio::test]
async fn run_ends_whose_pod_takes_all_processes_of_its_user() {
    harness::needs!(Root);
    let place = Place::new();
    let bomb = r#"
apiVersion: v1
kind: Pod
metadata: {name: bomb}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: crib.local/host
    command:
    - perl
    - -e
    - |
      $| = 1;
      for (;;) {
          my $child = fork;
          if (!defined $child) { print "exhausted\n" if !$said++; select undef, undef, undef, 0.01; next }
          if (!$child) { sleep 1000 while 1 }
      }
"#;
    let manifest = place.file("p.yaml", bomb);
    // Other tests have no processes of this user.
    let user = 3_000_000 + std::process::id() % 1_000_000;
    let run = after_ulimit(&place, "-u 150", &["run", &manifest]);
    let mut run = Running::start(place.as_user(user, run));
    run.line_with("bomb/main | exhausted").await;
    run.signal(Signal::SIGINT);
    let ended = run.end().await.exits(130);
    assert!(!ended.err.contains("panicked"), "{}", ended.err);
    place.assert_clean();
}
