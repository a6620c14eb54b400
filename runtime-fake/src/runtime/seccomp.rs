//! Compiles seccomp filters from profiles, and caches them.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use cri::v1::{ContainerConfig, LinuxContainerSecurityContext};
use keeper::contract::host;
use keeper::contract::plan::ProcessPlan;
use keeper::kernel::seccomp::{Arch, HostContext};

use super::{Error, Runtime, blocking};
use crate::launch::{
    Invalid,
    seccomp::{self, ProfileRequest},
};

/// Limit on the size of a profile: a larger file is something else. Docker's own has 20 KiB.
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
                let text = read(&path).map_err(|unreadable| {
                    let message =
                        format!("failed to read the seccomp profile {name}: {unreadable}");
                    match unreadable {
                        // Another pod may install it: the same request can succeed later.
                        Unreadable::Missing(_) => Error::Unable(message),
                        Unreadable::Other(_) => Invalid(message).into(),
                    }
                })?;
                Ok(filters.get(Some(text), &name, capabilities)?)
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

/// Why a profile cannot be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    /// The file, or a directory above it, is missing.
    #[error("{0}")]
    Missing(io::Error),
    #[error("{0}")]
    Other(String),
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound {
            Self::Missing(error)
        } else {
            Self::Other(error.to_string())
        }
    }
}

fn read(path: &Path) -> Result<String, Unreadable> {
    let file = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(Unreadable::Other("it is not a regular file".to_owned()));
    }
    let mut text = String::new();
    file.take(LONGEST_PROFILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST_PROFILE {
        return Err(Unreadable::Other(format!("it is longer than {LONGEST_PROFILE} bytes")));
    }
    Ok(text)
}
