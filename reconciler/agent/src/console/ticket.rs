//! The tickets that clients present: tokens of a ServiceAccount such as `berth-console`, see [`berth_api::console`].
//!
//! ```text
//!  issued within a minute ─▶ TokenReview: signature, expiry, audience (VM, uid, use), account ─▶ first use ─▶ accepted
//! ```

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_api::SYSTEM_NAMESPACE;
use berth_api::console::{COPY_ACCOUNT, TICKET_LIFE};
use berth_api::manifests::access::account_name;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::refusal::ConsoleRefusal;

/// The number of tickets that the control plane verifies at a time.
const REVIEWS: usize = 8;
/// How long used tickets are remembered: the shortest life of a token. Longer than they are accepted, so that a clock that
/// is set back makes none valid again.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The number of used tickets of an account that are remembered; further ones are refused until some are forgotten. One account does
/// not exhaust another: hosts with accounts of their own copy images in one namespace.
const USED_OF_ACCOUNT: usize = 512;

/// The ticket that a request needs.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    pub(super) namespace: &'a str,
    pub(super) audience: String,
    /// The names of the ServiceAccounts, one of which the ticket is of.
    pub(super) accounts: &'a [&'a str],
}

/// Verifies tickets, and remembers those that were used.
#[derive(Debug)]
pub(super) struct Tickets {
    /// Earlier tickets may have been used before this agent started.
    since: Timestamp,
    reviews: Semaphore,
    used: Mutex<Used>,
}

impl Tickets {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { since: now, reviews: Semaphore::new(REVIEWS), used: Mutex::default() }
    }

    /// Accepts a ticket, which is used from then on.
    ///
    /// *Errors:* it is not valid for this audience, not of this account and namespace, too old, or used.
    pub(super) async fn redeem(
        &self,
        client: &Client,
        now: Timestamp,
        ticket: &str,
        claim: &Claim<'_>,
    ) -> Result<(), ConsoleRefusal> {
        // Nothing is verified yet: this only saves the control plane from tickets that are refused anyway.
        self.check_age(issued(ticket).ok_or(ConsoleRefusal::NotValid)?, now)?;
        let id = Sha256::digest(ticket.as_bytes()).into();
        if self.used.lock().unwrap_or_else(PoisonError::into_inner).contains(&id) {
            return Err(ConsoleRefusal::Used);
        }
        let holder = self.review(client, ticket, claim).await?;
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(holder, id, Instant::now())
    }

    /// Accepts a ticket of a host: of its own account, or of the one that hosts without an account use.
    ///
    /// *Errors:* those of [`redeem`](Self::redeem).
    pub(super) async fn redeem_of_host(
        &self,
        client: &Client,
        now: Timestamp,
        ticket: &str,
        host: &str,
        audience: String,
    ) -> Result<(), ConsoleRefusal> {
        let account = account_name(host);
        let accounts = [account.as_str(), COPY_ACCOUNT];
        let claim = Claim { namespace: SYSTEM_NAMESPACE, audience, accounts: &accounts };
        self.redeem(client, now, ticket, &claim).await
    }

    fn check_age(&self, issued: i64, now: Timestamp) -> Result<(), ConsoleRefusal> {
        let age = now.as_second().saturating_sub(issued);
        let life = TICKET_LIFE.as_secs();
        // The clocks of the control plane and of this host may differ in either direction.
        if age.unsigned_abs() > life {
            return Err(ConsoleRefusal::Expired { age, life });
        }
        if issued <= self.since.as_second() {
            return Err(ConsoleRefusal::BeforeStart);
        }
        Ok(())
    }

    /// Returns the account that the control plane issued the ticket to.
    async fn review(
        &self,
        client: &Client,
        ticket: &str,
        claim: &Claim<'_>,
    ) -> Result<String, ConsoleRefusal> {
        let audiences = Some(vec![claim.audience.clone()]);
        let spec = TokenReviewSpec { token: ticket.to_owned(), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(client.clone());
        let permit = self.reviews.acquire().await;
        let reviewed = reviews.create(&PostParams::default(), &review).await;
        drop(permit);
        let status = match reviewed {
            Ok(review) => review.status.unwrap_or_default(),
            Err(kube::Error::Api(status)) if status.code == 403 => return Err(ConsoleRefusal::MustNotReview),
            Err(error) => return Err(ConsoleRefusal::CannotReview { detail: error.to_string() }),
        };
        // An authenticator that knows no audiences accepts a token for any.
        let is_for_audience = status.audiences.iter().flatten().any(|each| *each == claim.audience);
        let holder = status.user.and_then(|user| user.username).unwrap_or_default();
        let mut accounts = claim.accounts.iter();
        let is_holder =
            accounts.any(|account| holder == format!("system:serviceaccount:{}:{account}", claim.namespace));
        if status.authenticated != Some(true) || !is_for_audience || !is_holder {
            return Err(ConsoleRefusal::NotValid);
        }
        Ok(holder)
    }
}

/// Returns the time of issue in a token, in seconds since 1970, without verifying the token.
fn issued(token: &str) -> Option<i64> {
    let claims = token.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice::<serde_json::Value>(&claims).ok()?.get("iat")?.as_i64()
}

/// The used tickets of each account, by SHA-256, with the time of use.
#[derive(Debug, Default)]
struct Used(HashMap<String, HashMap<[u8; 32], Instant>>);

impl Used {
    fn contains(&self, id: &[u8; 32]) -> bool {
        self.0.values().any(|used| used.contains_key(id))
    }

    fn insert(&mut self, holder: String, id: [u8; 32], now: Instant) -> Result<(), ConsoleRefusal> {
        self.0.retain(|_, used| {
            used.retain(|_, at| now.duration_since(*at) < REMEMBERED);
            !used.is_empty()
        });
        let used = self.0.entry(holder).or_default();
        if used.contains_key(&id) {
            return Err(ConsoleRefusal::Used);
        }
        if used.len() >= USED_OF_ACCOUNT {
            return Err(ConsoleRefusal::TooManyTickets);
        }
        used.insert(id, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn a_ticket_is_accepted_for_a_minute() {
        let tickets = Tickets::new(at(1_000));
        for (issued, now) in [(1_001, 1_001), (1_100, 1_160), (1_160, 1_100)] {
            assert!(tickets.check_age(issued, at(now)).is_ok(), "{issued} {now}");
        }
        for (issued, now) in [(1_100, 1_161), (1_161, 1_100), (i64::MIN, 1_100), (i64::MAX, 1_100)] {
            assert!(
                matches!(tickets.check_age(issued, at(now)), Err(ConsoleRefusal::Expired { .. })),
                "{issued} {now}"
            );
        }
        assert!(matches!(tickets.check_age(1_000, at(1_001)), Err(ConsoleRefusal::BeforeStart)));
    }

    #[test]
    fn a_ticket_is_used_once_and_one_account_does_not_exhaust_another() {
        let (mut used, now) = (Used::default(), Instant::now());
        let id = |n: usize| -> [u8; 32] { Sha256::digest(n.to_le_bytes()).into() };
        let host = |name: &str| format!("system:serviceaccount:berth-system:host-{name}");
        for n in 0..USED_OF_ACCOUNT {
            assert!(used.insert(host("h1"), id(n), now).is_ok());
        }
        assert!(used.contains(&id(0)) && !used.contains(&id(USED_OF_ACCOUNT)));
        assert!(matches!(used.insert(host("h1"), id(0), now), Err(ConsoleRefusal::Used)));
        let further = used.insert(host("h1"), id(USED_OF_ACCOUNT), now);
        assert!(matches!(further, Err(ConsoleRefusal::TooManyTickets)));
        assert!(used.insert(host("h2"), id(USED_OF_ACCOUNT), now).is_ok(), "of the same namespace");
        assert!(used.insert(host("h1"), id(1), now + REMEMBERED).is_ok(), "they are forgotten");
    }

    #[test]
    fn garbage_has_no_time_of_issue() {
        for garbage in ["", ".", "a.b.c", "a.e30.c", "..", "a.bnVsbA.c"] {
            assert_eq!(issued(garbage), None, "{garbage}");
        }
        assert_eq!(issued(&format!("h.{}.s", URL_SAFE_NO_PAD.encode(r#"{"iat":5}"#))), Some(5));
    }
}
