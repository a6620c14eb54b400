//! runtime-fake
