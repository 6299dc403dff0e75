//! Texts of others in HTML: the one place where they become a part of it.

use std::fmt::{self, Display, Write as _};

/// Shows anything as text, in an element or in a quoted attribute.
pub(crate) struct Text<T>(pub(crate) T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.write_str("&amp;")?,
                '<' => self.0.write_str("&lt;")?,
                '>' => self.0.write_str("&gt;")?,
                '"' => self.0.write_str("&quot;")?,
                '\'' => self.0.write_str("&#39;")?,
                // They would reverse the text beside them.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    self.0.write_char(char::REPLACEMENT_CHARACTER)?;
                }
                c => self.0.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A part of an address, after `/node/` or in a query.
pub(crate) struct InAddress<T>(pub(crate) T);

impl<T: Display> Display for InAddress<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.to_string().bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b':' => {
                    f.write_char(byte.into())?;
                }
                byte => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

pub(crate) fn number(count: impl Display) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Time of a moment, in UTC; a browser with scripts shows local time.
pub(crate) fn clock(moment: &str) -> String {
    moment.get(11..19).map_or_else(|| moment.to_owned(), |time| format!("{time}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_others_becomes_a_part_of_the_page() {
        let text = Text("<script>alert('1')</script> & \"x\" \u{202e}").to_string();
        assert_eq!(
            text,
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;x&quot; \u{fffd}"
        );
        assert_eq!(
            InAddress("10.1.0.0-24&fd00::-64\"/").to_string(),
            "10.1.0.0-24%26fd00::-64%22%2F"
        );
    }

    #[test]
    fn numbers_are_read_at_a_glance() {
        assert_eq!([number(7), number(5_000), number(1_234_567)], ["7", "5,000", "1,234,567"]);
    }
}
