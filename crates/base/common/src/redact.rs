//! Removes what looks like a secret from texts that people give away: rather too much than too little.

const REMOVED: &str = "<removed>";
/// Words that the name of a secret contains.
const NAMES: &str = "psk preshared password passwd passphrase token secret private credential \
                     authorization accesskey access_key apikey key-data";
/// Number of letters of 32 bytes in base64, such as WireGuard's keys.
const KEY_LETTERS: usize = 43;

/// Removes everything that looks like a secret from a text of any length.
pub fn without_secrets(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut inside_key = false;
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN") && line.contains("PRIVATE") {
            inside_key = true;
            clean += "<private key removed>\n";
        }
        if !inside_key {
            clean += &line_without(line);
        }
        inside_key &= !line.contains("-----END");
    }
    clean
}

/// Whether an option, flag or variable of this name is a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.split(' ').any(|secret| name.contains(secret))
}

/// Removes secrets from one line. Names and values are separated as in JSON, YAML, flags, variables and prose.
fn line_without(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    // Text between the name of a secret and what follows it; `None` while no value is expected.
    let mut after_name: Option<String> = None;
    while let Some(c) = rest.chars().next() {
        let part = match &mut after_name {
            // Nothing stands between two quotation marks.
            Some(between) if is_quote(c) && opening_quote(between) == Some(c) => {
                after_name = None;
                &rest[..c.len_utf8()]
            }
            Some(between) if is_between(c) => {
                between.push(c);
                &rest[..c.len_utf8()]
            }
            Some(between) if !value(rest, between).is_empty() => {
                let value = value(rest, between);
                if is_passed_over(value, between) {
                    between.clear();
                    value
                } else {
                    clean += REMOVED;
                    after_name = None;
                    rest = &rest[value.len()..];
                    continue;
                }
            }
            // A value is on its line, and a new member of an object is another name.
            Some(_) => {
                after_name = None;
                &rest[..c.len_utf8()]
            }
            None if is_part_of_word(c) => {
                let word = word(rest);
                let next = rest[word.len()..].chars().next().unwrap_or('\n');
                if is_secret_name(word) && is_between(next) {
                    after_name = Some(String::new());
                } else if looks_secret(word) {
                    clean += REMOVED;
                    rest = &rest[word.len()..];
                    continue;
                }
                word
            }
            None => &rest[..c.len_utf8()],
        };
        clean += part;
        rest = &rest[part.len()..];
    }
    clean
}

/// Characters that end the text in which a value is expected after a name.
const ENDS: [char; 4] = [',', ';', '}', '\n'];
/// Words between the name of a secret and the secret, and values that are not secret.
const PASSED_OVER: [&str; 14] = [
    "Bearer", "Basic", "Token", "true", "false", "null", "bearer", "basic", "token", "file",
    "from", "of", "is", "for",
];

fn is_part_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '+' | '/' | '~' | '$' | '!' | '%' | '@')
}

fn is_between(c: char) -> bool {
    matches!(c, '=' | ':' | '"' | '\'' | ' ' | '\t')
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\'')
}

/// Quotation mark that opens a value; the first one behind a name may close that of the name.
fn opening_quote(between: &str) -> Option<char> {
    between.chars().last().filter(|last| is_quote(*last) && between.len() > 1)
}

fn word(text: &str) -> &str {
    &text[..text.find(|c| !is_part_of_word(c)).unwrap_or(text.len())]
}

/// Value at the beginning of a text, if any: up to its closing quotation mark, or to a blank or what closes a list.
fn value<'a>(text: &'a str, between: &str) -> &'a str {
    let quote = opening_quote(between);
    if quote.is_none() && text.starts_with(ENDS) {
        return "";
    }
    let end = match quote {
        Some(quote) => {
            let mut is_escaped = false;
            text.find(|c| {
                let ends = c == '\n' || (c == quote && !is_escaped);
                is_escaped = c == '\\' && !is_escaped;
                ends
            })
        }
        None => text.find(|c: char| c.is_whitespace() || is_quote(c)),
    };
    let value = &text[..end.unwrap_or(text.len())];
    if quote.is_some() { value } else { value.trim_end_matches([',', ';', '}', ']', ')']) }
}

/// Whether the secret is still to come, or what follows a name in prose is another name.
fn is_passed_over(value: &str, between: &str) -> bool {
    let inner = value.trim_matches(|c: char| !c.is_alphanumeric());
    let is_prose = between.chars().all(|c| c.is_ascii_whitespace());
    PASSED_OVER.contains(&inner) || (is_prose && value == word(value) && is_secret_name(value))
}

/// Whether a word looks like a WireGuard key, a lease server token, a web token or a cloud key.
fn looks_secret(word: &str) -> bool {
    let base64 =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '+' || c == '/');
    let key =
        word.len() == KEY_LETTERS && base64(word) && !word.chars().all(|c| c.is_ascii_hexdigit());
    let token =
        word.starts_with("fl1.") || word.starts_with("eyJ") && word.matches('.').count() == 2;
    let cloud = word.len() == 20 && (word.starts_with("AKIA") || word.starts_with("ASIA"))
        || word.starts_with("LTAI") && word.len() >= 16
        || word.starts_with("AKID") && word.len() >= 32;
    key || token || cloud
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_goes_in_whatever_it_stands() {
        let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
        for (text, secret) in [
            (r#"{"Backend":{"Type":"ipsec","PSK":"hunter2hunter2"}}"#.to_owned(), "hunter2"),
            ("PSK: hunter2\n".to_owned(), "hunter2"),
            ("--etcd-password=hunter2 --v=4".to_owned(), "hunter2"),
            ("--remote-token hunter2".to_owned(), "hunter2"),
            ("FLANNELD_REMOTE_TOKEN=hunter2".to_owned(), "hunter2"),
            ("AWS_SECRET_ACCESS_KEY='hunter2/+x'".to_owned(), "hunter2"),
            ("authorization: Bearer hunter2".to_owned(), "hunter2"),
            (format!("wg set wg0 private-key {key}"), &key[..40]),
            (format!("the key {key} was read"), &key[..40]),
            ("token fl1.abcd.0123".to_owned(), "0123"),
            ("PSK=hunter2#pass&word*^=(1)".to_owned(), "pass"),
            ("PSK=hunter2#pass&word*^=(1)".to_owned(), "word"),
            (r##"{"PSK": "#(top) \"s3cret\", rest", "x": 1}"##.to_owned(), "s3cret"),
            (r##"{"PSK": "#(top) \"s3cret\", rest", "x": 1}"##.to_owned(), "rest"),
            (r#"{"PSK":"my-secret"}"#.to_owned(), "my-secret"),
            ("--etcd-password=mysecret --v=4".to_owned(), "mysecret"),
            ("password: (hunter2".to_owned(), "hunter2"),
            (r#"{"PSK":",;}hunter2"}"#.to_owned(), "hunter2"),
            ("password=abc,def;ghi".to_owned(), "ghi"),
            ("authorization: token hunter2".to_owned(), "hunter2"),
            ("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln in a log".to_owned(), "c2ln"),
            ("id AKIAIOSFODNN7EXAMPLE".to_owned(), "AKIAIOSFODNN7EXAMPLE"),
            (
                "-----BEGIN EC PRIVATE KEY-----\nMHcC\nAQEE\n-----END EC PRIVATE KEY-----\nafter\n"
                    .to_owned(),
                "MHcC",
            ),
        ] {
            let clean = without_secrets(&text);
            assert!(!clean.contains(secret), "{text:?} -> {clean:?}");
        }
    }

    #[test]
    fn what_is_not_a_secret_stays() {
        for text in [
            "10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink proto 244\n",
            r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":1}}"#,
            "-A FORWARD -s 10.244.0.0/16 -j ACCEPT\n",
            "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n",
            "fe80::1 dev eth0 lladdr 02:fa:00:00:00:01 REACHABLE",
        ] {
            assert_eq!(without_secrets(text), text);
        }
        assert_eq!(
            without_secrets(r#"{"secret":5,"Network":"10.0.0.0/8"}"#),
            r#"{"secret":<removed>,"Network":"10.0.0.0/8"}"#
        );
        assert_eq!(
            without_secrets("--etcd-password=a#b --v=4\n"),
            "--etcd-password=<removed> --v=4\n"
        );
        for text in [
            r#"{"token":true,"x":1}"#,
            r#"{"PSK":"","Network":"10.0.0.0/8"}"#,
            r#"["password","user"]"#,
            "a token, or (the secret) of it",
        ] {
            assert_eq!(without_secrets(text), text);
        }
        let after = "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\nafter\n";
        assert!(without_secrets(after).ends_with("after\n"));
    }
}
