//! A real Kubernetes control plane: etcd and kube-apiserver with RBAC, nothing else. No controller manager, no scheduler, no
//! kubelet: a feature that works here needs only the API, and where it has owners, [a stand-in](crate::garbage_collector) for their garbage
//! collector.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::cache::Cache;
use crate::kubectl::Kubectl;
use crate::namespace::Namespace;
use crate::process::Daemon;
use crate::{tools, wait};

const ETCD: &str = "http://127.0.0.1:2379";
/// The port of kube-apiserver.
pub const PORT: u16 = 6443;
/// The time limit of a start: on processors busy with emulation, kube-apiserver takes a while to fill its caches.
const START: Duration = Duration::from_secs(180);

/// The programs of the control plane.
#[derive(Debug, Clone)]
pub struct Programs {
    /// etcd.
    pub etcd: PathBuf,
    /// kube-apiserver.
    pub kube_apiserver: PathBuf,
}

impl Programs {
    /// Finds or builds the programs.
    pub fn get(cache: &Cache) -> Result<Self> {
        Ok(Self { etcd: tools::etcd(cache)?, kube_apiserver: tools::kube_apiserver(cache)? })
    }
}

/// A running control plane.
#[derive(Debug)]
pub struct KubernetesControlPlane {
    programs: Programs,
    namespace: Arc<Namespace>,
    folder: PathBuf,
    logs: PathBuf,
    /// The address that kube-apiserver listens at.
    bind: String,
    api_server: Option<Daemon>,
    etcd: Daemon,
}

/// Where a control plane runs, and what its files are.
#[derive(Debug, Clone, Copy)]
pub struct Location<'a> {
    /// The namespace, and its address.
    pub namespace: &'a Arc<Namespace>,
    pub address: &'a str,
    /// An IPv6 address of the namespace at which it serves too.
    pub ipv6: Option<&'a str>,
    /// The folder of data, credentials and kubeconfig.
    pub folder: &'a Path,
    /// The folder of logs.
    pub logs: &'a Path,
}

impl KubernetesControlPlane {
    /// Starts etcd and kube-apiserver, and waits until `kubectl` finds them ready.
    pub fn start(programs: &Programs, site: Location<'_>, kubectl: &Path) -> Result<Self> {
        let Location { namespace, address, ipv6, folder, logs } = site;
        fs::create_dir_all(folder)?;
        let credentials = Credentials::make(folder, [Some(address), ipv6])?;
        let mut etcd = namespace.command(&programs.etcd);
        etcd.arg("--data-dir").arg(folder.join("etcd"));
        etcd.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]);
        etcd.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--logger=zap", "--log-level=warn"]);
        let etcd = Daemon::spawn("etcd", &mut etcd, &logs.join("etcd.log"))?;
        let mut plane = Self {
            programs: programs.clone(),
            namespace: Arc::clone(namespace),
            folder: folder.to_owned(),
            logs: logs.to_owned(),
            bind: if ipv6.is_some() { "::".to_owned() } else { address.to_owned() },
            api_server: None,
            etcd,
        };
        credentials.write_kubeconfig(&plane.kubeconfig(), &format!("https://{address}:{PORT}"))?;
        plane.start_api_server(address)?;
        let asks = Kubectl::new(kubectl, &plane.kubeconfig(), folder, namespace);
        wait::until("kube-apiserver to serve", START, || {
            if let Some(daemon) = &mut plane.api_server {
                daemon.must_run()?;
            }
            asks.ok(&["get", "--raw", "/readyz"])
        })?;
        Ok(plane)
    }

    fn start_api_server(&mut self, address: &str) -> Result<()> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let mut command = self.namespace.command(&self.programs.kube_apiserver);
        command.args([
            &format!("--etcd-servers={ETCD}"),
            &format!("--bind-address={}", self.bind),
            &format!("--secure-port={PORT}"),
            // The namespace may lack an interface with a default route, from which kube-apiserver would guess the address.
            &format!("--advertise-address={address}"),
            "--endpoint-reconciler-type=none",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            &format!("--service-account-key-file={}", file("accounts.pub")),
            &format!("--service-account-signing-key-file={}", file("accounts.key")),
            &format!("--token-auth-file={}", file("tokens.csv")),
            &format!("--tls-cert-file={}", file("server.crt")),
            &format!("--tls-private-key-file={}", file("server.key")),
            &format!("--cert-dir={}", file("certificates")),
        ]);
        let log = self.logs.join("kube-apiserver.log");
        self.api_server = Some(Daemon::spawn("kube-apiserver", &mut command, &log)?);
        Ok(())
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// The processes of kube-apiserver and etcd.
    pub fn pids(&self) -> Result<Vec<i32>> {
        let api_server = self.api_server.as_ref().context("kube-apiserver is not running")?;
        Ok(vec![i32::try_from(api_server.pid())?, i32::try_from(self.etcd.pid())?])
    }

    /// Kills kube-apiserver, as in a crash; etcd stays.
    pub fn crash_api_server(&mut self) -> Result<()> {
        self.api_server.take().context("kube-apiserver is not running")?.crash()
    }

    /// Starts kube-apiserver again after [`Self::crash_api_server`].
    pub fn restart_api_server(&mut self, address: &str) -> Result<()> {
        self.start_api_server(address)
    }
}

struct Credentials {
    authority: String,
    token: String,
}

impl Credentials {
    fn make(folder: &Path, addresses: [Option<&str>; 2]) -> Result<Self> {
        let authority_key = KeyPair::generate()?;
        let mut authority = CertificateParams::new(Vec::<String>::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(rcgen::DnType::CommonName, "acceptance tests");
        let authority_certificate = authority.self_signed(&authority_key)?;
        let issuer = Issuer::new(authority, authority_key);
        let server_key = KeyPair::generate()?;
        let names = addresses.into_iter().flatten();
        let names = names.chain(["localhost", "kubernetes", "kubernetes.default.svc"]).map(String::from);
        let server = CertificateParams::new(names.collect::<Vec<_>>())?.signed_by(&server_key, &issuer)?;
        let accounts = KeyPair::generate()?;
        let token: String = STANDARD.encode(rand_bytes()?);
        for (name, content) in [
            ("server.crt", server.pem()),
            ("server.key", server_key.serialize_pem()),
            ("accounts.key", accounts.serialize_pem()),
            ("accounts.pub", accounts.public_key_pem()),
            ("tokens.csv", format!("{token},administrator,administrator,\"system:masters\"\n")),
        ] {
            write_private(&folder.join(name), &content)?;
        }
        Ok(Self { authority: authority_certificate.pem(), token })
    }

    fn write_kubeconfig(&self, to: &Path, server: &str) -> Result<()> {
        let authority = STANDARD.encode(&self.authority);
        let token = &self.token;
        let text = format!(
            "\
apiVersion: v1
kind: Config
current-context: test
clusters:
- name: test
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: test
  user:
    token: {token}
contexts:
- name: test
  context:
    cluster: test
    user: test
"
        );
        write_private(to, &text)
    }
}

fn rand_bytes() -> Result<[u8; 24]> {
    let mut bytes = [0; 24];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

fn write_private(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(())
}
