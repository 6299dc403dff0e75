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
            Name::Of(name) => expanded.push_str(&value(name).unwrap_or_default()),
            Name::None => expanded.push('$'),
            Name::Unreadable => {}
        }
        rest = &rest[used..];
    }
    expanded + rest
}

enum Name<'a> {
    Of(&'a str),
    None,
    Unreadable,
}

/// Name at the beginning of a text, and its length.
fn name(text: &str) -> (Name<'_>, usize) {
    if let Some(braced) = text.strip_prefix('{') {
        return match braced.find('}') {
            Some(0) => (Name::Unreadable, 2),
            Some(end) => (Name::Of(&braced[..end]), end + 2),
            None => (Name::Unreadable, 1),
        };
    }
    if text.starts_with(|first: char| "*#$@!?-".contains(first) || first.is_ascii_digit()) {
        return (Name::Of(&text[..1]), 1);
    }
    let end = text.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    if end == 0 { (Name::None, 0) } else { (Name::Of(&text[..end]), end) }
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
