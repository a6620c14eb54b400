//! **runtime-fake**: a container runtime that speaks CRI v1 over real namespaces and processes.
//!
//! Reading order: `server` opens everything and serves; `service` takes the calls; `runtime` executes them with
//! the records and the keepers; `launch` decides how a container is set up; `keeper_client` calls the pod's
//! keeper, which is the package `keeper`. Images, pod networks and stream protocols are the packages `image`,
//! `network` and `stream`.
//!
//! | module | contents |
//! |---|---|
//! | `server` | startup and shutdown; `connections`: access to the socket; `deadline`: clients' deadlines; `routes`: paths to services |
//! | `service` | a short method for each call; `error` maps the runtime's errors to gRPC codes; `wire` converts |
//! | `runtime` | the operations: `sandboxes`, `create`, `containers`, `execs`, `checkpoint`, `restore`, `copies`, `resources` and others |
//! | `runtime::network`, `runtime::ports` | the network of a pod, and retries without one; host ports |
//! | `runtime::reconnect`, `runtime::zygote` | reconnects to keepers; forks them |
//! | `launch` ◆ | from the client's configuration to a plan without choices: read `plan` first; `strings` rejects invalid strings |
//! | `launch::qos_class` | weights of QoS classes, which `runtime::resources` writes |
//! | `launch::{memory, sub_paths}` | volumes in memory, parts of volumes |
//! | `launch::seccomp`, `runtime::seccomp` | selects the profile; compiles it to BPF with `keeper::kernel::seccomp`, and caches it |
//! | `launch::{apparmor, selinux, behave}` | profiles and labels; behaviour scripts, whose part in the runtime is in `runtime::containers` |
//! | `store` | one task owns all records: `state` ◆ decides, `disk` and `document` write |
//! | `sandbox`, `container` ◆ | the state machines, drawn above the match |
//! | `keeper_client` | calls to a keeper; `deadlines` ◆ |
//! | `services` | Services in the pod network: DNS server and proxy; the stream of tables is `service::services` |
//! | `streaming` | exec, attach and port-forward as clients see them |
//! | `isolation` | `root`, `rootless` or `process`, by probing |
//! | `security_modules`, `cdi`, `handler`, `resolv` | features of the host, and the configuration |
//! | `stats` | usage of containers and pods; `metrics` ◆ |
//! | `checkpoint` | the archive of a checkpoint; `runtime::checkpoint::criu_program` finds one that works |
//! | `recovery`, `keepers` | after a restart: reconciles records with the keepers that still run |
//!
//! To honour a CRI field: `launch/plan.rs`, then the keeper's module that carries it out, then docs/cri.md. For a missing call:
//! `proto/cri.proto` and `proto/cri-v1.tsv` (`CRIB_UPDATE_PROTO=1 cargo test -p cri-compiler`), `service.rs`, the operation in
//! `runtime`, docs/cri.md; a rule in `harness/check/src/rules`, and `agent/src/cri.rs` if the agent makes it.
//!
//! # Invariants
//! - A record is written before the object that it describes: a sandbox or container is on disk before its first process exists.
//! - No process is ended, and no file removed, because a record is unreadable or a keeper unreachable.
//! - No state is derived from a request: only a keeper's observation makes a container Running or Exited.
//! - No operation stays half done because its client disconnected (StopContainer alone stops waiting).
//! - No call to a keeper is without a deadline, and every shutdown has a time limit.
//! - No isolation is weaker than requested without an error, and none is used without being reported in Status. SELinux labels
//!   on a machine without SELinux are the one exception, because every other runtime ignores them there.
//! - An ordinary user's daemon enters its user namespace before it has a second thread. A restarted daemon joins the namespace of
//!   the pods that still run, because only there it has privileges over them.
//!
//! This package uses no manifest, restart policy or kubelet.
//!
//! # Tasks
//! | task | owns | in | out |
//! |---|---|---|---|
//! | store (one) | every record, their files | changes (channel) | state (watch), events (broadcast, 4096) |
//! | keeper connection (a pod) | one connection | calls (channel) | answers (oneshot), notifications (channel) |
//! | reach (a pod) | the connection to its keeper | the keeper's notifications | changes to the store |
//! | stream server (one) | tokens | clients with a URL | their streams to processes and pods |
//! | stream client (a connection, and a forwarded port) | one connection | bytes | bytes |
//! | download (a blob, in `image`) | a file without a name | chunks from the registry | its progress (watch) |
//! | Services (a thread, while a client serves some) | the ports of Services, the DNS server | tables (channel) | connections to pods |
//! | copy (a thread for each, named `copy`) | a container's root; its fsuid and fsgid | an archive (chunks) | files, or an archive |
//! | trash (a thread, while there is any) | removed directories | removals | nothing |
//! | operation (a call) | nothing | a request | an answer; it continues when its client disconnects |

mod cdi;
mod checkpoint;
mod config;
mod container;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod handler;
mod id;
mod isolation;
mod keeper_client;
mod keepers;
mod launch;
mod recovery;
mod resolv;
mod runtime;
mod sandbox;
mod security_modules;
mod server;
mod service;
mod services;
mod stats;
mod store;
mod streaming;

pub use config::{Config, Streams, Unprivileged};
pub use handler::{Handler, Handlers, InvalidHandlerName};
pub use id::instance_name;
pub use image::archives_in;
pub use isolation::{
    EnterError, EnteredIsolation, HostFilesError, Isolation, IsolationRequest, UnknownIsolation,
    ensure_host_files, ensure_openat2, enter,
};
pub use keeper::contract::open_files::{OpenFilesError, ensure_open_files, raise_open_files};
pub use keeper::{keeper_main, set_close_on_exec, take_short_turns};
pub use keeper_client::Deadlines;
pub use network::{EGRESS_COMMAND, serve_egress};
pub use server::{ServeError, delete_trash, max_shutdown_duration, serve};
pub use service::image::PULL_FROM;
pub use store::OpenError;

use keeper::kernel::failure::chain;
