//! Name resolution in pods of `crib run`, on a host whose name server listens on loopback, like systemd-resolved.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use harness::Netns;
use harness::process::Process;
use tokio::process::Command;

use crate::command::*;
use crate::runs::run::pod;

/// Resolves one name, and prints the queried names.
const NAME_SERVER: &str = r#"
    my $server = IO::Socket::INET->new(Proto => "udp", LocalAddr => "127.0.0.53", LocalPort => 53) or die "bind: $!";
    $| = 1; print "ready\n";
    while ($server->recv(my $query, 512)) {
        my ($name, $at) = ("", 12);
        while (my $length = ord substr($query, $at, 1)) { $name .= substr($query, $at + 1, $length) . "."; $at += $length + 1; }
        print "$name\n";
        my $question = substr($query, 12, $at - 12 + 5);
        my $known = $name eq "known.example.";
        my $answer = pack("a2 n5", $query, $known ? 0x8180 : 0x8183, 1, $known ? 1 : 0, 0, 0) . $question;
        $answer .= pack("n3 N n C4", 0xc00c, 1, 1, 4, 4, 192, 0, 2, 7) if $known;
        $server->send($answer);
    }"#;

/// Queries the pod's name server for the address of each name, and prints the response code and the address.
const CLIENT: &str = r#"perl -MIO::Socket::INET -e '
    open my $conf, "<", "/etc/resolv.conf" or die $!;
    my ($server) = map { /^nameserver (\S+)/ } <$conf>;
    for my $name (@ARGV) {
        my $socket = IO::Socket::INET->new(Proto => "udp", PeerAddr => $server, PeerPort => 53) or die $@;
        $socket->send(pack("n6", 7, 0x100, 1, 0, 0, 0) . join("", map { chr(length $_) . $_ } split(/\./, $name)) . pack("Cnn", 0, 1, 1));
        $socket->recv(my $answer, 512);
        my ($flags, $count) = unpack("x2 n x2 n", $answer);
        print "$name: code ", $flags & 15, $count ? " " . join(".", unpack("C4", substr($answer, -4))) : "", "\n";
    }' known.example unknown.example none.default.svc.cluster.local; getent ahostsv4 known.example | head -n 1"#;

/// Runs `command` in a network namespace, with another resolv.conf.
fn on_host(netns: &Netns, resolv_conf: &str, command: &Command) -> Command {
    let command = command.as_std();
    let mut wrapped = Command::from(netns.command("unshare"));
    wrapped.args(["--mount", "--propagation", "slave", "sh", "-c"]);
    let script = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;
    wrapped.args([script, resolv_conf]);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            wrapped.env(name, value);
        }
    }
    wrapped.stdout(Stdio::piped()).stderr(Stdio::piped());
    wrapped.kill_on_drop(true);
    wrapped
}

#[rstest]
#[tokio::test]
async fn pods_without_services_resolve_names_of_host_and_no_others_of_cluster(
    #[values("root", "rootless")] isolation: &str,
) {
    harness::needs!(Root);
    harness::needs!(..needs_of(isolation));
    let (place, netns) = (Place::unchecked(), Netns::make().unwrap());
    let mut server = netns.command("perl");
    server.args(["-MIO::Socket::INET", "-e", NAME_SERVER]);
    let mut server = Process::spawn(server.stdout(Stdio::piped())).unwrap();
    let mut requested = BufReader::new(server.take_stdout().unwrap()).lines();
    assert_eq!(requested.next().unwrap().unwrap(), "ready");
    let resolv_conf = place.file("resolv.conf", "nameserver 127.0.0.53\n");
    let manifest = place.file("p.yaml", &pod("p", CLIENT));
    let mut command = place.command(&["run", "-q", "--isolation", isolation, &manifest]);
    if isolation == "rootless" {
        command = place.as_ordinary_user(command);
        let mut user = Command::new("setpriv");
        user.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        let crib = command.as_std();
        user.arg(crib.get_program()).args(crib.get_args());
        let variables = crib.get_envs();
        user.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        command = user;
    }
    let ended = place.end(on_host(&netns, &resolv_conf, &command)).await.exits(0);
    let lines: Vec<String> = ended.out.split_whitespace().map(str::to_owned).collect();
    let lines = lines.join(" ");
    let expected = "p/main | known.example: code 0 192.0.2.7 \
                    p/main | unknown.example: code 3 \
                    p/main | none.default.svc.cluster.local: code 3 \
                    p/main | 192.0.2.7 STREAM known.example";
    assert_eq!(lines, expected, "{}", ended.err);
    // Names of the cluster are not forwarded, even names that the resolver forms with its search list.
    drop(server);
    let requested: Vec<String> = requested.map_while(Result::ok).collect();
    assert_eq!(requested, ["known.example.", "unknown.example.", "known.example."]);
    place.assert_clean();
}
