//! Expands `$NAME` and `${NAME}` in a word of a command, by the rules of the Go library that the Go flannel uses.

/// Expands a word. A name without a value becomes nothing. A `$` that no name follows stays, and `${}` goes.
pub(crate) fn expand(word: &str, value: &dyn Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let (name, used) = name(rest);
        match name {
            Some(name) => expanded.push_str(&value(name).unwrap_or_default()),
            None if used == 0 => expanded.push('$'),
            None => {}
        }
        rest = &rest[used..];
    }
    expanded + rest
}

/// Name at the beginning of a text, and how much of the text it takes up: nothing where there is none. What cannot be
/// read as a name takes up some of it, too.
fn name(text: &str) -> (Option<&str>, usize) {
    if let Some(braced) = text.strip_prefix('{') {
        return match braced.find('}') {
            Some(0) => (None, 2),
            Some(end) => (Some(&braced[..end]), end + 2),
            None => (None, 1),
        };
    }
    if text.starts_with(|first: char| "*#$@!?-".contains(first) || first.is_ascii_digit()) {
        return (Some(&text[..1]), 1);
    }
    let end = text.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    if end == 0 { (None, 0) } else { (Some(&text[..end]), end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_as_the_go_flannel_does() {
        let value = |name: &str| match name {
            "SUBNET" => Some("10.1.2.0/24".to_owned()),
            "A" => Some("$SUBNET".to_owned()),
            _ => None,
        };
        for (word, expanded) in [
            ("plain", "plain"),
            ("$SUBNET", "10.1.2.0/24"),
            ("to=${SUBNET},x", "to=10.1.2.0/24,x"),
            ("$SUBNET$SUBNET", "10.1.2.0/2410.1.2.0/24"),
            ("$SUBNETS", ""),
            ("a$NONE-b", "a-b"),
            ("$A", "$SUBNET"),
            ("5$", "5$"),
            ("$/x", "$/x"),
            ("${}x", "x"),
            ("${SUBNET", "SUBNET"),
            ("$1x$$y", "xy"),
            ("ü$ü", "ü$ü"),
        ] {
            assert_eq!(expand(word, &value), expanded, "{word}");
        }
    }
}
