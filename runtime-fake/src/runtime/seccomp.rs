//! Compiles seccomp filters from profiles, and caches them.

use std::{
    collections::HashMap,
    fs,
    io::Read as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use cri::v1::{ContainerConfig, LinuxContainerSecurityContext};
use keeper::contract::host;
use keeper::contract::plan::ProcessPlan;
use keeper::kernel::seccomp::{Arch, HostContext};
use serde::de::IgnoredAny;

use super::{Error, Runtime, blocking};
use crate::launch::{
    Invalid,
    seccomp::{self, ProfileRequest},
};

/// Limit on the size of a profile: a larger file is not a profile. Docker's own has 20 KiB.
const LONGEST_PROFILE: u64 = 1 << 20;

impl Runtime {
    /// The compiled filter that `config` requests, if any.
    pub(super) async fn filter(
        &self,
        config: &ContainerConfig,
        process: &ProcessPlan,
    ) -> Result<Option<Arc<[u8]>>, Error> {
        let none = LinuxContainerSecurityContext::default();
        let linux = config.linux.as_ref();
        let context = linux.and_then(|l| l.security_context.as_ref());
        let request = seccomp::request(context.unwrap_or(&none))?;
        if request == ProfileRequest::Unconfined {
            return Ok(None);
        }
        let capabilities = process.capabilities.clone();
        let filters = self.filters.clone();
        if let ProfileRequest::File(path) = request {
            let made = blocking(move || -> Result<Arc<[u8]>, Error> {
                let name = path.display().to_string();
                // The path is the host's, and another pod may install the profile: the same request can succeed later.
                let text = read(&path).map_err(|reason| {
                    Error::Unable(format!("failed to read the seccomp profile {name}: {reason}"))
                })?;
                if text.len() as u64 > LONGEST_PROFILE {
                    let message = format!(
                        "the seccomp profile {name} is longer than {LONGEST_PROFILE} bytes"
                    );
                    return Err(Invalid(message).into());
                }
                let filter = filters.get(Some(text.clone()), &name, capabilities);
                filter.map_err(|invalid| match serde_json::from_str::<IgnoredAny>(&text) {
                    Ok(_) => invalid.into(),
                    // Another pod may be writing it.
                    Err(_) => Error::Unable(invalid.to_string()),
                })
            });
            return made.await.map(Some);
        }
        Ok(Some(filters.get(None, "RuntimeDefault", capabilities)?))
    }
}

/// Cached filters: most containers use one of very few.
#[derive(Default)]
pub(crate) struct Filters(Mutex<HashMap<Origin, Arc<[u8]>>>);

/// The inputs of a filter: the text of the profile, unless it is the runtime's own, and the container's
/// capabilities.
type Origin = (Option<String>, Vec<u8>);

/// Limit on cached filters.
const KEPT: usize = 32;

impl Filters {
    /// The filter for a profile and its container's capabilities; `name` is the profile's, for errors.
    fn get(
        &self,
        text: Option<String>,
        name: &str,
        capabilities: Vec<u8>,
    ) -> Result<Arc<[u8]>, Invalid> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let origin = (text, capabilities);
        if let Some(filter) = kept().get(&origin) {
            return Ok(filter.clone());
        }
        let filter: Arc<[u8]> = make(origin.0.as_deref(), name, &origin.1)?.into();
        let mut kept = kept();
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(origin, filter.clone());
        Ok(filter)
    }
}

fn make(text: Option<&str>, name: &str, capabilities: &[u8]) -> Result<Vec<u8>, Invalid> {
    let Some(native) = Arch::native() else {
        return Err(Invalid(
            "seccomp profiles are not supported on this machine's architecture: ask for Unconfined"
                .to_owned(),
        ));
    };
    let host = HostContext { native, kernel: host::kernel(), capabilities };
    let filter = keeper::kernel::seccomp::filter(text, host)
        .map_err(|reason| Invalid(format!("the seccomp profile {name} {reason}")))?;
    Ok(filter.to_bytes())
}

/// The text of a profile, one byte more than the longest at most, or why it cannot be read.
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
    Ok(text)
}
