//! The protocol as such: frames, lists, events, and the rules of `crib check`.

pub(crate) mod events;
pub(crate) mod grpc_framing;
pub(crate) mod http2;
pub(crate) mod id_prefixes;
pub(crate) mod list_streams;
pub(crate) mod rules;
pub(crate) mod runtime_handlers;
pub(crate) mod verbose_status;
