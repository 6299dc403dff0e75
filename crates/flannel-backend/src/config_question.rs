//! What an operator asks nodes before a network config is written, and what they say: whether each could use it.

use serde::{Deserialize, Serialize};

/// The kind of such a request.
pub const CONFIG_QUESTION: &str = "config-check";

/// In the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ConfigQuestion {
    /// As it is to be written.
    pub config: String,
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum ConfigAnswer {
    /// It has heard, and tries.
    Trying,
    /// As far as it can be tried without harm.
    Usable,
    /// It could not use the config, and why.
    Unusable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_are_read_as_they_were_written() {
        let question = ConfigQuestion { config: r#"{"Network": "10.1.0.0/16"}"#.to_owned() };
        let text = serde_json::to_string(&question).expect("it is JSON");
        assert_eq!(serde_json::from_str::<ConfigQuestion>(&text).expect("the same"), question);
        for answer in
            [ConfigAnswer::Trying, ConfigAnswer::Usable, ConfigAnswer::Unusable("no".to_owned())]
        {
            let text = serde_json::to_string(&answer).expect("it is JSON");
            assert_eq!(serde_json::from_str::<ConfigAnswer>(&text).expect("the same"), answer);
        }
    }
}
