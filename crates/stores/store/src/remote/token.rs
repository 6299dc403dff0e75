//! Tokens, whole or spoiled on the way: one that cannot be right is never sent anywhere.

use std::path::Path;

/// Prefix of a token that carries the fingerprint of the certificate authority:
/// `fl1.<SHA-256 in hexadecimal>.<secret>`, as `flannelctl pki token` makes it.
const PINNING_PREFIX: &str = "fl1.";
/// A part of a token with so many hexadecimal digits is a fingerprint, or what is left of one.
const MIN_FINGERPRINT_DIGITS: usize = 24;

/// The token in a file: its first line that says something.
pub(super) fn read(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read the token in {}: {error}", file.display()))?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    check(line).map_err(|why| format!("the token in {} is incomplete: {why}", file.display()))?;
    Ok(line.to_owned())
}

/// Whether it can be a token at all; if not, why. The token itself is not shown.
pub(super) fn check(token: &str) -> Result<(), &'static str> {
    if token.is_empty() {
        return Err("it is empty; `flannelctl pki token` prints one");
    }
    if token.contains(['"', '\'', '`', '\u{201c}', '\u{201d}']) {
        return Err("there are quotation marks in it: leave them out");
    }
    if !token.chars().all(|c| c.is_ascii_graphic()) {
        return Err("there is a space in it, or a character that no token has: copy it again");
    }
    if pin(token).is_some() {
        return Ok(());
    }
    let hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let like_a_fingerprint =
        token.split('.').any(|part| part.len() >= MIN_FINGERPRINT_DIGITS && hexadecimal(part));
    let begins_like_one = token.to_ascii_lowercase().starts_with("fl1");
    if begins_like_one || token.contains('.') && like_a_fingerprint {
        return Err(
            "a part is missing: `flannelctl pki token` prints fl1.<64 digits>.<64 digits>; copy all of it",
        );
    }
    Ok(())
}

/// The fingerprint of the certificate authority that a token carries.
pub(super) fn pin(token: &str) -> Option<[u8; 32]> {
    let (hex, secret) = token.strip_prefix(PINNING_PREFIX)?.split_once('.')?;
    unhex(hex).filter(|_| !secret.is_empty())
}

pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_was_spoiled_on_the_way_is_told_from_one_that_is_whole() {
        let hex = "0123456789abcdef".repeat(4);
        let whole = format!("fl1.{hex}.{hex}");
        assert!(pin(&whole).is_some());
        for token in [whole.as_str(), &hex, "a-token-of-ones-own", "x", "two.parts", "jwt.like.one"]
        {
            assert_eq!(check(token), Ok(()), "{token}");
        }
        // Any number of characters missing at the beginning, as long as anything shows it.
        for missing in 1..40 {
            assert!(check(&whole[missing..]).is_err(), "{}", &whole[missing..]);
        }
        for (token, why) in [
            (String::new(), "empty"),
            (format!("\"{whole}\""), "quotation"),
            (format!("'{whole}'"), "quotation"),
            (format!("{whole}\""), "quotation"),
            ("\"plain\"".to_owned(), "quotation"),
            (format!("FL1.{hex}.{hex}"), "missing"),
            (format!("fl1.{hex}."), "missing"),
            (format!("fl1.{hex}"), "missing"),
            (format!("fl1.{}.{hex}", &hex[1..]), "missing"),
            (format!("fl1.{}.{hex}", hex.replace('0', "g")), "missing"),
            (format!("fl1. {hex}.{hex}"), "space"),
            (format!("FLANNELD_REMOTE_TOKEN={whole}"), "missing"),
            ("tok\nen".to_owned(), "space"),
            ("t\u{f6}ken".to_owned(), "space"),
        ] {
            let said = check(&token).unwrap_err();
            assert!(said.contains(why), "{token}: {said}");
        }
    }
}
