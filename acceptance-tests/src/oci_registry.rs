//! A read-only registry of OCI artifacts over plain HTTP, with the content that `flux push artifact` would have pushed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::namespace::Namespace;
use crate::process;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const IMAGE_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const CONFIG: &str = "application/vnd.cncf.flux.config.v1+json";
const CONTENT: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";

#[derive(Debug, Default)]
struct Store {
    /// By path below `/v2/`: media type and content.
    contents: Mutex<BTreeMap<String, (&'static str, Vec<u8>)>>,
    closed: AtomicBool,
}

impl Store {
    fn put(&self, path: String, media_type: &'static str, content: Vec<u8>) {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner).insert(path, (media_type, content));
    }

    /// The tags of an artifact: its references that are no digests.
    fn tags(&self, name: &str) -> Vec<String> {
        let contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        let prefix = format!("{name}/manifests/");
        let references = contents.keys().filter_map(|path| path.strip_prefix(&prefix));
        references.filter(|reference| !reference.contains(':')).map(str::to_owned).collect()
    }

    fn get(&self, path: &str) -> Option<(&'static str, Vec<u8>)> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }
}

/// The server, inside a namespace.
#[derive(Debug)]
pub struct OciRegistry {
    store: Arc<Store>,
    address: SocketAddr,
    namespace: Arc<Namespace>,
}

impl OciRegistry {
    /// Starts a registry on the loopback of a namespace.
    pub fn start(namespace: &Arc<Namespace>) -> Result<Self> {
        let listener = namespace.inside(|| Ok(TcpListener::bind("127.0.0.1:0")?))?;
        let address = listener.local_addr()?;
        let store = Arc::new(Store::default());
        let served = Arc::clone(&store);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if served.closed.load(Ordering::SeqCst) {
                    return;
                }
                let served = Arc::clone(&served);
                std::thread::spawn(move || {
                    // A client may disconnect early.
                    let _ = serve(&served, &stream);
                });
            }
        });
        Ok(Self { store, address, namespace: Arc::clone(namespace) })
    }

    /// The URL of an artifact in Flux's notation.
    pub fn url(&self, name: &str) -> String {
        format!("oci://{}/{name}", self.address)
    }

    /// Pushes a container disk: an image of one layer with the file at `disk/`, as `docker build` makes it.
    pub fn push_container_disk(&self, name: &str, tag: &str, disk: &Path, scratch: &Path) -> Result<()> {
        let archive = scratch.join("container-disk.tgz");
        let folder = disk.parent().context("a folder")?;
        let file = disk.file_name().context("a name")?;
        let mut tar = Command::new("tar");
        tar.args(["--create", "--gzip", "--transform", "s,^,disk/,", "--file"]).arg(&archive);
        tar.arg("--directory").arg(folder).arg(file);
        process::run(&mut tar, Duration::from_secs(60))?.success()?;
        self.put_image(name, tag, &archive, [IMAGE_CONFIG, LAYER])?;
        Ok(())
    }

    /// Pushes the files of a folder under `tag` of an artifact. Returns the digest.
    pub fn push(&self, name: &str, tag: &str, folder: &Path) -> Result<String> {
        let archive = folder.with_extension("tgz");
        let mut tar = Command::new("tar");
        tar.arg("--create").arg("--gzip").arg("--file").arg(&archive).arg("--directory").arg(folder).arg(".");
        process::run(&mut tar, Duration::from_secs(30))?.success()?;
        self.put_image(name, tag, &archive, [CONFIG, CONTENT])
    }

    /// Stores an image of one layer. Returns its digest.
    fn put_image(
        &self,
        name: &str,
        tag: &str,
        layer: &Path,
        media_types: [&'static str; 2],
    ) -> Result<String> {
        let [config, content] = media_types;
        let layer = self.blob(name, std::fs::read(layer).context("the archive")?, content);
        let config = self.blob(name, b"{}".to_vec(), config);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
        })
        .to_string();
        let digest = digest(manifest.as_bytes());
        for reference in [tag, &digest] {
            let path = format!("{name}/manifests/{reference}");
            self.store.put(path, MANIFEST, manifest.clone().into_bytes());
        }
        let tags = json!({"name": name, "tags": self.store.tags(name)});
        self.store.put(format!("{name}/tags/list"), "application/json", tags.to_string().into_bytes());
        Ok(digest)
    }

    fn blob(&self, name: &str, content: Vec<u8>, media_type: &'static str) -> serde_json::Value {
        let digest = digest(&content);
        let described = json!({"mediaType": media_type, "digest": digest, "size": content.len()});
        self.store.put(format!("{name}/blobs/{digest}"), "application/octet-stream", content);
        described
    }
}

impl Drop for OciRegistry {
    fn drop(&mut self) {
        self.store.closed.store(true, Ordering::SeqCst);
        // The listener blocks in accept: one connection wakes it.
        let address = self.address;
        let _ = self.namespace.inside(move || Ok(TcpStream::connect(address)?));
    }
}

fn digest(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn serve(store: &Store, mut stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    let mut reader = BufReader::new(stream.take(16 << 10));
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut words = first.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 && !line.trim().is_empty() {
        line.clear();
    }
    let path = path.split('?').next().unwrap_or_default();
    let found = match path.strip_prefix("/v2/") {
        Some("") => Some(("application/json", b"{}".to_vec())),
        Some(path) => store.get(path),
        None => None,
    };
    let (status, media_type, content) = match found {
        Some((media_type, content)) => ("200 OK", media_type, content),
        None => ("404 Not Found", "application/json", br#"{"errors":[{"code":"NOT_FOUND"}]}"#.to_vec()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nDocker-Content-Digest: {}\r\n\
         Docker-Distribution-API-Version: registry/2.0\r\nConnection: close\r\n\r\n",
        content.len(),
        digest(&content)
    );
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(&content)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_the_content() {
        let of_nothing = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b""), of_nothing);
    }
}
