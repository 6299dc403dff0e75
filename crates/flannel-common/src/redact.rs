//! Text without what looks like a secret, for what people give away: logs, configurations, what programs say. Better
//! too much is removed than too little.

const REMOVED: &str = "<removed>";
/// What is in the name of something that is secret.
const NAMES: [&str; 14] = [
    "psk",
    "preshared",
    "password",
    "passwd",
    "passphrase",
    "token",
    "secret",
    "private",
    "credential",
    "authorization",
    "accesskey",
    "access_key",
    "apikey",
    "key-data",
];
/// Of 32 bytes in base64, as WireGuard's are.
const KEY_LETTERS: usize = 43;

/// A text of any length without what looks like a secret.
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

/// Whether something of this name is a secret: an option, a flag, a variable.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|secret| name.contains(secret))
}

/// Words are parted where values begin and end, in JSON, YAML, flags, variables and prose alike.
fn line_without(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut word = String::new();
    // After the name of a secret, the next word that is a value goes.
    let mut expected = false;
    for c in line.chars() {
        if is_part_of_word(c) {
            word.push(c);
            continue;
        }
        clean += &word_without(&word, &mut expected, c);
        word.clear();
        clean.push(c);
        // A value is on its line, and a new member of an object is another name.
        if matches!(c, ',' | ';' | '}' | '\n') {
            expected = false;
        }
    }
    clean += &word_without(&word, &mut expected, '\n');
    clean
}

fn is_part_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '+' | '/' | '~' | '$' | '!' | '%' | '@')
}

fn word_without(word: &str, expected: &mut bool, next: char) -> String {
    if word.is_empty() {
        return String::new();
    }
    // A name is followed by what parts it from its value.
    if is_secret_name(word) && matches!(next, '=' | ':' | '"' | '\'' | ' ') {
        *expected = true;
        return word.to_owned();
    }
    if *expected {
        let scheme = [
            "Bearer", "Basic", "true", "false", "null", "bearer", "basic", "file", "from", "of",
            "is", "for",
        ];
        if scheme.contains(&word) {
            return word.to_owned();
        }
        *expected = false;
        return REMOVED.to_owned();
    }
    if looks_secret(word) { REMOVED.to_owned() } else { word.to_owned() }
}

/// A key of WireGuard, a token of the lease server, a web token, a key of a cloud.
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
        let after = "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\nafter\n";
        assert!(without_secrets(after).ends_with("after\n"));
    }
}
