//! Pods with a shared PID namespace: confinement of its first process, and of processes that enter it, against a container
//! with SYS_PTRACE.

use cri::v1::{
    Capability, ContainerConfig, NamespaceMode, NamespaceOption, PodSandboxConfig, SecurityProfile,
};

use crate::guard::userns;
use crate::support::*;

/// A pod with a shared PID namespace, and optionally a user namespace.
pub(crate) async fn shared(runtime: &Runtime, own_users: bool) -> Pod {
    let mut config: PodSandboxConfig = runtime.sandbox("p");
    fixture::pod_namespaces(&mut config).pid = NamespaceMode::Pod.into();
    if own_users {
        config = userns::with_user_namespace(runtime, config).await;
    }
    Pod::run(&runtime.client, config).await.unwrap()
}

pub(crate) fn with_shared_pids(
    mut config: ContainerConfig,
    capabilities: &[&str],
) -> ContainerConfig {
    pids(&mut config).pid = NamespaceMode::Pod.into();
    fixture::security(&mut config).capabilities = Some(Capability {
        add_capabilities: capabilities.iter().map(|c| (*c).to_owned()).collect(),
        ..Default::default()
    });
    config
}

fn pids(config: &mut ContainerConfig) -> &mut NamespaceOption {
    fixture::security(config).namespace_options.get_or_insert_default()
}

/// PID 1 of the PID namespace of the process with `mark` in its arguments, as seen from the host.
async fn first_process_beside(mark: &str) -> ObservedProcess {
    let namespace = |process: ObservedProcess| process.namespaces().remove("pid");
    let member = process_of(mark).await;
    let shared = namespace(member);
    let first = procfs::processes().into_iter().find(|process| {
        let ids = process.status("NSpid").unwrap_or_default();
        let same = match (namespace(*process), &shared) {
            (Some(its), Some(shared)) => its == *shared,
            // An ordinary user cannot read namespaces of other users' processes. Both are children of the keeper.
            _ => process.parent() == member.parent(),
        };
        same && ids.split_whitespace().count() > 1 && ids.ends_with("\t1")
    });
    first.expect("a first process of the namespace")
}

#[rstest]
#[tokio::test]
async fn pod_process_is_confined(#[values(false, true)] own_users: bool) {
    harness::needs!(Namespaces);
    if own_users {
        harness::needs!(UserIds);
    }
    let runtime = Runtime::start().await.unwrap();
    let pod = shared(&runtime, own_users).await;
    let mark = fixture::unique("mark");
    let mut config = with_shared_pids(fixture::forever("c"), &[]);
    config.args.push(mark.clone());
    pod.start(config).await.unwrap();
    let first = first_process_beside(&mark).await;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(first.capabilities(set), Some(0), "{set}");
    }
    assert_eq!(first.status("NoNewPrivs").as_deref(), Some("1"));
    assert_eq!(first.status("Seccomp").as_deref(), Some("2"));
    if Need::Cgroups.missing().is_none() {
        for (controllers, path) in first.cgroups() {
            let path = path.display().to_string();
            // In hierarchies that the runtime does not use, the process stays in the host's cgroup.
            let used = procfs::marked(&mark)[0].cgroups()[&controllers].clone();
            let used = used.display().to_string();
            assert!(path.contains(&pod.id) || !used.contains(&pod.id), "{controllers}: {path}");
        }
    }
    // Only root may read the rest of a non-dumpable process.
    if Need::HostMounts.missing().is_none() {
        let mounts = first.text("mountinfo");
        assert_eq!(mounts.lines().count(), 1, "{mounts}");
        assert!(mounts.contains(" / / ro,") && mounts.contains(" tmpfs "), "{mounts}");
        let entries = |name: &str| std::fs::read_dir(first.path(name)).unwrap().count();
        assert_eq!((entries("root"), entries("cwd"), entries("fd")), (0, 0, 0));
        let own = procfs::own().namespaces();
        let its = first.namespaces();
        assert_ne!((&its["mnt"], &its["cgroup"]), (&own["mnt"], &own["cgroup"]));
        // A running program cannot be opened for writing (ETXTBSY), even if its mount is writable.
        let program = nix::sys::statvfs::statvfs(&first.path("exe")).unwrap();
        assert!(program.flags().contains(nix::sys::statvfs::FsFlags::ST_RDONLY));
    }
}

/// Even a container that can trace other processes finds nothing of the host.
#[rstest]
#[tokio::test]
async fn tracer_finds_nothing_of_host_in_pod_process(#[values(false, true)] own_users: bool) {
    harness::needs!(Namespaces);
    if own_users {
        harness::needs!(UserIds);
    }
    let runtime = Runtime::start().await.unwrap();
    let pod = shared(&runtime, own_users).await;
    // For the pod's own user namespace, the process and all its files belong to another user.
    let refused = if own_users { "Permission denied" } else { "Read-only file system" };
    let script = format!(
        "for at in root cwd fd; do
            found=$(ls -A /proc/1/$at/ 2>/dev/null) && [ -n \"$found\" ] && echo $at: $found
        done
        nsenter --target 1 --mount /bin/true 2>/dev/null && echo entered its mounts
        # Not by opening it, which a running program refuses on any mount.
        case $(LC_ALL=C chmod a+x /proc/1/exe 2>&1) in
            *'{refused}'*) ;;
            *) echo its program is on a writable mount ;;
        esac
        echo done"
    );
    let config =
        with_shared_pids(pod.script("c", &script), &["SYS_PTRACE", "SYS_ADMIN", "SYS_CHROOT"]);
    assert_eq!(pod.output(config).await.unwrap(), "done\n");
}

/// A script that prints `SEEN` for every process with more capabilities than its own or with the host's files.
fn watcher(state: &str) -> String {
    format!(
        r#"exec perl -e '$| = 1; my $own = 0;
        sub effective {{ my $of = 0; if (open F, "<", "/proc/$_[0]/status") {{
            while (<F>) {{ $of = hex $1 if /^CapPrm:\s+(\S+)/ }} close F }} $of }}
        $own = effective("self"); print "ready\n"; my %told;
        while (! -e "/dev/shm/enough") {{
            opendir D, "/proc"; my @all = grep /^[0-9]+$/, readdir D; closedir D;
            for my $pid (reverse @all) {{
                my $more = effective($pid) & ~$own;
                printf "SEEN %s: capabilities %x\n", $pid, $more if $more && !$told{{$pid}}++;
                print "SEEN $pid: files of the host\n" if -e "/proc/$pid/root{state}" && !$told{{$pid}}++;
            }}
        }}
        print "over\n"'"#
    )
}

/// A process is set up outside an existing PID namespace, and enters it confined: the namespace of the pod or, with `of_watcher`,
/// that of the container with the tracer (NamespaceMode TARGET).
#[rstest]
#[tokio::test]
async fn tracer_sees_no_unconfined_process(
    #[values(false, true)] own_users: bool,
    #[values(false, true)] filtered: bool,
    #[values(false, true)] of_watcher: bool,
) {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let pod = shared(&runtime, own_users).await;
    let state = runtime.state_dir().display().to_string();
    let mut looks = with_shared_pids(pod.script("watcher", &watcher(&state)), &["SYS_PTRACE"]);
    if of_watcher {
        pids(&mut looks).pid = NamespaceMode::Container.into();
    }
    let looks = pod.start_ready(looks).await.unwrap();
    let with_filter = |mut config: ContainerConfig| {
        let filter = filtered.then(SecurityProfile::default);
        fixture::security(&mut config).seccomp = filter;
        if of_watcher {
            let options = pids(&mut config);
            options.pid = NamespaceMode::Target.into();
            options.target_id.clone_from(&looks);
        }
        config
    };
    let target = with_filter(with_shared_pids(fixture::forever("target"), &[]));
    let target = pod.start(target).await.unwrap();
    for round in 0..10 {
        let name = format!("c{round}");
        let config = with_filter(with_shared_pids(fixture::script(&name, "true"), &[]));
        pod.start(config).await.unwrap();
        assert_eq!(runtime.client.sh(&target, "echo in").await.unwrap(), "in\n");
    }
    // When the watcher exits, its PID namespace ends, together with this command in it.
    let touched = runtime.client.sh(&target, "touch /dev/shm/enough").await;
    assert!(of_watcher || touched.is_ok(), "{touched:?}");
    let lines = pod.logged(&looks, "over").await.unwrap();
    assert_eq!(lines, ["ready", "over"]);
}
