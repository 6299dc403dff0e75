//! Request of an operator before a network config is written: could each node use it? And the nodes' answers.

use serde::{Deserialize, Serialize};

pub const CONFIG_QUESTION: &str = "config-check";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ConfigQuestion {
    pub config: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum ConfigAnswer {
    /// The node has received the request, and tries the config.
    Trying,
    /// The node can use the config, as far as that can be tried without harm.
    Usable,
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
