//! Conversion of store errors to API errors.

use berth_apimachinery::error::ApiError;
use berth_store::{ReadError, WriteError};
use http::StatusCode;
use serde_json::json;

/// Converts the error of a write, except a conflict, which only the caller can describe.
pub(crate) fn of_write(error: &WriteError) -> ApiError {
    match error {
        WriteError::Full | WriteError::OverQuota => {
            ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage", error.to_string())
        }
        WriteError::Closed => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", error.to_string())
                .retry_after(1)
        }
        WriteError::Conflict | WriteError::Refused(_) => ApiError::internal(error),
    }
}

/// Converts the error of a read of a past revision.
pub(crate) fn of_read(error: ReadError) -> ApiError {
    match error {
        ReadError::Compacted { .. } => ApiError::expired(
            "The provided resource version is too old: the requested history has been compacted",
        ),
        ReadError::Future { requested, current } => {
            let message = format!("Too large resource version: {requested}, current: {current}");
            let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
            ApiError::timeout(message).with_causes(vec![cause])
        }
        ReadError::Database(_) => ApiError::internal(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_that_is_used_up_is_told_as_no_storage() {
        assert_eq!(of_write(&WriteError::OverQuota).code, 507);
    }
}
