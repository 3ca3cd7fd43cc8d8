//! `serviceaccounts/NAME/token`: issues a token for a ServiceAccount. The server stores nothing of it.

use berth_apimachinery::error::Subject;
use berth_apimachinery::meta;
use berth_apimachinery::schema::FieldError;
use berth_apimachinery::time::seconds;
use http::StatusCode;
use serde_json::{Value, json};

use super::{Answer, ApiError, Call, Result};
use crate::admission::Operation;
use crate::builtin::decode::unreadable;
use crate::service_account::{self, AccountClaims, Claims, ISSUER, MAX_TOKEN, Named};

/// Lifetimes in seconds, as in Kubernetes.
const DEFAULT_LIFE: i64 = 3600;
const SHORTEST_LIFE: i64 = 600;
const LONGEST_LIFE: i64 = 1 << 32;
/// The maximum number of audiences of one token.
const MAX_AUDIENCES: usize = 16;

impl Call {
    /// Answers a body that is a `TokenRequest`, declared or not.
    pub(crate) fn create_token(&mut self, mut request: Value) -> Result<Answer> {
        self.accept_side("authentication.k8s.io", "TokenRequest", &mut request)
            .map_err(|why| unreadable("TokenRequest", "v1", &why))?;
        let account = self.existing()?;
        let now = self.core.clock.now();
        let life = life(&request["spec"]["expirationSeconds"]).map_err(|e| self.unfit(&[e]))?;
        let audiences = self.audiences(&request["spec"]["audiences"])?;
        request["kind"] = "TokenRequest".into();
        request["apiVersion"] = "authentication.k8s.io/v1".into();
        request["metadata"] = json!({"name": self.target.name, "namespace": self.target.namespace});
        self.admit(Operation::Create, Some(&request), None)?;
        let (namespace, name) = (&self.target.namespace, &self.target.name);
        let claims = Claims {
            audiences,
            expires: now.as_second() + life,
            issued: now.as_second(),
            issuer: ISSUER.to_owned(),
            id: self.core.ids.uid(),
            account: AccountClaims {
                namespace: namespace.clone(),
                serviceaccount: Named { name: name.clone(), uid: account.facts.uid.to_string() },
                secret: self.bound(&request["spec"]["boundObjectRef"])?,
            },
            not_before: now.as_second(),
            user: service_account::user_name(namespace, name),
        };
        let expires = jiff::Timestamp::from_second(claims.expires).map_err(ApiError::internal)?;
        let token = if self.options.dry_run {
            String::new()
        } else {
            self.core.tokens.accounts.signing.sign(&claims).map_err(ApiError::internal)?
        };
        // It would be issued, and never accepted.
        if token.len() > MAX_TOKEN {
            let why = format!("the token would be longer than {MAX_TOKEN} bytes");
            return Err(self.unfit(&[meta::invalid("spec.audiences", &request["spec"]["audiences"], &why)]));
        }
        request["metadata"] = json!({
            "name": name, "namespace": namespace, "uid": claims.account.serviceaccount.uid,
            "creationTimestamp": seconds(now),
        });
        if !request["spec"].is_object() {
            request["spec"] = json!({});
        }
        request["spec"]["expirationSeconds"] = life.into();
        request["spec"]["audiences"] = json!(claims.audiences);
        if request["spec"].get("boundObjectRef").is_none() {
            request["spec"]["boundObjectRef"] = Value::Null;
        }
        request["status"] = json!({"token": token, "expirationTimestamp": seconds(expires)});
        Ok(Answer { is_object: false, ..Answer::of_value(StatusCode::CREATED, &request) })
    }

    fn unfit(&self, errors: &[FieldError]) -> ApiError {
        let group = "authentication.k8s.io";
        ApiError::invalid(Subject { group, kind: "TokenRequest", name: "" }, errors)
    }

    fn audiences(&self, sent: &Value) -> Result<Vec<String>> {
        let list = sent.as_array().map(Vec::as_slice).unwrap_or_default();
        if list.is_empty() {
            return Ok(vec![ISSUER.to_owned()]);
        }
        if list.len() > MAX_AUDIENCES {
            let why = format!("must be at most {MAX_AUDIENCES}");
            return Err(self.unfit(&[meta::invalid("spec.audiences", sent, &why)]));
        }
        Ok(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Returns the Secret to which the token is bound.
    fn bound(&self, reference: &Value) -> Result<Option<Named>> {
        if reference.is_null() {
            return Ok(None);
        }
        let text = |member: &str| reference[member].as_str().unwrap_or_default();
        if text("kind") != "Secret" || text("apiVersion") != "v1" {
            let why =
                format!("cannot bind token to object of type {}, Kind={}", text("apiVersion"), text("kind"));
            return Err(ApiError::bad_request(why));
        }
        let subject = Subject { group: "", kind: "secrets", name: text("name") };
        let key = berth_store::Key::new(&self.core.secrets, &self.target.namespace, text("name"));
        let secret = self.core.store.get(&key).ok_or_else(|| ApiError::not_found(subject))?;
        let uid = secret.facts.uid.to_string();
        if !text("uid").is_empty() && text("uid") != uid {
            let why = format!(
                "the UID in the bound object reference ({}) does not match the UID in record. \
                 The object might have been deleted and then recreated",
                text("uid")
            );
            let subject = Subject { kind: "Secret", ..subject };
            return Err(ApiError::conflict(subject, &why));
        }
        Ok(Some(Named { name: text("name").to_owned(), uid }))
    }
}

fn life(sent: &Value) -> Result<i64, FieldError> {
    let field = "spec.expirationSeconds";
    let Some(seconds) = sent.as_i64() else { return Ok(DEFAULT_LIFE) };
    if seconds < SHORTEST_LIFE {
        return Err(meta::invalid(field, sent, "may not specify a duration less than 10 minutes"));
    }
    if seconds > LONGEST_LIFE {
        return Err(meta::invalid(field, sent, "may not specify a duration larger than 2^32 seconds"));
    }
    Ok(seconds)
}
