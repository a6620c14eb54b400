//! What this box's kernel has.

/// The running kernel's version, as far as profiles look at it.
pub fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether images can be shown to user namespaces without being copied: overlayfs takes idmapped layers since Linux 5.19.
pub fn maps_images() -> bool {
    kernel() >= (5, 19)
}
