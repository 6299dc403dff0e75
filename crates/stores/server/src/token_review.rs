//! Tokens of a Kubernetes ServiceAccount: the API server says whether one is good and which node the pod that has it runs
//! on. So every node has a token of its own without anybody making one, and none can speak for another.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use flannel_https::sha256;
use flannel_kube::api::Api;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Audience that a token must have been made for.
pub const AUDIENCE: &str = "flannel-lease-server";
/// Time for which a verdict counts without another review.
const ACCEPTED_LIFETIME: Duration = Duration::from_secs(60);
const REFUSED_LIFETIME: Duration = Duration::from_secs(5);
/// Most verdicts that are kept; expired ones go first.
const MAX_VERDICTS: usize = 20_000;
const CONCURRENT_REVIEWS: usize = 8;
/// Most bytes of a token, longer than any of a ServiceAccount.
const MAX_TOKEN_BYTES: usize = 8 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenVerdict {
    Node(Arc<str>),
    Refused(String),
}

#[async_trait]
pub trait TokenReviewer: Send + Sync + Debug {
    /// Reviews a token; the error says why that was not possible.
    async fn review(&self, token: &str) -> Result<TokenVerdict, String>;
}

#[derive(Debug)]
pub struct ServiceAccountTokens {
    api: Api,
    /// `system:serviceaccount:NAMESPACE:NAME`
    user: String,
}

impl ServiceAccountTokens {
    /// `account` is `NAMESPACE/NAME`; `None` for any other text.
    pub fn new(api: Api, account: &str) -> Option<Self> {
        let (namespace, name) = account.split_once('/')?;
        let plain = |text: &str| !text.is_empty() && !text.contains([':', '/', ' ']);
        (plain(namespace) && plain(name))
            .then(|| Self { api, user: format!("system:serviceaccount:{namespace}:{name}") })
    }
}

#[async_trait]
impl TokenReviewer for ServiceAccountTokens {
    async fn review(&self, token: &str) -> Result<TokenVerdict, String> {
        let review = self.api.review_token(token, AUDIENCE).await;
        let review = review.map_err(|error| error.into_store_error("").to_string())?;
        let refused = |text: String| Ok(TokenVerdict::Refused(text));
        if !review.authenticated {
            return refused(format!(
                "Kubernetes does not accept the token: {}",
                review.error.as_deref().unwrap_or("it has expired, or its pod is gone")
            ));
        }
        if review.user != self.user {
            return refused(format!(
                "the token is of {}, and nodes are known by those of {}",
                review.user, self.user
            ));
        }
        match review.node {
            Some(node) => Ok(TokenVerdict::Node(node.into())),
            None => refused(
                "the token does not say which node it is for: it takes one of a pod (a projected volume), and \
                 Kubernetes 1.30 or later; else give every node a token of its own (flannelctl pki token NODE)"
                    .to_owned(),
            ),
        }
    }
}

/// Verdicts on tokens, each asked for once and kept for a moment.
#[derive(Debug)]
pub(crate) struct TokenReviews {
    reviewer: Arc<dyn TokenReviewer>,
    verdicts: Mutex<HashMap<[u8; 32], KeptVerdict>>,
    questions: Semaphore,
}

#[derive(Clone, Debug)]
struct KeptVerdict {
    verdict: TokenVerdict,
    until: Instant,
}

impl TokenReviews {
    pub(crate) fn new(reviewer: Arc<dyn TokenReviewer>) -> Self {
        let questions = Semaphore::new(CONCURRENT_REVIEWS);
        Self { reviewer, verdicts: Mutex::default(), questions }
    }

    /// Last verdict on a token, however old. Streams that are open go by it.
    pub(crate) fn known(&self, token: &str) -> Option<TokenVerdict> {
        self.verdicts.lock().get(&sha256(token.as_bytes())).map(|kept| kept.verdict.clone())
    }

    pub(crate) fn is_due(&self, token: &str, now: Instant) -> bool {
        can_be_one(token)
            && self
                .verdicts
                .lock()
                .get(&sha256(token.as_bytes()))
                .is_none_or(|kept| kept.until <= now)
    }

    /// Reviews a token. Without an answer the last verdict counts: nodes are not locked out with the API server.
    pub(crate) async fn ask(&self, token: &str) -> Result<(), String> {
        let Ok(_question) = self.questions.acquire().await else { return Ok(()) };
        if !self.is_due(token, Instant::now()) {
            return Ok(());
        }
        let asked = self.reviewer.review(token).await;
        let now = Instant::now();
        let mut verdicts = self.verdicts.lock();
        let key = sha256(token.as_bytes());
        match asked {
            Ok(verdict) => {
                let life = match verdict {
                    TokenVerdict::Node(_) => ACCEPTED_LIFETIME,
                    TokenVerdict::Refused(_) => REFUSED_LIFETIME,
                };
                if verdicts.len() >= MAX_VERDICTS {
                    verdicts.retain(|_, kept| kept.until > now);
                }
                if verdicts.len() < MAX_VERDICTS {
                    verdicts.insert(key, KeptVerdict { verdict, until: now + life });
                }
                Ok(())
            }
            Err(reason) => match verdicts.get_mut(&key) {
                Some(kept) => {
                    tracing::warn!(
                        "Cannot review a node's token: {reason}; the last review counts"
                    );
                    kept.until = now + REFUSED_LIFETIME;
                    Ok(())
                }
                None => Err(reason),
            },
        }
    }
}

/// A JSON Web Token: three parts, the first of which is an object of JSON in base64.
fn can_be_one(token: &str) -> bool {
    token.len() <= MAX_TOKEN_BYTES && token.starts_with("eyJ") && token.split('.').count() == 3
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct CountingReviewer {
        times: AtomicUsize,
        silent: Mutex<bool>,
    }

    #[async_trait]
    impl TokenReviewer for CountingReviewer {
        async fn review(&self, token: &str) -> Result<TokenVerdict, String> {
            self.times.fetch_add(1, Ordering::Relaxed);
            match (*self.silent.lock(), token) {
                (true, _) => Err("silent".to_owned()),
                (false, "eyJ.a.b") => Ok(TokenVerdict::Node("node-1".into())),
                _ => Ok(TokenVerdict::Refused("no".to_owned())),
            }
        }
    }

    #[tokio::test]
    async fn a_token_is_asked_about_once_and_counts_on_while_nobody_answers() {
        let asked = Arc::new(CountingReviewer::default());
        let reviews = TokenReviews::new(asked.clone());
        let now = Instant::now();
        for not_one in
            ["fl1.ab.cd", "secret", "eyJ.only-two", &format!("eyJ.{}.b", "a".repeat(9_000))]
        {
            assert!(!reviews.is_due(not_one, now), "{not_one}");
        }
        for _ in 0..3 {
            reviews.ask("eyJ.a.b").await.expect("answered");
        }
        assert_eq!(asked.times.load(Ordering::Relaxed), 1);
        assert_eq!(reviews.known("eyJ.a.b"), Some(TokenVerdict::Node("node-1".into())));
        assert!(reviews.is_due("eyJ.a.b", now + 2 * ACCEPTED_LIFETIME));
        *asked.silent.lock() = true;
        assert!(reviews.ask("eyJ.c.d").await.is_err(), "nobody knows this one");
        reviews.verdicts.lock().values_mut().for_each(|kept| kept.until = now);
        reviews.ask("eyJ.a.b").await.expect("as before");
        assert_eq!(reviews.known("eyJ.a.b"), Some(TokenVerdict::Node("node-1".into())));
    }
}
