use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::sockets::serve;
use crate::toy::crd_json;

struct Kubectl {
    directory: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// Runs `kubectl` until it exits; returns `(succeeded, stdout, stderr)`.
    fn run(&self, arguments: &[&str], input: &str) -> (bool, String, String) {
        let mut child = Command::new("kubectl")
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("kubectl reads");
        let output = child.wait_with_output().expect("kubectl ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    }

    fn ok(&self, arguments: &[&str], input: &str) -> String {
        let (succeeded, out, err) = self.run(arguments, input);
        assert!(succeeded, "kubectl {arguments:?}: {err}{out}");
        out
    }
}

const BOAT: &str = "apiVersion: toys.example/v1\nkind: Boat\nmetadata: {name: ada}\nspec: {harbour: kiel}\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_does_its_everyday_work() {
    if Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        eprintln!("kubectl is not installed on this machine: nothing to try it with");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let (server, url, _stop) = serve(&state).await;
    let kubeconfig = state.join("kubeconfig");
    server.write_kubeconfig(&kubeconfig, &url).unwrap();
    let kubectl = Kubectl { directory, kubeconfig };
    tokio::task::spawn_blocking(move || everyday_work(&kubectl)).await.unwrap();
}

fn everyday_work(kubectl: &Kubectl) {
    kubectl.ok(&["apply", "-f", "-"], &crd_json().to_string());
    kubectl.ok(&["wait", "--for=condition=Established", "crd/boats.toys.example", "--timeout=10s"], "");
    assert!(kubectl.ok(&["apply", "-f", "-"], BOAT).contains("created"));
    assert!(kubectl.ok(&["apply", "-f", "-"], BOAT).contains("unchanged"));
    assert!(kubectl.ok(&["apply", "--server-side", "-f", "-"], BOAT).contains("serverside-applied"));
    let (succeeded, _, err) = kubectl.run(
        &["apply", "--server-side", "--field-manager=other", "-f", "-"],
        &BOAT.replace("kiel", "bremen"),
    );
    assert!(
        !succeeded && err.contains("conflict with \"kubectl\"") && err.contains(".spec.harbour"),
        "{err}"
    );
    let (succeeded, _, err) = kubectl.run(&["apply", "-f", "-"], &BOAT.replace("harbour", "harbor"));
    assert!(!succeeded && err.contains("unknown field \"spec.harbor\""), "{err}");
    let table = kubectl.ok(&["get", "toys"], "");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "HARBOUR", "AGE"]);
    assert_eq!(lines[1][..2], ["ada", "kiel"]);
    let watched = kubectl.ok(&["get", "boats", "--watch", "--request-timeout=2s"], "");
    assert!(watched.contains("HARBOUR") && watched.contains("kiel"), "{watched}");
    assert!(kubectl.ok(&["describe", "bt", "ada"], "").contains("Harbour:  kiel"));
    assert!(kubectl.ok(&["explain", "boat.spec.harbour"], "").contains("Where it lies."));
    assert!(kubectl.ok(&["api-resources", "--categories=toys"], "").contains("boats"));
    kubectl.ok(&["patch", "boat", "ada", "--type=merge", "-p", "{\"spec\":{\"oars\":4}}"], "");
    kubectl.ok(&["label", "boat", "ada", "size=small"], "");
    let status =
        "{\"status\":{\"observedGeneration\":9,\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}";
    kubectl.ok(&["patch", "boat", "ada", "--subresource=status", "--type=merge", "-p", status], "");
    kubectl.ok(&["wait", "--for=condition=Ready", "boat/ada", "--timeout=10s"], "");
    let found = kubectl
        .ok(&["get", "boats", "-l", "size=small", "--field-selector", "spec.harbour=kiel", "-o", "name"], "");
    assert_eq!(found, "boat.toys.example/ada\n");
    assert!(kubectl.ok(&["auth", "whoami"], "").contains("admin"));
    assert_eq!(kubectl.ok(&["auth", "can-i", "delete", "boats"], ""), "yes\n");
    kubectl.ok(&["create", "secret", "generic", "s", "--from-literal=a=b"], "");
    kubectl.ok(&["create", "serviceaccount", "robot"], "");
    let token = kubectl.ok(&["create", "token", "robot", "--duration=10m"], "");
    let robot = format!("--token={}", token.trim());
    assert!(kubectl.ok(&["auth", "whoami", &robot], "").contains("system:serviceaccount:default:robot"));
    assert!(kubectl.run(&["auth", "can-i", "get", "secrets", &robot], "").1.starts_with("no"));
    let listed = kubectl.ok(&["auth", "can-i", "--list", &robot], "");
    assert!(listed.contains("selfsubjectreviews") && listed.contains("/openapi/*"), "{listed}");
    assert!(kubectl.ok(&["cluster-info"], "").contains("is running at"));
    assert!(kubectl.ok(&["explain", "secret.data"], "").contains("Values by key"));
    prunes(kubectl);
    kubectl.ok(&["create", "namespace", "sea"], "");
    kubectl.ok(&["delete", "namespace", "sea", "--timeout=10s"], "");
    kubectl.ok(&["delete", "boat", "ada", "--timeout=10s"], "");
    let (succeeded, _, err) = kubectl.run(&["get", "boat", "ada"], "");
    assert!(!succeeded && err.contains("NotFound"), "{err}");
    kubectl.ok(&["delete", "crd", "boats.toys.example", "--timeout=10s"], "");
}

/// `kubectl apply --prune -l` deletes only the objects that it applied before and that are no longer in the
/// input.
fn prunes(kubectl: &Kubectl) {
    let map = |name: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{app: toys}}}}\n---\n")
    };
    let prune = ["apply", "--prune", "-l", "app=toys", "-f", "-"];
    kubectl.ok(&["create", "configmap", "other"], "");
    kubectl.ok(&prune, &[map("one"), map("two")].concat());
    let reported = kubectl.ok(&prune, &map("one"));
    assert!(reported.contains("configmap/two pruned"), "{reported}");
    let left = kubectl.ok(&["get", "configmaps", "-o", "name"], "");
    assert_eq!(left, "configmap/one\nconfigmap/other\n");
    assert!(kubectl.run(&["get", "all"], "").2.contains("No resources found"));
}
