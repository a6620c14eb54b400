//! Packet rules: nftables, address translation, connection tracking, and packets that rules hand to a program.

pub(crate) mod conntrack;
pub(crate) mod nat;
pub(crate) mod nfnetlink;
pub(crate) mod nft;
