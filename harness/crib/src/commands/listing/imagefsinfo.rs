//! `crib imagefsinfo`: how much the images and writable layers take on their file systems.

use serde_json::json;

use crate::client::document::{DocumentArgs, Shown};
use crate::client::output::json as as_json;
use crate::commands::prelude::*;

/// Show the disk usage of images and writable layers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib imagefsinfo
  crib imagefsinfo -o table"))]
pub(crate) struct ImagefsinfoArgs {
    #[command(flatten)]
    document: DocumentArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Shows it.
pub(crate) async fn run(args: &ImagefsinfoArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let mut client = cri.images.images.clone();
    let answer = cri.call("ImageFsInfo", client.image_fs_info(v1::ImageFsInfoRequest {}));
    let answer = answer.await?.into_inner();
    let mut lines = Vec::new();
    for (name, all) in
        [("Container", &answer.container_filesystems), ("Image", &answer.image_filesystems)]
    {
        lines.push(format!("{name} Filesystem"));
        for (i, usage) in all.iter().enumerate() {
            let bytes = usage.used_bytes.as_ref().map_or(0, |of| of.value);
            let inodes = usage.inodes_used.as_ref().map_or(0, |of| of.value);
            let place = usage.fs_id.clone().unwrap_or_default().mountpoint;
            lines.push(format!("TimeStamp[{i}]: {}", usage.timestamp));
            lines.push(format!("Disk[{i}]: {}", human::usage(bytes)));
            lines.push(format!("Inodes[{i}]: {inodes}"));
            lines.push(format!("Mountpoint[{i}]: {place}"));
        }
    }
    let status = as_json("ImageFsInfoResponse", &answer)?;
    let document = json!({"status": status});
    args.document.print(vec![Shown { document, lines }])?;
    Ok(Exit::Success)
}
