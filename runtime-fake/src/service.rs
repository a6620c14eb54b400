//! The services of CRI v1, one file each.

#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "the server that offers it comes with the runtime service"
    )
)]
pub(crate) mod image;
