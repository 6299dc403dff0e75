//! Base64, which etcd's gateway wants keys and values in.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    let mut text = String::new();
    for chunk in bytes.as_ref().chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            if place <= chunk.len() {
                let index = (group >> (18 - 6 * place)) & 63;
                text.push(char::from(ALPHABET[index as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Nothing if it is no base64. Bytes that are no text are shown as such.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
        let mut group = 0;
        for (place, letter) in chunk.iter().enumerate() {
            let value = ALPHABET.iter().position(|known| known == letter)?;
            group |= u32::try_from(value).ok()? << (18 - 6 * place);
        }
        let length = chunk.len().checked_sub(1).filter(|&length| length > 0)?;
        bytes.extend_from_slice(&group.to_be_bytes()[1..=length]);
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_4648_hold() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in vectors {
            assert_eq!(encode(plain), encoded);
            assert_eq!(decode(encoded).as_deref(), Some(plain));
        }
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        assert_eq!(decode("Z"), None);
        assert_eq!(decode("Zm9*"), None);
    }
}
