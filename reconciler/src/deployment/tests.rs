use super::*;

fn deployment() -> Deployment {
    Deployment {
        image: "registry.example/berth:1.0".into(),
        replicas: 2,
        arguments: Vec::new(),
        environment: Vec::new(),
        node_selector: Vec::new(),
        tolerations: Vec::new(),
        requests: pairs(&[("cpu", "100m"), ("memory", "128Mi")]),
        limits: Vec::new(),
        pull_secrets: Vec::new(),
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn workload(deployment: &Deployment) -> Value {
    let [_, _, workload] = objects(deployment).expect("valid");
    workload["spec"].clone()
}

#[test]
fn the_account_of_the_controllers_has_the_role_that_the_manifests_define() {
    let [account, binding, workload] = objects(&deployment()).expect("valid");
    assert_eq!(binding["subjects"][0]["name"], account["metadata"]["name"]);
    assert_eq!(binding["subjects"][0]["namespace"], account["metadata"]["namespace"]);
    assert_eq!(workload["spec"]["template"]["spec"]["serviceAccountName"], account["metadata"]["name"]);
    let role = &binding["roleRef"]["name"];
    let manifests = berth_api::manifests::all();
    assert!(
        manifests.iter().any(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == *role)
    );
}

#[test]
fn the_pod_fits_the_restricted_standard_and_is_probed() {
    let spec = workload(&deployment());
    assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(container["ports"][0]["containerPort"], 8081);
    for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": "health"}));
    }
    assert_eq!(container["args"], json!(["controllers"]));
    for absent in ["nodeSelector", "tolerations", "imagePullSecrets"] {
        assert_eq!(pod[absent], Value::Null, "{absent}");
    }
}

#[test]
fn values_that_differ_between_sites_are_in_the_pod() {
    let site = Deployment {
        replicas: 3,
        arguments: vec!["--placement".into(), "pack".into()],
        environment: pairs(&[("HTTPS_PROXY", "http://$(USER):3128"), ("BERTH_HEALTH", "0.0.0.0:9000")]),
        node_selector: pairs(&[("kubernetes.io/arch", "amd64")]),
        tolerations: vec![
            Toleration { key: "a".into(), value: None, effect: None },
            Toleration { key: "b".into(), value: Some("c".into()), effect: Some("NoSchedule".into()) },
        ],
        limits: pairs(&[("memory", "1Gi")]),
        pull_secrets: vec!["registry".into()],
        ..deployment()
    };
    let spec = workload(&site);
    assert_eq!(spec["replicas"], 3);
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/arch": "amd64"}));
    assert_eq!(
        pod["tolerations"],
        json!([{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Equal", "value": "c", "effect": "NoSchedule"}])
    );
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    let container = &pod["containers"][0];
    assert_eq!(container["args"], json!(["controllers", "--placement", "pack"]));
    assert_eq!(container["ports"][0]["containerPort"], 9000);
    let resources = json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}});
    assert_eq!(container["resources"], resources);
    // The kubelet makes one $ of two, and leaves the parenthesis.
    let proxy = json!({"name": "HTTPS_PROXY", "value": "http://$$(USER):3128"});
    assert!(container["env"].as_array().is_some_and(|variables| variables.contains(&proxy)), "{container:#}");
    assert_eq!(container["env"].as_array().map(Vec::len), Some(3));
}

#[test]
fn values_that_have_no_place_in_a_deployment_are_refused() {
    let refused = |site: Deployment| format!("{:#}", objects(&site).expect_err("refused"));
    for image in ["", "-x", "a b", "a\nb", "x".repeat(513).as_str()] {
        let site = Deployment { image: image.to_owned(), ..deployment() };
        assert!(refused(site).contains("is no name of an image"), "{image:?}");
    }
    let environment = |pair| Deployment { environment: pairs(&[pair]), ..deployment() };
    assert!(refused(environment(("A-B", "x"))).contains("is not the name of a variable"));
    assert!(refused(environment(("BERTH_HEALTH", "8081"))).contains("is not ADDRESS:PORT"));
    for health in ["127.0.0.1:8081", "[::1]:8081", "0.0.0.0:0"] {
        assert!(refused(environment(("BERTH_HEALTH", health))).contains("cannot probe"), "{health}");
    }
    for health in ["--health", "--health=[::]:1"] {
        let site = Deployment { arguments: vec![health.to_owned()], ..deployment() };
        assert!(refused(site).contains("--env BERTH_HEALTH"), "{health}");
    }
}
