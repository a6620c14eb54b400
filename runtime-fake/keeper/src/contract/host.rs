//! Properties of the host's kernel.

/// The running kernel's major and minor version, which seccomp profiles refer to.
pub fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether user namespaces can use images without a copy: overlayfs supports idmapped layers since Linux 5.19.
pub fn maps_images() -> bool {
    kernel() >= (5, 19)
}
