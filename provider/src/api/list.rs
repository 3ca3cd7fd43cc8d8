//! Lists of objects, page by page.

use serde_json::Value as Json;

use super::{Address, Api, ApiError, Call, RetryLimit};

/// The number of objects of one page, whose response has a limit as a whole.
const PAGE: usize = 200;
/// How often a list begins anew because the rest of it has expired.
const ATTEMPTS: u32 = 3;

/// The objects to list. An empty selector selects all.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// By labels.
    pub labels: String,
    /// By fields.
    pub fields: String,
}

impl Api {
    /// Lists the first objects beside `at` that are wanted, at most `count`: those of its kind in its namespace, in all
    /// namespaces if it has none. They are in the order of the control plane, by namespace and name.
    ///
    /// # Errors
    /// Every failure. A list is complete or an error.
    pub async fn list_up_to(
        &self,
        count: usize,
        at: &Address,
        selection: &Selection,
        is_wanted: &(dyn Fn(&Json) -> bool + Sync),
        retry_limit: &RetryLimit,
    ) -> Result<Vec<Json>, ApiError> {
        let mut attempt = 1;
        loop {
            match self.list_pages(count, at, selection, is_wanted, retry_limit).await {
                Err(error) if error.code() == 410 && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    /// Lists the first objects beside `at`, at most `count`.
    ///
    /// # Errors
    /// Every failure.
    pub async fn list_first(
        &self,
        at: &Address,
        count: usize,
        retry_limit: &RetryLimit,
    ) -> Result<Vec<Json>, ApiError> {
        let mut page = self.page(at, &Selection::default(), count, "", retry_limit).await?;
        Ok(items(&mut page))
    }

    async fn list_pages(
        &self,
        count: usize,
        at: &Address,
        selection: &Selection,
        is_wanted: &(dyn Fn(&Json) -> bool + Sync),
        retry_limit: &RetryLimit,
    ) -> Result<Vec<Json>, ApiError> {
        let mut found = Vec::new();
        let mut rest = String::new();
        let mut is_filtered = false;
        loop {
            let left = count.saturating_sub(found.len());
            if left == 0 {
                return Ok(found);
            }
            // Of objects that are mostly not wanted, pages as small as that would be as many as there are objects.
            let size = if is_filtered { PAGE } else { PAGE.min(left) };
            let mut page = self.page(at, selection, size, &rest, retry_limit).await?;
            let (wanted, others): (Vec<Json>, Vec<Json>) = items(&mut page).into_iter().partition(is_wanted);
            is_filtered |= !others.is_empty();
            found.extend(wanted.into_iter().take(left));
            match next(&page) {
                Some(token) => token.clone_into(&mut rest),
                None => return Ok(found),
            }
        }
    }

    /// One page; `rest` is the token of the page before.
    pub(super) async fn page(
        &self,
        at: &Address,
        selection: &Selection,
        count: usize,
        rest: &str,
        retry_limit: &RetryLimit,
    ) -> Result<Json, ApiError> {
        let mut path = format!("{}?limit={count}", at.collection());
        let parameters = [
            ("labelSelector", &*selection.labels),
            ("fieldSelector", &*selection.fields),
            ("continue", rest),
        ];
        for (name, value) in parameters.into_iter().filter(|(_, value)| !value.is_empty()) {
            path.push_str(&format!("&{name}={}", encoded(value)));
        }
        Ok(self.call(Call::get(path), retry_limit).await?.1)
    }
}

/// The token of the next page.
pub(super) fn next(page: &Json) -> Option<&str> {
    page.pointer("/metadata/continue")?.as_str().filter(|token| !token.is_empty())
}

/// The objects of a page.
pub(super) fn items(page: &mut Json) -> Vec<Json> {
    match page.get_mut("items").map(Json::take) {
        Some(Json::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// A text as a part of a query.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
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
    use kube::{Client, client::Body};
    use serde_json::json;
    use tfplugin6::CancellationToken;

    use super::super::RESPONSE_LIMIT;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_too_large_is_an_error_of_its_own_and_not_asked_for_again() {
        let service = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::from(vec![b' '; RESPONSE_LIMIT + 1])))
        });
        let api = Api::new(Client::new(service, "default"));
        let limit = RetryLimit::seconds(600, &CancellationToken::new());
        let began = tokio::time::Instant::now();
        let listed = api.list_first(&Address::berth("vms", "default", ""), 1, &limit).await;
        let error = listed.expect_err("too large");
        assert!(matches!(&error, ApiError::InvalidResponse(why) if why.contains("16 MiB")), "{error}");
        assert!(began.elapsed().is_zero(), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_short_list_of_objects_that_are_mostly_not_wanted_is_not_read_one_by_one() {
        const ALL: usize = 1000;
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let query = request.uri().query().unwrap_or_default().to_owned();
            let number = |name: &str| -> usize {
                let value = query.split('&').find_map(|pair| pair.strip_prefix(name));
                value.map_or(0, |value| value.parse().expect("a number"))
            };
            let (from, limit) = (number("continue="), number("limit="));
            let to = ALL.min(from + limit);
            let rest = if to < ALL { to.to_string() } else { String::new() };
            let page = json!({"metadata": {"continue": rest}, "items": (from..to).collect::<Vec<usize>>()});
            async move { Ok::<_, Infallible>(Response::new(Body::from(page.to_string().into_bytes()))) }
        });
        let api = Api::new(Client::new(service, "default"));
        let limit = RetryLimit::seconds(600, &CancellationToken::new());
        let at = Address::berth("vms", "default", "");
        let is_last = |object: &Json| *object == json!(ALL - 1);
        let found = api.list_up_to(1, &at, &Selection::default(), &is_last, &limit).await;
        assert_eq!(found.expect("a list"), [json!(ALL - 1)]);
        assert!(requests.load(Ordering::Relaxed) <= 6, "{requests:?}");
    }

    #[test]
    fn a_selector_is_one_parameter_of_the_query() {
        assert_eq!(encoded("a in (b,c)&x=ä"), "a%20in%20%28b%2Cc%29%26x%3D%C3%A4");
    }
}
