//! How a command shows what it has found: to people, or to programs. One mechanism for all that read.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use yaml_rust2::YamlEmitter;
use yaml_rust2::yaml::{Hash, Yaml};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[value(alias = "table")]
    Text,
    /// For people, with all details
    Wide,
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OutputArgs {
    /// How to show it
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Format,
}

impl Format {
    pub(crate) fn is_for_people(self) -> bool {
        matches!(self, Self::Text | Self::Wide)
    }

    /// Writes one thing: as a document, or in the words that `text` has for people, in detail or not.
    pub(crate) fn show(
        self,
        value: &impl Serialize,
        text: impl FnOnce(bool) -> String,
    ) -> anyhow::Result<()> {
        let shown = match self {
            Self::Text | Self::Wide => text(self == Self::Wide),
            Self::Json => format!("{:#}\n", serde_json::to_value(value)?),
            Self::Yaml => yaml(&serde_json::to_value(value)?)?,
        };
        Ok(io::stdout().write_all(shown.as_bytes())?)
    }

    /// One of many, for a program: a line of JSON, or a document of YAML. `None`: people want it in words.
    pub(crate) fn one_of_many(self, value: &impl Serialize) -> anyhow::Result<Option<String>> {
        Ok(match self {
            Self::Text | Self::Wide => None,
            Self::Json => Some(format!("{}\n", serde_json::to_string(value)?)),
            Self::Yaml => Some(yaml(&serde_json::to_value(value)?)?),
        })
    }
}

/// A document that begins with `---`, so that several may follow each other.
fn yaml(value: &Value) -> anyhow::Result<String> {
    let mut text = String::new();
    YamlEmitter::new(&mut text).dump(&as_yaml(value))?;
    text.push('\n');
    Ok(text)
}

fn as_yaml(value: &Value) -> Yaml {
    match value {
        Value::Null => Yaml::Null,
        Value::Bool(value) => Yaml::Boolean(*value),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| Yaml::Real(number.to_string()), Yaml::Integer)
        }
        Value::String(text) => Yaml::String(text.clone()),
        Value::Array(items) => Yaml::Array(items.iter().map(as_yaml).collect()),
        Value::Object(members) => {
            let pair =
                |(key, value): (&String, &Value)| (Yaml::String(key.clone()), as_yaml(value));
            Yaml::Hash(members.iter().map(pair).collect::<Hash>())
        }
    }
}

#[cfg(test)]
mod tests {
    use yaml_rust2::YamlLoader;

    use super::*;

    #[test]
    fn what_is_written_as_yaml_is_read_as_the_same() {
        let value = serde_json::json!({
            "text": ["", "no", "1", "1.5", "~", "a: b", "- a", "#", "é", "two\nlines", "\u{1b}[31m", "'\"", " x "],
            "numbers": [0, -1, 9_007_199_254_740_993_i64, 1.5],
            "nothing": null,
            "yes": true,
            "empty": {"list": [], "map": {}},
        });
        let text = yaml(&value).unwrap();
        assert!(text.starts_with("---\n"), "{text}");
        let read = YamlLoader::load_from_str(&format!("{text}{text}")).unwrap();
        assert_eq!(read, [as_yaml(&value), as_yaml(&value)], "{text}");
    }
}
