//! Detects the kernel's security modules, AppArmor and SELinux, and decides the confinement of pods and
//! containers.
//!
//! Their files are below one root directory, which is `/` except in tests.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Once,
};

use cri::v1::{LinuxContainerSecurityContext, SeLinuxOption};
use keeper::contract::plan::{Confinement, IsolationMode};

use crate::launch::{
    Invalid,
    apparmor::{self, ProfileError, Profiles},
    selinux::{self, Labels, Policy},
};

/// The programs that load a profile into the kernel; they come with AppArmor.
const PARSERS: [&str; 2] = ["sbin/apparmor_parser", "usr/sbin/apparmor_parser"];
/// The contexts of a policy for containers, as container-selinux installs them.
const CONTEXTS: &str = "usr/share/containers/selinux/contexts";

/// The security modules of this machine.
#[derive(Debug)]
pub(crate) struct Modules {
    root: PathBuf,
    apparmor: bool,
    selinux: Option<Policy>,
    /// Pods without a requested label get one too.
    label_all: bool,
    /// Logs once that labels are ignored.
    ignored: Once,
    /// Held while a pod's labels are chosen.
    pub(crate) label_lock: tokio::sync::Mutex<()>,
}

impl Modules {
    /// Detects the modules, and loads the runtime's own AppArmor profile if it is not loaded.
    pub(crate) fn open(root: &Path, isolation: IsolationMode, label_all: bool) -> Self {
        let enabled = fs::read(root.join("sys/module/apparmor/parameters/enabled"));
        let apparmor = enabled.is_ok_and(|text| text.first() == Some(&b'Y'));
        // If its file system is not writable, as in a nested container, another runtime manages labels.
        let context = root.join("sys/fs/selinux/context");
        let selinux = (isolation != IsolationMode::Process
            && File::options().write(true).open(context).is_ok())
        .then(|| Policy::read(&contexts(root)));
        let modules = Self {
            root: root.to_owned(),
            apparmor,
            selinux,
            label_all,
            ignored: Once::new(),
            label_lock: tokio::sync::Mutex::default(),
        };
        if label_all && modules.selinux.is_none() {
            tracing::warn!("SELinux is unavailable: pods get no labels");
        }
        if apparmor
            && isolation != IsolationMode::Rootless
            && let Err(reason) = modules.load_default()
        {
            tracing::warn!(
                reason,
                "containers are not confined by AppArmor unless they name a profile"
            );
        }
        modules
    }

    /// The modules' entries in Status.
    pub(crate) fn describe(&self) -> [(&'static str, String); 2] {
        let apparmor = match self.profiles() {
            Profiles::None => "none".to_owned(),
            Profiles::Loaded(loaded) if loaded.contains(apparmor::DEFAULT) => {
                format!("{} unless a profile is named", apparmor::DEFAULT)
            }
            Profiles::Loaded(_) | Profiles::Hidden => "named profiles only".to_owned(),
        };
        let selinux = match (&self.selinux, self.label_all) {
            (None, _) => "none",
            (Some(_), true) => "all pods",
            (Some(_), false) => "pods that ask for a label",
        };
        [("apparmor", apparmor), ("selinux", selinux.to_owned())]
    }

    /// The default labels of a pod's containers, if this machine has SELinux. Rejects an invalid label on every
    /// machine.
    pub(crate) fn pod<'a>(
        &self,
        options: Option<&SeLinuxOption>,
        others: impl Iterator<Item = &'a Labels>,
    ) -> Result<Option<Labels>, Invalid> {
        selinux::check(options)?;
        let Some(policy) = &self.selinux else {
            self.ignore(options);
            return Ok(None);
        };
        let mut seed = [0; 8];
        // Without a random seed the search starts at 0.
        let _ = rustix::rand::getrandom(&mut seed[..], rustix::rand::GetRandomFlags::empty());
        let free = || selinux::free_level(others, u64::from_ne_bytes(seed));
        let labels = selinux::pod(options, policy, free);
        if self.labels(options) {
            self.known(&labels)?;
        }
        Ok(Some(labels))
    }

    /// Whether a pod with these options is labelled as a whole, including the files that its containers share.
    pub(crate) fn labels(&self, options: Option<&SeLinuxOption>) -> bool {
        self.label_all || selinux::asked(options)
    }

    /// Whether [`Self::container`] may have to read files of a security module.
    pub(crate) fn has_any(&self) -> bool {
        self.apparmor || self.selinux.is_some()
    }

    /// The confinement of a container's processes and files.
    pub(crate) fn container(
        &self,
        context: Option<&LinuxContainerSecurityContext>,
        of_pod: Option<&SeLinuxOption>,
        pod: Option<&Labels>,
    ) -> Result<Confinement, ProfileError> {
        let none = LinuxContainerSecurityContext::default();
        let context = context.unwrap_or(&none);
        let own = context.selinux_options.as_ref();
        selinux::check(own)?;
        let wanted = self.labels(of_pod) || selinux::asked(own);
        let labels = match (&self.selinux, pod) {
            (None, _) => {
                self.ignore(own);
                None
            }
            (Some(_), _) if !wanted => None,
            (Some(policy), Some(pod)) => {
                let labels = selinux::container(own, pod, policy, context.privileged);
                self.known(&labels)?;
                Some(labels)
            }
            (Some(_), None) => {
                return Err(Invalid(
                    "the sandbox was created without SELinux; recreate it".to_owned(),
                )
                .into());
            }
        };
        let (process, files) = labels.map(|l| (l.process, l.files)).unzip();
        Ok(Confinement {
            apparmor_profile: apparmor::profile(context, || self.profiles())?,
            selinux_label: process,
            mount_label: files,
            kernel: (self.root != Path::new("/")).then(|| self.root.clone()),
        })
    }

    /// Ignores a label without SELinux: it would have no effect, and manifests that name one must run everywhere
    /// (containerd, CRI-O).
    fn ignore(&self, options: Option<&SeLinuxOption>) {
        if selinux::asked(options) {
            self.ignored.call_once(|| {
                tracing::warn!(
                    "selinux_options are ignored: this kernel has no SELinux, it is switched off, or isolation is `process`"
                );
            });
        }
    }

    /// Checks with the kernel's policy that these labels are valid.
    fn known(&self, labels: &Labels) -> Result<(), Invalid> {
        let context = self.root.join("sys/fs/selinux/context");
        for label in [&labels.process, &labels.files] {
            write(&context, label).map_err(|error| {
                Invalid(format!(
                    "the SELinux label {label} is unavailable: the policy of this box does not know it, or refuses it to this runtime ({error})"
                ))
            })?;
        }
        Ok(())
    }

    fn profiles(&self) -> Profiles {
        if !self.apparmor {
            return Profiles::None;
        }
        fs::read_to_string(self.root.join("sys/kernel/security/apparmor/profiles"))
            .map_or(Profiles::Hidden, |list| Profiles::Loaded(apparmor::names(&list)))
    }

    fn load_default(&self) -> Result<(), String> {
        match self.profiles() {
            Profiles::Loaded(loaded) if loaded.contains(apparmor::DEFAULT) => return Ok(()),
            Profiles::None => return Ok(()),
            Profiles::Loaded(_) | Profiles::Hidden => {}
        }
        let parsers = PARSERS.map(|path| self.root.join(path));
        let Some(parser) = parsers.iter().find(|path| path.exists()) else {
            return Err(
                "apparmor_parser, which loads the runtime's profile, is not installed".to_owned()
            );
        };
        let run = || -> io::Result<std::process::Output> {
            let mut child = Command::new(parser)
                .args(["--replace", "--skip-cache"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()?;
            // If it ends without reading, its output has the reason.
            if let Some(mut stdin) = child.stdin.take() {
                let _ = stdin.write_all(apparmor::DEFAULT_RULES.as_bytes());
            }
            child.wait_with_output()
        };
        let output =
            run().map_err(|error| format!("failed to run {}: {error}", parser.display()))?;
        if output.status.success() {
            tracing::info!(profile = apparmor::DEFAULT, "loaded");
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{} failed: {}", parser.display(), said.trim()))
    }
}

/// The policy's contexts for containers.
fn contexts(root: &Path) -> String {
    fs::read_to_string(root.join(CONTEXTS)).unwrap_or_else(|_| {
        let config = fs::read_to_string(root.join("etc/selinux/config")).unwrap_or_default();
        let name = config
            .lines()
            .find_map(|line| line.trim().strip_prefix("SELINUXTYPE="))
            .map_or("targeted", str::trim);
        let list = root.join("etc/selinux").join(name).join("contexts/lxc_contexts");
        fs::read_to_string(list).unwrap_or_default()
    })
}

/// Writes to an existing file in one call, as the kernel requires.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
