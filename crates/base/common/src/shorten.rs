//! Shortens texts from outside before they are shown: their length is not ours to choose.

use std::borrow::Cow;

/// Beginning of a text, at most `most` bytes of it, with the full length where something was left out.
pub fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}… ({} bytes)", &text[..text.floor_char_boundary(most)], text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_tells_its_length() {
        assert_eq!(shorten("vxlan", 5), "vxlan");
        assert_eq!(shorten("vxlan", 3), "vxl… (5 bytes)");
        assert_eq!(shorten("aüü", 2), "a… (5 bytes)");
        assert_eq!(shorten("", 0), "");
    }
}
