//! The schemas of the built-in kinds.

use serde_json::{Value, json};

pub(super) fn all() -> Vec<((&'static str, &'static str), Value)> {
    vec![
        (("", "Secret"), secret()),
        (("", "ConfigMap"), config_map()),
        (("", "Namespace"), namespace()),
        (("", "Event"), core_event()),
        (("events.k8s.io", "Event"), event()),
        (("", "ServiceAccount"), service_account()),
        (("coordination.k8s.io", "Lease"), lease()),
        (("rbac.authorization.k8s.io", "Role"), role(false)),
        (("rbac.authorization.k8s.io", "ClusterRole"), role(true)),
        (("rbac.authorization.k8s.io", "RoleBinding"), binding()),
        (("rbac.authorization.k8s.io", "ClusterRoleBinding"), binding()),
        (("apiextensions.k8s.io", "CustomResourceDefinition"), custom_resource_definition()),
        (("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"), policy()),
        (("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"), policy_binding()),
        (("authentication.k8s.io", "SelfSubjectReview"), self_subject_review()),
        (("authentication.k8s.io", "TokenRequest"), token_request()),
        (("authentication.k8s.io", "TokenReview"), token_review()),
        (("authorization.k8s.io", "SelfSubjectAccessReview"), access_review(json!({}))),
        (("authorization.k8s.io", "SubjectAccessReview"), access_review(somebody())),
        (("authorization.k8s.io", "LocalSubjectAccessReview"), access_review(somebody())),
        (("authorization.k8s.io", "SelfSubjectRulesReview"), rules_review()),
        (("", "DeleteOptions"), delete_options()),
    ]
}

/// Returns the schema of an object with the usual head and these properties.
fn kind(description: &str, properties: Value) -> Value {
    let mut all = json!({
        "apiVersion": {"type": "string", "description": "Group and version of this representation."},
        "kind": {"type": "string", "description": "The meaning of the object."},
    });
    if let (Some(all), Value::Object(own)) = (all.as_object_mut(), properties) {
        all.extend(own);
    }
    json!({"type": "object", "description": description, "properties": all})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn texts() -> Value {
    json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic"})
}

fn time() -> Value {
    json!({"type": "string", "format": "date-time", "nullable": true})
}

fn map_of(value: Value) -> Value {
    json!({"type": "object", "additionalProperties": value})
}

fn bytes() -> Value {
    json!({"type": "string", "format": "byte", "nullable": true})
}

fn described(description: &str, mut schema: Value) -> Value {
    schema["description"] = description.into();
    schema
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items, "x-kubernetes-list-type": "atomic"})
}

fn keyed(key: &str, mut items: Value) -> Value {
    items["required"] = json!([key]);
    json!({
        "type": "array",
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    })
}

fn conditions() -> Value {
    keyed(
        "type",
        object(json!({
            "type": text(), "status": text(), "reason": text(), "message": text(),
            "observedGeneration": {"type": "integer", "format": "int64"}, "lastTransitionTime": time(),
        })),
    )
}

/// Returns a schema that keeps any value.
fn anything() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn reference() -> Value {
    json!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "apiVersion": text(), "kind": text(), "namespace": text(), "name": text(), "uid": text(),
            "resourceVersion": text(), "fieldPath": text(),
        },
    })
}

fn secret() -> Value {
    kind(
        "Secret holds data that must not be shown.",
        json!({
            "data": described("Values by key, encoded as base64.", map_of(bytes())),
            "stringData": described("Values by key as text; written into data, and never answered.", map_of(text())),
            "immutable": {"type": "boolean", "description": "Whether the data can no longer change."},
            "type": {"type": "string", "description": "The use of the data."},
        }),
    )
}

fn config_map() -> Value {
    kind(
        "ConfigMap holds configuration data.",
        json!({
            "data": described("Values by key, as text.", map_of(text())),
            "binaryData": described("Values by key that are no text, encoded as base64.", map_of(bytes())),
            "immutable": {"type": "boolean", "description": "Whether the data can no longer change."},
        }),
    )
}

fn namespace() -> Value {
    kind(
        "Namespace is a scope for names.",
        json!({
            "spec": object(json!({"finalizers": texts()})),
            "status": object(json!({"phase": text(), "conditions": conditions()})),
        }),
    )
}

fn core_event() -> Value {
    kind(
        "Event is a report of something that happened.",
        json!({
            "involvedObject": reference(),
            "related": reference(),
            "reason": text(),
            "message": text(),
            "source": object(json!({"component": text(), "host": text()})),
            "firstTimestamp": time(),
            "lastTimestamp": time(),
            "eventTime": time(),
            "count": {"type": "integer", "format": "int32"},
            "type": text(),
            "action": text(),
            "reportingComponent": text(),
            "reportingInstance": text(),
            "series": object(json!({"count": {"type": "integer", "format": "int32"}, "lastObservedTime": time()})),
        }),
    )
}

fn event() -> Value {
    kind(
        "Event is a report of something that happened.",
        json!({
            "regarding": reference(),
            "related": reference(),
            "reason": text(),
            "note": text(),
            "type": text(),
            "action": text(),
            "eventTime": time(),
            "reportingController": text(),
            "reportingInstance": text(),
            "series": object(json!({"count": {"type": "integer", "format": "int32"}, "lastObservedTime": time()})),
            "deprecatedSource": object(json!({"component": text(), "host": text()})),
            "deprecatedFirstTimestamp": time(),
            "deprecatedLastTimestamp": time(),
            "deprecatedCount": {"type": "integer", "format": "int32"},
        }),
    )
}

fn service_account() -> Value {
    kind(
        "ServiceAccount is an identity for programs.",
        json!({
            "automountServiceAccountToken": {"type": "boolean"},
            "imagePullSecrets": list(object(json!({"name": text()}))),
            "secrets": keyed("name", reference()),
        }),
    )
}

fn lease() -> Value {
    let integer = || json!({"type": "integer", "format": "int32"});
    kind(
        "Lease names the holder of something, and the time until which it is held.",
        json!({
            "spec": object(json!({
                "holderIdentity": text(), "leaseDurationSeconds": integer(), "leaseTransitions": integer(),
                "acquireTime": time(), "renewTime": time(), "preferredHolder": text(), "strategy": text(),
            })),
        }),
    )
}

fn selector() -> Value {
    let expression = object(json!({"key": text(), "operator": text(), "values": texts()}));
    json!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {"matchLabels": map_of(text()), "matchExpressions": list(expression)},
    })
}

fn role(cluster: bool) -> Value {
    let rule = object(json!({
        "apiGroups": texts(), "resources": texts(), "resourceNames": texts(), "verbs": texts(), "nonResourceURLs": texts(),
    }));
    let mut properties = json!({"rules": {"type": "array", "items": rule, "nullable": true}});
    if cluster {
        properties["aggregationRule"] = object(json!({"clusterRoleSelectors": list(selector())}));
    }
    kind("A set of rules of what may be done.", properties)
}

fn binding() -> Value {
    let subject = json!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {"apiGroup": text(), "kind": text(), "name": text(), "namespace": text()},
    });
    kind(
        "Gives a role to subjects.",
        json!({
            "roleRef": {
                "type": "object",
                "x-kubernetes-map-type": "atomic",
                "required": ["apiGroup", "kind", "name"],
                "properties": {"apiGroup": text(), "kind": text(), "name": text()},
            },
            "subjects": list(subject),
        }),
    )
}

fn custom_resource_definition() -> Value {
    let names = || {
        object(json!({
            "plural": text(), "singular": text(), "kind": text(), "listKind": text(), "shortNames": texts(),
            "categories": texts(),
        }))
    };
    let column = object(json!({
        "name": text(), "type": text(), "format": text(), "description": text(), "jsonPath": text(),
        "priority": {"type": "integer", "format": "int32"},
    }));
    let version = object(json!({
        "name": text(), "served": {"type": "boolean"}, "storage": {"type": "boolean"}, "deprecated": {"type": "boolean"},
        "deprecationWarning": text(),
        "schema": object(json!({"openAPIV3Schema": anything()})),
        "subresources": object(json!({"status": anything(), "scale": anything()})),
        "additionalPrinterColumns": list(column),
        "selectableFields": list(object(json!({"jsonPath": text()}))),
    }));
    kind(
        "CustomResourceDefinition adds a kind to the server.",
        json!({
            "spec": object(json!({
                "group": text(), "names": names(), "scope": text(), "versions": list(version),
                "conversion": anything(), "preserveUnknownFields": {"type": "boolean"},
            })),
            "status": object(json!({
                "conditions": conditions(), "acceptedNames": names(), "storedVersions": texts(),
                "observedGeneration": {"type": "integer", "format": "int64"},
            })),
        }),
    )
}

fn match_resources() -> Value {
    let rule = || {
        json!({
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {
                "apiGroups": texts(), "apiVersions": texts(), "operations": texts(), "resources": texts(),
                "resourceNames": texts(), "scope": text(),
            },
        })
    };
    json!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "resourceRules": list(rule()), "excludeResourceRules": list(rule()), "namespaceSelector": selector(),
            "objectSelector": selector(), "matchPolicy": text(),
        },
    })
}

fn policy() -> Value {
    let named = || object(json!({"name": text(), "expression": text()}));
    let validation = object(json!({
        "expression": text(), "message": text(), "messageExpression": text(), "reason": text(),
    }));
    let mut variables = keyed("name", named());
    variables["items"]["x-kubernetes-map-type"] = json!("atomic");
    kind(
        "ValidatingAdmissionPolicy describes what may be written, in CEL.",
        json!({
            "spec": object(json!({
                "failurePolicy": text(), "paramKind": anything(), "matchConstraints": match_resources(),
                "matchConditions": keyed("name", named()), "variables": variables, "validations": list(validation),
                "auditAnnotations": list(object(json!({"key": text(), "valueExpression": text()}))),
            })),
            "status": object(json!({
                "observedGeneration": {"type": "integer", "format": "int64"}, "conditions": conditions(),
                "typeChecking": anything(),
            })),
        }),
    )
}

fn policy_binding() -> Value {
    let mut actions = texts();
    actions["x-kubernetes-list-type"] = json!("set");
    kind(
        "ValidatingAdmissionPolicyBinding puts a policy in force.",
        json!({
            "spec": object(json!({
                "policyName": text(), "paramRef": anything(), "matchResources": match_resources(),
                "validationActions": actions,
            })),
        }),
    )
}

fn user_info() -> Value {
    object(json!({"username": text(), "uid": text(), "groups": texts(), "extra": map_of(texts())}))
}

fn self_subject_review() -> Value {
    let status = object(json!({"userInfo": user_info()}));
    kind("SelfSubjectReview asks for the user of the request.", json!({"status": status}))
}

fn token_review() -> Value {
    kind(
        "TokenReview asks whose a token is.",
        json!({
            "spec": object(json!({"token": text(), "audiences": texts()})),
            "status": object(json!({
                "authenticated": {"type": "boolean"}, "user": user_info(), "audiences": texts(), "error": text(),
            })),
        }),
    )
}

fn somebody() -> Value {
    json!({"user": text(), "groups": texts(), "uid": text(), "extra": map_of(texts())})
}

fn access_review(who: Value) -> Value {
    let by = || {
        let requirement = object(json!({"key": text(), "operator": text(), "values": texts()}));
        object(json!({"rawSelector": text(), "requirements": list(requirement)}))
    };
    let resource = object(json!({
        "namespace": text(), "verb": text(), "group": text(), "version": text(), "resource": text(),
        "subresource": text(), "name": text(), "fieldSelector": by(), "labelSelector": by(),
    }));
    let path = object(json!({"path": text(), "verb": text()}));
    let mut spec = who;
    spec["resourceAttributes"] = resource;
    spec["nonResourceAttributes"] = path;
    kind(
        "Asks whether the sender, or a named user, may do something.",
        json!({
            "spec": object(spec),
            "status": object(json!({
                "allowed": {"type": "boolean"}, "denied": {"type": "boolean"}, "reason": text(), "evaluationError": text(),
            })),
        }),
    )
}

fn rules_review() -> Value {
    let rule = |properties: Value| list(object(properties));
    kind(
        "SelfSubjectRulesReview asks what the sender may do in a namespace.",
        json!({
            "spec": object(json!({"namespace": text()})),
            "status": object(json!({
                "incomplete": {"type": "boolean"}, "evaluationError": text(),
                "resourceRules": rule(json!({"verbs": texts(), "apiGroups": texts(), "resources": texts(), "resourceNames": texts()})),
                "nonResourceRules": rule(json!({"verbs": texts(), "nonResourceURLs": texts()})),
            })),
        }),
    )
}

fn token_request() -> Value {
    let bound = object(json!({"kind": text(), "apiVersion": text(), "name": text(), "uid": text()}));
    kind(
        "TokenRequest asks for a token of a ServiceAccount.",
        json!({
            "spec": object(json!({
                "audiences": texts(), "expirationSeconds": {"type": "integer", "format": "int64"}, "boundObjectRef": bound,
            })),
            "status": object(json!({"token": text(), "expirationTimestamp": time()})),
        }),
    )
}

fn delete_options() -> Value {
    kind(
        "DeleteOptions says how to delete an object.",
        json!({
            "gracePeriodSeconds": {"type": "integer"}, "orphanDependents": {"type": "boolean"},
            "preconditions": object(json!({"uid": text(), "resourceVersion": text()})),
            "propagationPolicy": text(), "dryRun": texts(),
        }),
    )
}
