//! Texts from outside, as they are shown: whoever wrote them chose their length.

use std::borrow::Cow;

/// The beginning of a text, `most` bytes of it at most, and how long it is where something was left out.
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
