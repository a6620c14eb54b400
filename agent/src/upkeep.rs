//! What is removed or rotated in time: dead containers and pods, and logs.

pub(crate) mod gc;
pub(crate) mod logs;
