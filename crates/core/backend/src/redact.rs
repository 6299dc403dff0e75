//! Removes the secrets of a network config, for those who may look and not join: a preshared key makes its owner a
//! node, and a cloud's key the owner of its routes.

use flannel_common::is_secret_name;
use serde_json::Value;

const REDACTED: &str = "<redacted>";

/// Replaces every option that is named like a secret. A text that is not a JSON object is not shown at all.
pub fn redact_config(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(mut config @ Value::Object(_)) => {
            redact(&mut config);
            config.to_string()
        }
        _ => Value::from(REDACTED).to_string(),
    }
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                // The name of a file is not secret; its text is.
                let is_file = name.ends_with("File");
                if is_secret_name(name) && !is_file && !matches!(member, Value::Null) {
                    *member = Value::from(REDACTED);
                } else {
                    redact(member);
                }
            }
        }
        Value::Array(members) => members.iter_mut().for_each(redact),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_is_shown_without_its_secrets() {
        let text = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"ipsec","PSK":"hunter2","psk":"hunter2",
            "PSKFile":"/etc/psk","AccessKeyID":"hunter2","AccessKeySecret":"hunter2","Nested":[{"Password":"hunter2"}]}}"#;
        let shown = redact_config(text);
        assert!(!shown.contains("hunter2"), "{shown}");
        let value: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(value["Network"], "10.5.0.0/16");
        assert_eq!(value["Backend"]["Type"], "ipsec");
        assert_eq!(value["Backend"]["PSK"], REDACTED);
        assert_eq!(value["Backend"]["PSKFile"], "/etc/psk");
        for unreadable in ["PSK hunter2", "[\"hunter2\"]", "{\"PSK\":\"hunter2\""] {
            assert!(!redact_config(unreadable).contains("hunter2"));
        }
        let plain = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
        assert_eq!(
            serde_json::from_str::<Value>(&redact_config(plain)).unwrap(),
            serde_json::from_str::<Value>(plain).unwrap()
        );
    }
}
