//! The runtime's default profile, `RuntimeDefault`: the system calls that containerd 2 and Docker allow ◆
//!
//! All others fail with EPERM, except calls that are newer than this list, which fail with ENOSYS.

use crate::kernel::seccomp::{
    profile::HostContext,
    rules::{Action, Comparison, Condition, Rule, Rules},
};

/// Calls that every container may make.
const ALLOWED: &str = "
    accept accept4 access alarm bind brk cachestat capget capset chdir chmod chown chown32 clock_adjtime
    clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep
    clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1
    epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit
    exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2
    fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat
    fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait
    futex_waitv futex_wake futimesat get_mempolicy get_robust_list get_thread_area getcpu getcwd getdents getdents64
    getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp
    getpid getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getrusage
    getsockname getsockopt gettid gettimeofday getuid getuid32 getxattr getxattrat inotify_add_watch inotify_init
    inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup
    io_submit ioctl ioprio_get ioprio_set ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self
    lchown lchown32 lgetxattr link linkat listen listxattr listxattrat llistxattr _llseek lremovexattr lseek lsetxattr
    lstat lstat64 madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat
    mlock mlock2 mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64
    mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall
    munmap name_to_handle_at nanosleep newfstatat _newselect open openat openat2 pause pidfd_open pidfd_send_signal
    pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64
    process_mrelease pselect6 pselect6_time64 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recv
    recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr removexattrat rename renameat renameat2
    restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
    rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp
    select semctl semget semop semtimedop semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto
    set_robust_list set_thread_area set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups
    setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid
    setreuid32 setrlimit setsid setsockopt setuid setuid32 setxattr setxattrat shmat shmctl shmdt shmget shutdown
    sigaltstack signalfd signalfd4 sigprocmask sigreturn socketcall socketpair splice stat stat64 statfs statfs64
    statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete
    timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime
    timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname unlink
    unlinkat uretprobe utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid write writev
    arch_prctl modify_ldt arm_fadvise64_64 breakpoint cacheflush set_tls";

/// Additional calls of containers with a capability (by its number).
const WITH_CAPABILITY: [(u8, &str); 14] = [
    // DAC_READ_SEARCH
    (2, "open_by_handle_at"),
    // SYS_MODULE
    (16, "delete_module finit_module init_module"),
    // SYS_RAWIO
    (17, "ioperm iopl"),
    // SYS_CHROOT
    (18, "chroot"),
    // SYS_PTRACE
    (19, "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace"),
    // SYS_PACCT
    (20, "acct"),
    (
        SYS_ADMIN,
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick listmount lookup_dcookie lsm_get_self_attr \
         lsm_list_modules lsm_set_self_attr mount mount_setattr move_mount open_tree perf_event_open quotactl \
         quotactl_fd setdomainname sethostname setns statmount syslog umount umount2 unshare",
    ),
    // SYS_BOOT
    (22, "reboot"),
    // SYS_NICE
    (23, "mbind set_mempolicy set_mempolicy_home_node"),
    // SYS_TIME
    (25, "adjtimex clock_settime clock_settime64 settimeofday stime"),
    // SYS_TTY_CONFIG
    (26, "vhangup"),
    // SYSLOG
    (34, "syslog"),
    // PERFMON
    (38, "perf_event_open"),
    // BPF
    (39, "bpf"),
];
const SYS_ADMIN: u8 = 21;

/// The flags that `clone` must not have: `CLONE_NEW*`.
const NEW_NAMESPACES: u64 = 0x7e02_0000;
/// The allowed execution domains: of Linux programs, 32-bit
/// ones and those without address randomisation; and the query.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Address families that containers need not have. `AF_ALG` sockets reach the ciphers of the kernel, which have let users write
/// to any file that they can read (CVE-2026-31431). `AF_VSOCK` sockets reach the hypervisor of a virtual machine.
const DENIED_FAMILIES: [u64; 2] = [38, 40];
/// Before this version a process could bypass a filter with `ptrace`.
const SAFE_PTRACE: (u32, u32) = (4, 8);
const ENOSYS: u16 = 38;
/// EPERM.
const DENIED: Action = Action::errno(1);
const SPEC_ALLOW: u32 = 4;

/// The rules for a container.
pub(super) fn rules(host: HostContext<'_>) -> Rules {
    let allow =
        |name: &str| Rule { name: name.to_owned(), action: Action::ALLOW, conditions: Vec::new() };
    let allow_if = |name: &str, comparison, value| Rule {
        conditions: vec![Condition { argument: 0, comparison, value }],
        ..allow(name)
    };
    let has = |number: u8| host.capabilities.contains(&number);
    let mut rules: Vec<Rule> = ALLOWED.split_whitespace().map(allow).collect();
    for (_, names) in WITH_CAPABILITY.iter().filter(|(number, _)| has(*number)) {
        rules.extend(names.split_whitespace().map(allow));
    }
    if host.kernel >= SAFE_PTRACE {
        rules.push(allow("ptrace"));
    }
    for personality in PERSONALITIES {
        rules.push(allow_if("personality", Comparison::Equal, personality));
    }
    // The kernel ignores the upper half of this argument, and a program may set it: compare the lower half only.
    for family in DENIED_FAMILIES {
        let lower_half = Comparison::MaskedEqual { mask: u32::MAX.into() };
        rules.push(Rule { action: DENIED, ..allow_if("socket", lower_half, family) });
    }
    rules.push(allow_if("socket", Comparison::GreaterOrEqual, 0));
    if !has(SYS_ADMIN) {
        let none = Comparison::MaskedEqual { mask: NEW_NAMESPACES };
        rules.push(allow_if("clone", none, 0));
        // The flags of clone3 are in memory, which a filter cannot read. On ENOSYS programs fall back to clone.
        rules.push(Rule { action: Action::errno(ENOSYS), ..allow("clone3") });
    }
    Rules { default: DENIED, arches: host.native.family().to_vec(), rules, flags: SPEC_ALLOW }
}
