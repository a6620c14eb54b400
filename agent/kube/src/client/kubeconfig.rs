//! Loads kubeconfigs: the API server's address, its certificate authorities, and the client's credentials.
//!
//! Only the current context is used. Relative paths are relative to the file (Kubernetes 1.36,
//! staging/src/k8s.io/client-go/tools/clientcmd/client_config.go and loader.go).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fetch::pki_types::{CertificateDer, ServerName};
use fetch::{Identity, Url};
use file_tree::named_text::{self, MOST};
use http::HeaderValue;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::exec::ExecPlugin;
use super::exec_credential::VERSIONS;
use super::files::{self, Files, TokenFile};
use super::kubeconfig_file::{Cluster, Exec, File, User};

/// A kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The kubeconfig, or a file that it names, cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The content cannot be used.
    #[error("kubeconfig {}: {problem}", path.display())]
    Content {
        /// The kubeconfig.
        path: PathBuf,
        /// The problem and its location.
        problem: String,
    },
}

/// An API server, and the client's credentials.
#[derive(Debug)]
pub struct Connection {
    /// The server's URL.
    pub(crate) server: Url,
    /// How to verify the server's certificate.
    pub(crate) trust: Trust,
    /// The cluster entry, for another kubeconfig.
    pub(crate) cluster: Value,
    /// The name in the server's certificate, if it differs from the URL's host.
    pub(crate) server_name: Option<ServerName<'static>>,
    /// The proxy for all requests.
    pub(crate) proxy: Option<String>,
    /// The client's certificate.
    pub(crate) identity: Option<Identity>,
    /// The credentials of requests, apart from the client certificate.
    pub(crate) credentials: Credentials,
    /// The files that the connection was loaded from.
    pub(crate) files: Files,
}

/// How to verify a server's certificate.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// With the system's authorities.
    System,
    /// With these authorities.
    Roots(Vec<CertificateDer<'static>>),
    /// No verification.
    Insecure,
}

/// The source of the Authorization header.
#[derive(Clone)]
pub(crate) enum Credentials {
    /// No header.
    Nothing,
    /// A constant header.
    Fixed(HeaderValue),
    /// A token file, which another program may replace.
    File(Arc<TokenFile>),
    /// A credential plugin, which may also provide a certificate.
    Plugin(Arc<ExecPlugin>),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Fixed(_) => "Fixed",
            Self::File(_) => "File",
            Self::Plugin(_) => "Plugin",
        })
    }
}

impl Connection {
    /// Reads the kubeconfig at `path`, and the files that it names.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or the kubeconfig is invalid.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        // It is opened once, so that it may be a FIFO, such as a shell's process substitution.
        let text = named_text::open(path).and_then(|file| named_text::read_bytes(file, MOST));
        let text = text.map_err(|source| unreadable(path, source))?;
        let reader = Reader { path };
        let text = std::str::from_utf8(&text).map_err(|_| reader.problem("not UTF-8"))?;
        let file = serde_saphyr::from_str(text).map_err(|error| reader.problem(error))?;
        reader.connection(file)
    }
}

fn unreadable(path: &Path, source: io::Error) -> KubeconfigError {
    KubeconfigError::Read { path: path.to_owned(), source }
}

/// Resolves the entries of the kubeconfig at a path.
struct Reader<'p> {
    path: &'p Path,
}

impl Reader<'_> {
    fn problem(&self, problem: impl fmt::Display) -> KubeconfigError {
        KubeconfigError::Content { path: self.path.to_owned(), problem: problem.to_string() }
    }

    fn connection(&self, file: File) -> Result<Connection, KubeconfigError> {
        let missing = |what: &str, name: &str| self.problem(format!("no {what} {name:?}"));
        let name = file.current_context;
        if name.is_empty() {
            return Err(self.problem("current-context is not set"));
        }
        let context = file.contexts.into_iter().find(|context| context.name == name);
        let context = context.ok_or_else(|| missing("context", &name))?.context;
        let cluster = file.clusters.into_iter().find(|cluster| cluster.name == context.cluster);
        let cluster = cluster.ok_or_else(|| missing("cluster", &context.cluster))?.cluster;
        let user = match context.user.as_str() {
            "" => User::default(),
            name => {
                let user = file.users.into_iter().find(|user| user.name == name);
                user.ok_or_else(|| missing("user", name))?.user
            }
        };
        let server = Url::of_server(&cluster.server).ok_or_else(|| {
            self.problem(format!("server {:?} is not an http or https URL", cluster.server))
        })?;
        let files = self.files(&cluster, &user);
        let roots = self.data(
            "certificate-authority",
            cluster.certificate_authority_data.as_deref(),
            cluster.certificate_authority.as_deref(),
        )?;
        let inline_cluster = inline_cluster(&cluster, roots.as_deref());
        let exec = user.exec.as_ref().filter(|exec| exec.provide_cluster_info);
        let plugin_cluster = exec.map(|_| plugin_cluster(inline_cluster.clone(), &cluster));
        let roots = roots.map(|pem| files::certificates(&pem)).transpose();
        let roots =
            roots.map_err(|problem| self.problem(format!("certificate-authority {problem}")))?;
        let trust = match (roots, cluster.insecure_skip_tls_verify) {
            (Some(_), true) => {
                return Err(self.problem(
                    "certificate-authority has no effect with insecure-skip-tls-verify: leave one of them out",
                ));
            }
            (Some(roots), false) => Trust::Roots(roots),
            (None, false) => Trust::System,
            (None, true) => {
                tracing::warn!(
                    kubeconfig = %self.path.display(), server = %cluster.server,
                    "insecure-skip-tls-verify disables verification of the API server; set certificate-authority instead"
                );
                Trust::Insecure
            }
        };
        let server_name = non_empty(cluster.tls_server_name).map(|name| {
            ServerName::try_from(name.clone())
                .map_err(|_| self.problem(format!("tls-server-name {name:?} is not a host name")))
        });
        Ok(Connection {
            server,
            trust,
            cluster: inline_cluster,
            server_name: server_name.transpose()?,
            proxy: non_empty(cluster.proxy_url),
            identity: self.identity(&user)?,
            credentials: self.credentials(user, plugin_cluster)?,
            files,
        })
    }

    /// The files that may be replaced later: inline data is constant, and so is a certificate or key file whose counterpart is
    /// inline data.
    fn files(&self, cluster: &Cluster, user: &User) -> Files {
        let in_file = |data: &Option<String>, file: &Option<String>| {
            let file = non_empty(file.clone()).filter(|_| non_empty(data.clone()).is_none());
            file.map(|file| self.resolve_path(&file))
        };
        let authority =
            in_file(&cluster.certificate_authority_data, &cluster.certificate_authority);
        let certificate = in_file(&user.client_certificate_data, &user.client_certificate);
        let key = in_file(&user.client_key_data, &user.client_key);
        Files::new(authority, certificate.zip(key))
    }

    fn identity(&self, user: &User) -> Result<Option<Identity>, KubeconfigError> {
        let data = user.client_certificate_data.as_deref();
        let certificate =
            self.data("client-certificate", data, user.client_certificate.as_deref())?;
        let data = user.client_key_data.as_deref();
        let key = self.data("client-key", data, user.client_key.as_deref())?;
        let (certificate, key) = match (certificate, key) {
            (None, None) => return Ok(None),
            (Some(certificate), Some(key)) => (certificate, key),
            (Some(_), None) => return Err(self.problem("client-certificate is without client-key")),
            (None, Some(_)) => return Err(self.problem("client-key is without client-certificate")),
        };
        let identity = files::identity(&certificate, &key);
        identity.map(Some).map_err(|problem| self.problem(problem))
    }

    /// `cluster` is the server's description for a plugin.
    fn credentials(
        &self,
        user: User,
        cluster: Option<Value>,
    ) -> Result<Credentials, KubeconfigError> {
        if user.auth_provider.is_some() {
            return Err(self.problem(
                "auth-provider of users is not supported: use exec, a client certificate, token or tokenFile",
            ));
        }
        let has_certificate = [&user.client_certificate, &user.client_certificate_data];
        let has_certificate =
            has_certificate.into_iter().flatten().any(|certificate| !certificate.is_empty());
        // If both are given, the file takes precedence, as in client-go.
        if let Some(file) = non_empty(user.token_file) {
            return Ok(Credentials::File(Arc::new(TokenFile::new(self.resolve_path(&file)))));
        }
        if let Some(token) = non_empty(user.token) {
            let header = fetch::bearer(&token);
            let header = header.ok_or_else(|| {
                self.problem("token contains characters that are invalid in a header")
            })?;
            return Ok(Credentials::Fixed(header));
        }
        Ok(match non_empty(user.username) {
            Some(name) => {
                let password = user.password.unwrap_or_default();
                Credentials::Fixed(fetch::basic(name.as_bytes(), password.as_bytes()))
            }
            None => match user.exec.filter(|_| !has_certificate) {
                Some(exec) => Credentials::Plugin(Arc::new(self.plugin(exec, cluster)?)),
                None => Credentials::Nothing,
            },
        })
    }

    fn plugin(&self, exec: Exec, cluster: Option<Value>) -> Result<ExecPlugin, KubeconfigError> {
        if exec.command.is_empty() {
            return Err(self.problem("exec has no command"));
        }
        if !VERSIONS.contains(&exec.api_version.as_str()) {
            let (version, known) = (exec.api_version, VERSIONS.join(" and "));
            return Err(
                self.problem(format!("exec has apiVersion {version:?}: supported are {known}"))
            );
        }
        if exec.interactive_mode == "Always" {
            return Err(self.problem("exec has interactiveMode Always: the agent has no terminal"));
        }
        // A name without a directory is looked up in PATH.
        let program = match exec.command.contains('/') {
            true => self.resolve_path(&exec.command),
            false => PathBuf::from(exec.command),
        };
        let variables = exec.env.unwrap_or_default().into_iter();
        Ok(ExecPlugin {
            program,
            args: exec.args.unwrap_or_default(),
            environment: variables.map(|variable| (variable.name, variable.value)).collect(),
            version: exec.api_version,
            cluster,
            install_hint: exec.install_hint,
            last: Mutex::default(),
        })
    }

    /// Decodes base64 data, or else reads the file.
    fn data(
        &self,
        field: &str,
        data: Option<&str>,
        file: Option<&str>,
    ) -> Result<Option<Vec<u8>>, KubeconfigError> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let compact: String = data.split_whitespace().collect();
            let decoded = BASE64_STANDARD.decode(compact);
            let problem = |error| self.problem(format!("{field}-data is not base64: {error}"));
            return decoded.map(Some).map_err(problem);
        }
        let file = file.filter(|file| !file.is_empty());
        let read = |file: &str| {
            let path = self.resolve_path(file);
            named_text::read_nonblocking(&path, MOST).map_err(|source| unreadable(&path, source))
        };
        file.map(read).transpose()
    }

    fn resolve_path(&self, file: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(file)
    }
}

/// ◆ The cluster's description for a plugin: the cluster entry and the plugin's configuration in its extensions.
fn plugin_cluster(mut inline_cluster: Value, cluster: &Cluster) -> Value {
    let own = |name: &str| name == "client.authentication.k8s.io/exec";
    if let Some(found) = cluster.extensions.iter().find(|extension| own(&extension.name)) {
        inline_cluster["config"] = found.extension.clone();
    }
    inline_cluster
}

/// ◆ The cluster entry with the content of its files.
fn inline_cluster(cluster: &Cluster, roots: Option<&[u8]>) -> Value {
    let mut entry = json!({"server": cluster.server});
    if let Some(name) = non_empty(cluster.tls_server_name.clone()) {
        entry["tls-server-name"] = name.into();
    }
    if cluster.insecure_skip_tls_verify {
        entry["insecure-skip-tls-verify"] = true.into();
    }
    if let Some(roots) = roots {
        entry["certificate-authority-data"] = BASE64_STANDARD.encode(roots).into();
    }
    if let Some(proxy) = non_empty(cluster.proxy_url.clone()) {
        entry["proxy-url"] = proxy.into();
    }
    entry
}

fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    /// A kubeconfig of one server, with these lines in its cluster entry and its user entry.
    fn text(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\npreferences: {{}}\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: other, cluster: {{server: 'https://other'}}}}, {{name: k, cluster: {{{cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    fn load(directory: &Path, text: &str) -> Result<Connection, String> {
        let path = directory.join("config");
        std::fs::write(&path, text).unwrap();
        Connection::load(&path).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            error.to_string().replace(directory.to_str().unwrap(), "DIR")
                + &cause.unwrap_or_default()
        })
    }

    #[test]
    fn current_context_names_server_and_user() {
        let directory = tempfile::tempdir().unwrap();
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(directory.path().join("ca.pem"), key.cert.pem()).unwrap();
        let data = BASE64_STANDARD.encode(key.cert.pem());
        std::fs::write(directory.path().join("key.pem"), key.signing_key.serialize_pem()).unwrap();
        let text = text(
            "server: 'https://10.0.0.1:6443/base', certificate-authority: ca.pem, tls-server-name: kubernetes, proxy-url: 'http://p:1'",
            &format!(
                "client-certificate-data: {data}, client-key: key.pem, token: t, tokenFile: token"
            ),
        );
        let found = load(directory.path(), &text).unwrap();
        assert_eq!(found.server, Url::of_server("https://10.0.0.1:6443/base").unwrap());
        assert!(matches!(found.trust, Trust::Roots(roots) if roots == [key.cert.der().clone()]));
        assert_eq!(found.server_name, Some(ServerName::try_from("kubernetes").unwrap()));
        assert_eq!(found.proxy.as_deref(), Some("http://p:1"));
        assert_eq!(found.identity.unwrap().certificates, [key.cert.der().clone()]);
        std::fs::write(directory.path().join("token"), "in-file\n").unwrap();
        let Credentials::File(token) = found.credentials else { panic!("{:?}", found.credentials) };
        assert_eq!(token.header().unwrap(), "Bearer in-file");
    }

    #[rstest]
    #[case::token("token: abc", "Bearer abc")]
    #[case::password("username: me, password: secret", "Basic bWU6c2VjcmV0")]
    fn user_becomes_a_header(#[case] user: &str, #[case] header: &str) {
        let directory = tempfile::tempdir().unwrap();
        let found = load(directory.path(), &text("server: 'http://127.0.0.1:8080'", user)).unwrap();
        assert!(matches!(found.trust, Trust::System) && found.identity.is_none());
        assert!(matches!(found.credentials, Credentials::Fixed(value) if value == header));
    }

    #[test]
    fn plugin_gets_cluster_info_if_requested() {
        let directory = tempfile::tempdir().unwrap();
        let exec = |more: &str| {
            format!(
                "exec: {{command: bin/login, apiVersion: client.authentication.k8s.io/v1, args: [a], env: [{{name: N, value: v}}]{more}}}"
            )
        };
        let server = "server: 'https://h', insecure-skip-tls-verify: true, extensions: [{name: client.authentication.k8s.io/exec, extension: {audience: x}}]";
        for (more, plugin_cluster) in [
            ("", None),
            (
                ", provideClusterInfo: true",
                Some(
                    json!({"server": "https://h", "insecure-skip-tls-verify": true, "config": {"audience": "x"}}),
                ),
            ),
        ] {
            let found = load(directory.path(), &text(server, &exec(more))).unwrap();
            assert!(matches!(found.trust, Trust::Insecure));
            let Credentials::Plugin(plugin) = found.credentials else {
                panic!("{:?}", found.credentials)
            };
            assert_eq!(plugin.cluster, plugin_cluster);
            assert_eq!(plugin.program, directory.path().join("bin/login"));
            assert_eq!(plugin.environment, [("N".to_owned(), "v".to_owned())]);
        }
        // A plugin is used only without other credentials.
        let both = format!("token: t, {}", exec(""));
        let found = load(directory.path(), &text(server, &both)).unwrap();
        assert!(matches!(found.credentials, Credentials::Fixed(_)));
    }

    const SERVER: &str = "server: 'https://h'";

    #[rstest]
    #[case::no_context("{}", "kubeconfig DIR/config: current-context is not set")]
    #[case::unknown_context("current-context: x", "kubeconfig DIR/config: no context \"x\"")]
    #[case::bad_server(&text("server: h", ""), "kubeconfig DIR/config: server \"h\" is not an http or https URL")]
    #[case::insecure_verifier(
        &text("server: 'https://h', insecure-skip-tls-verify: true, certificate-authority: config", ""),
        "kubeconfig DIR/config: certificate-authority has no PEM certificate"
    )]
    #[case::missing_file(
        &text("server: 'https://h', certificate-authority: ca.pem", ""),
        "failed to read DIR/ca.pem: No such file or directory (os error 2)"
    )]
    #[case::endless_authority(
        &text("server: 'https://h', certificate-authority: /dev/zero", ""),
        "failed to read /dev/zero: it has more than 64 MiB"
    )]
    #[case::empty_authority(
        &text("server: 'https://h', certificate-authority-data: ''", "client-certificate-data: YQ=="),
        "kubeconfig DIR/config: client-certificate is without client-key"
    )]
    #[case::no_certificate(
        &text("server: 'https://h', certificate-authority-data: YQ==", ""),
        "kubeconfig DIR/config: certificate-authority has no PEM certificate"
    )]
    #[case::provider(
        &text(SERVER, "auth-provider: {name: gcp}"),
        "kubeconfig DIR/config: auth-provider of users is not supported: use exec, a client certificate, token or tokenFile"
    )]
    #[case::exec_version(
        &text(SERVER, "exec: {command: aws}"),
        "kubeconfig DIR/config: exec has apiVersion \"\": supported are client.authentication.k8s.io/v1 and client.authentication.k8s.io/v1beta1"
    )]
    #[case::exec_without_command(&text(SERVER, "exec: {}"), "kubeconfig DIR/config: exec has no command")]
    #[case::exec_with_terminal(
        &text(SERVER, "exec: {command: aws, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Always}"),
        "kubeconfig DIR/config: exec has interactiveMode Always: the agent has no terminal"
    )]
    fn invalid_kubeconfig_error_names_the_field(#[case] text: &str, #[case] problem: &str) {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(load(directory.path(), text).unwrap_err(), problem);
    }
}
