//! `berth why`: reads an object and what it depends on, and prints what it waits for.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_agent::Usage;
use berth_api::console::ConsoleUse;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use tokio::{io::AsyncReadExt as _, time::timeout};

use super::{connect, console::connection, resources};
use crate::{
    cli::{ConsoleTarget, WhyOptions},
    one_connection::client_of,
    printable::printable,
    why::{Found, Node, Reference, explain, is_emulated, references, slowness},
};

/// How far references are followed: a VM, its disk, the disk's image, the image's host.
const DEPTH: usize = 3;
/// How many objects are read for one explanation.
const MOST_READ: usize = 300;
/// berth's kinds with their plurals.
const PREFIX: &str = "/apis/berth.dev/v1alpha1";
/// Secrets with theirs.
const CORE: &str = "/api/v1";

/// The time for a host's two readings.
const MEASURING: Duration = Duration::from_secs(15);
/// The maximum size of the two readings in bytes.
const MAX_USAGE: u64 = 1 << 20;

/// Prints what the object waits for.
///
/// *Errors:* the object does not exist or cannot be read.
pub(super) async fn run(options: WhyOptions) -> anyhow::Result<()> {
    let (kind, name) = resources::kind_and_name(&options.object)?;
    let namespace = resources::checked(&options.namespace)?;
    let client = client_of(connect::admin(&options.connection, &options.state.state_dir).await?)?;
    let resource = resources::ours(&client).await?.into_iter().find(|resource| resource.is(&kind));
    let Some(resource) = resource else {
        bail!("berth has no kind {kind:?}: vm, disk, image, host, network, publicip, …")
    };
    let path = format!("{}/{name}", resource.path(Some(namespace)));
    let object = match resources::get(&client, &path).await {
        Err(error) if resources::has_code(&error, 404) => match resource.namespaced {
            true => bail!("there is no {} {name} in namespace {namespace} (see -n)", resource.singular),
            false => bail!("there is no {} {name}", resource.singular),
        },
        other => other.with_context(|| format!("reading {}/{name}", resource.singular))?,
    };
    let singular = resource.singular.clone();
    let mut reader = Reader::new(&client);
    let node = Node {
        role: "",
        name: format!("{singular}/{name}"),
        dependencies: reader.dependencies(&singular, &object, DEPTH).await?,
        found: Found::Object(object.clone()),
    };
    let events = events(&client, &object).await;
    let mut text = explain(&node, &events, Timestamp::now());
    if reader.is_cut {
        text += &format!("It depends on more than {MOST_READ} objects: the others are not looked at.\n");
    }
    if singular == "vm" && object["status"]["state"] == "Running" {
        let target = ConsoleTarget {
            vm: name.to_owned(),
            namespace: namespace.to_owned(),
            state: options.state.clone(),
            connection: options.connection.clone(),
        };
        match measured(&target, is_emulated(&object)).await {
            Ok(found) => text.extend(found.iter().map(|sentence| format!("{sentence}\n"))),
            // A reader of VMs need not have the right to their consoles.
            Err(error) => text += &format!("Its host could not be asked how fast it runs: {error:#}\n"),
        }
    }
    std::io::stdout().write_all(printable(&text).as_bytes()).context("printing")
}

type Dependencies<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Vec<Node>>> + Send + 'a>>;

/// Reads what objects depend on: each object once, however many others name it.
struct Reader<'c> {
    client: &'c Client,
    known: BTreeMap<String, Found>,
    /// How many may still be read.
    left: usize,
    /// Whether there are more.
    is_cut: bool,
}

impl<'c> Reader<'c> {
    fn new(client: &'c Client) -> Self {
        Self { client, known: BTreeMap::new(), left: MOST_READ, is_cut: false }
    }

    fn dependencies<'a>(&'a mut self, kind: &'a str, object: &'a Value, depth: usize) -> Dependencies<'a> {
        Box::pin(async move {
            let mut found = Vec::new();
            for reference in references(kind, object) {
                let Some(object) = self.read(&reference).await? else { break };
                if object == Found::Missing && reference.may_be_missing() {
                    continue;
                }
                let dependencies = match &object {
                    Found::Object(object) if depth > 1 => {
                        self.dependencies(reference.kind, object, depth - 1).await?
                    }
                    _ => Vec::new(),
                };
                let name = format!("{}/{}", reference.kind, reference.name);
                found.push(Node { role: reference.role, name, found: object, dependencies });
            }
            Ok(found)
        })
    }

    /// Returns None once enough are read.
    async fn read(&mut self, reference: &Reference) -> anyhow::Result<Option<Found>> {
        let key = format!("{} {:?} {}", reference.kind, reference.namespaces, reference.name);
        if let Some(known) = self.known.get(&key) {
            return Ok(Some(known.clone()));
        }
        if self.left == 0 {
            self.is_cut = true;
            return Ok(None);
        }
        self.left -= 1;
        let found = read(self.client, reference).await?;
        self.known.insert(key, found.clone());
        Ok(Some(found))
    }
}

async fn read(client: &Client, reference: &Reference) -> anyhow::Result<Found> {
    let mut found = Found::Missing;
    let name = resources::checked(&reference.name)?;
    let prefix = if reference.kind == "secret" { CORE } else { PREFIX };
    for namespace in &reference.namespaces {
        let path = match namespace {
            Some(namespace) => format!("{prefix}/namespaces/{namespace}/{}/{name}", reference.plural),
            None => format!("{prefix}/{}/{name}", reference.plural),
        };
        match resources::get(client, &path).await {
            Ok(object) => return Ok(Found::Object(object)),
            Err(error) if resources::has_code(&error, 404) => {}
            Err(error) if resources::has_code(&error, 403) => found = Found::Forbidden,
            Err(error) => return Err(error).with_context(|| format!("reading {}/{name}", reference.kind)),
        }
    }
    Ok(found)
}

/// Reads the use of the host by the VM twice, and returns the sentences about it.
async fn measured(target: &ConsoleTarget, is_emulated: bool) -> anyhow::Result<Vec<String>> {
    let stream = connection::open(target, ConsoleUse::Usage, None).await?;
    let mut text = String::new();
    let mut stream = stream.take(MAX_USAGE);
    timeout(MEASURING, stream.read_to_string(&mut text))
        .await
        .context("it does not answer")?
        .context("reading its answer")?;
    let readings: Result<Vec<Usage>, _> = text.lines().map(serde_json::from_str).collect();
    match readings.context("its version of berth may differ")?.as_slice() {
        [before, after] => Ok(slowness(before, after, &target.namespace, &target.vm, is_emulated)),
        _ => bail!("its answer is incomplete"),
    }
}

/// Returns the events about an object; none if the user may not read them.
async fn events(client: &Client, object: &Value) -> Vec<Value> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
    let selector = resources::encoded(&format!("regarding.uid={uid}"));
    let path =
        format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events?limit=500&fieldSelector={selector}");
    let list = resources::get(client, &path).await.unwrap_or_default();
    list["items"].as_array().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;

    /// A control plane on which each VM has an interface on the same network, and the number of requests to it.
    fn control_plane() -> (Client, Arc<AtomicUsize>) {
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let serve = move |request: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let name = request.uri().path().rsplit('/').next().unwrap_or_default();
            let spec = json!({"networkInterfaces": [{"network": "lan"}]});
            let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
            let response = Response::builder().status(200).body(Body::from(object.to_string().into_bytes()));
            std::future::ready(Ok::<_, Infallible>(response.expect("a response")))
        };
        (Client::new(service_fn(serve), "default"), reads)
    }

    #[tokio::test]
    async fn an_object_that_several_others_name_is_read_once_and_not_all_are_read() {
        let ip =
            json!({"metadata": {"namespace": "default"}, "spec": {"ports": [{"targets": ["a", "b", "c"]}]}});
        let (client, reads) = control_plane();
        let mut reader = Reader::new(&client);
        let found = reader.dependencies("publicip", &ip, DEPTH).await.expect("read");
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|vm| vm.dependencies[0].name == "network/lan"), "{found:?}");
        assert_eq!((reads.load(Ordering::Relaxed), reader.is_cut), (4, false));
        let mut reader = Reader { left: 2, ..Reader::new(&client) };
        let found = reader.dependencies("publicip", &ip, DEPTH).await.expect("read");
        assert_eq!((found.len(), reader.is_cut), (1, true));
    }
}
