//! Seccomp filters: read, made, and kept with the container.

use std::{fs, io::Read as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use cri::v1::{ContainerConfig, LinuxContainerSecurityContext};
use keeper::{
    host,
    plan::ProcessPlan,
    seccomp::{Arch, Surroundings},
};

use super::{Error, Runtime, blocking};
use crate::launch::{
    Invalid,
    seccomp::{self, Wish},
};

/// Longer profiles are something else. Docker's own has 20 KiB.
const LONGEST_PROFILE: u64 = 1 << 20;

impl Runtime {
    /// The bytes of the filter that `config` asks for, if it asks for one.
    pub(super) async fn filter(
        &self,
        config: &ContainerConfig,
        process: &ProcessPlan,
    ) -> Result<Option<Vec<u8>>, Error> {
        let none = LinuxContainerSecurityContext::default();
        let linux = config.linux.as_ref();
        let context = linux.and_then(|l| l.security_context.as_ref());
        let wish = seccomp::wish(context.unwrap_or(&none))?;
        if wish == Wish::Unconfined {
            return Ok(None);
        }
        let capabilities = process.capabilities.clone();
        Ok(blocking(move || make(&wish, &capabilities))
            .await
            .map(Some)?)
    }
}

fn make(wish: &Wish, capabilities: &[u8]) -> Result<Vec<u8>, Invalid> {
    let Some(native) = Arch::native() else {
        return Err(Invalid(
            "seccomp profiles are not supported on this machine's architecture: ask for Unconfined"
                .to_owned(),
        ));
    };
    let around = Surroundings {
        native,
        kernel: host::kernel(),
        capabilities,
    };
    let (text, name) = match wish {
        Wish::File(path) => {
            let text = read(path).map_err(|reason| {
                Invalid(format!(
                    "failed to read the seccomp profile {}: {reason}",
                    path.display()
                ))
            })?;
            (Some(text), path.display().to_string())
        }
        Wish::Default | Wish::Unconfined => (None, "RuntimeDefault".to_owned()),
    };
    let filter = keeper::seccomp::filter(text.as_deref(), around)
        .map_err(|reason| Invalid(format!("the seccomp profile {name} {reason}")))?;
    Ok(filter.to_bytes())
}

fn read(path: &Path) -> Result<String, String> {
    let file = fs::File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| error.to_string())?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err("it is not a regular file".to_owned());
    }
    let mut text = String::new();
    let read = file.take(LONGEST_PROFILE + 1).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > LONGEST_PROFILE {
        return Err(format!("it is longer than {LONGEST_PROFILE} bytes"));
    }
    Ok(text)
}
