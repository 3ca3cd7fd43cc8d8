//! Tokens of ServiceAccounts.

use http::Method;
use serde_json::{Value as Json, json};

use super::{Address, Api, ApiError, Call, RetryLimit};

impl Api {
    /// Requests a token of the ServiceAccount at `at`, by a `TokenRequest` with this `spec`. Returns its status.
    ///
    /// # Errors
    /// 404 when the ServiceAccount does not exist, 422 when the lifetime or an audience is refused.
    pub async fn request_token(
        &self,
        at: &Address,
        spec: Json,
        retry_limit: &RetryLimit,
    ) -> Result<Json, ApiError> {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let call = Call::new(Method::POST, format!("{}/token", at.path()), "application/json", &request)?;
        let (_, mut answer, _) = self.call(call, retry_limit).await?;
        Ok(answer.get_mut("status").map(Json::take).unwrap_or_default())
    }
}
