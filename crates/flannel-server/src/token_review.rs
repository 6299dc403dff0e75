//! Tokens of a Kubernetes ServiceAccount: the API server says whether one is good and which node the pod that has it runs
//! on. So every node has a token of its own without anybody making one, and none can speak for another.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use flannel_kube::api::Api;
use tokio::sync::Semaphore;

use crate::auth::digest;

/// For whom the tokens must have been made: one that was made for somebody else is not accepted.
pub const AUDIENCE: &str = "flannel-lease-server";
/// How long a verdict counts without being asked for again.
const GOOD_FOR: Duration = Duration::from_secs(60);
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// Verdicts that are kept; beyond it those that have ended go first.
const MOST_VERDICTS: usize = 20_000;
/// Questions to the API server at once.
const QUESTIONS_AT_ONCE: usize = 8;
/// Longer than any token of a ServiceAccount.
const LONGEST_TOKEN: usize = 8 << 10;

/// What was said of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is good, and of a pod on this node.
    Node(Arc<str>),
    /// Why it is not.
    Refused(String),
}

/// Who is asked about tokens.
#[async_trait]
pub trait TokenReviewer: Send + Sync + Debug {
    /// The error says why nobody could be asked.
    async fn review(&self, token: &str) -> Result<Verdict, String>;
}

/// Asks the API server about the tokens of one ServiceAccount.
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
    async fn review(&self, token: &str) -> Result<Verdict, String> {
        let review = self.api.review_token(token, AUDIENCE).await;
        let review = review.map_err(|error| error.into_store_error("").to_string())?;
        let refused = |text: String| Ok(Verdict::Refused(text));
        if !review.authenticated {
            return refused(format!(
                "Kubernetes does not accept the token: {}",
                review.error.as_deref().unwrap_or("it has ended, or its pod is gone")
            ));
        }
        if review.user != self.user {
            return refused(format!(
                "the token is of {}, and nodes are known by those of {}",
                review.user, self.user
            ));
        }
        match review.node {
            Some(node) => Ok(Verdict::Node(node.into())),
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
    verdict: Verdict,
    until: Instant,
}

impl TokenReviews {
    pub(crate) fn new(reviewer: Arc<dyn TokenReviewer>) -> Self {
        let questions = Semaphore::new(QUESTIONS_AT_ONCE);
        Self { reviewer, verdicts: Mutex::default(), questions }
    }

    /// What is known of a token, however long ago it was asked for. Streams that are open go by it.
    pub(crate) fn known(&self, token: &str) -> Option<Verdict> {
        self.verdicts().get(&digest(token)).map(|kept| kept.verdict.clone())
    }

    /// Whether a token has to be asked about before it can be judged.
    pub(crate) fn is_due(&self, token: &str, now: Instant) -> bool {
        can_be_one(token)
            && self.verdicts().get(&digest(token)).is_none_or(|kept| kept.until <= now)
    }

    /// Asks. When nobody answers, what is known goes on to count: nodes are not locked out with the API server.
    pub(crate) async fn ask(&self, token: &str) -> Result<(), String> {
        let Ok(_question) = self.questions.acquire().await else { return Ok(()) };
        if !self.is_due(token, Instant::now()) {
            return Ok(());
        }
        let asked = self.reviewer.review(token).await;
        let now = Instant::now();
        let mut verdicts = self.verdicts();
        let key = digest(token);
        match asked {
            Ok(verdict) => {
                let life = match verdict {
                    Verdict::Node(_) => GOOD_FOR,
                    Verdict::Refused(_) => REFUSED_FOR,
                };
                if verdicts.len() >= MOST_VERDICTS {
                    verdicts.retain(|_, kept| kept.until > now);
                }
                if verdicts.len() < MOST_VERDICTS {
                    verdicts.insert(key, KeptVerdict { verdict, until: now + life });
                }
                Ok(())
            }
            Err(reason) => match verdicts.get_mut(&key) {
                Some(kept) => {
                    tracing::warn!(
                        "A node's token cannot be reviewed, and counts as before: {reason}"
                    );
                    kept.until = now + REFUSED_FOR;
                    Ok(())
                }
                None => Err(reason),
            },
        }
    }

    fn verdicts(&self) -> MutexGuard<'_, HashMap<[u8; 32], KeptVerdict>> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A JSON Web Token: three parts, the first of which is an object of JSON in base64.
fn can_be_one(token: &str) -> bool {
    token.len() <= LONGEST_TOKEN && token.starts_with("eyJ") && token.split('.').count() == 3
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct Asked {
        times: AtomicUsize,
        silent: Mutex<bool>,
    }

    #[async_trait]
    impl TokenReviewer for Asked {
        async fn review(&self, token: &str) -> Result<Verdict, String> {
            self.times.fetch_add(1, Ordering::Relaxed);
            match (*self.silent.lock().unwrap(), token) {
                (true, _) => Err("silent".to_owned()),
                (false, "eyJ.a.b") => Ok(Verdict::Node("node-1".into())),
                _ => Ok(Verdict::Refused("no".to_owned())),
            }
        }
    }

    #[tokio::test]
    async fn a_token_is_asked_about_once_and_counts_on_while_nobody_answers() {
        let asked = Arc::new(Asked::default());
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
        assert_eq!(reviews.known("eyJ.a.b"), Some(Verdict::Node("node-1".into())));
        assert!(reviews.is_due("eyJ.a.b", now + 2 * GOOD_FOR));
        *asked.silent.lock().unwrap() = true;
        assert!(reviews.ask("eyJ.c.d").await.is_err(), "nobody knows this one");
        reviews.verdicts().values_mut().for_each(|kept| kept.until = now);
        reviews.ask("eyJ.a.b").await.expect("as before");
        assert_eq!(reviews.known("eyJ.a.b"), Some(Verdict::Node("node-1".into())));
    }
}
