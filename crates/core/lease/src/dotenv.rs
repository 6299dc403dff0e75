//! The dotenv format of subnet files: `KEY=VALUE` lines, comments, `export`, quotes, and `$VAR` set further up.

use std::collections::BTreeMap;

pub(crate) type Assignments = BTreeMap<String, (usize, String)>;

/// The last value of each key, and the lines that could not be understood.
pub(crate) fn parse(text: &str) -> (Assignments, Vec<(usize, String)>) {
    let mut values = Assignments::new();
    let mut problems = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match parse_line(line, &values) {
            Ok((key, value)) => {
                values.insert(key, (number + 1, value));
            }
            Err(problem) => problems.push((number + 1, problem.to_owned())),
        }
    }
    (values, problems)
}

fn parse_line(line: &str, known: &Assignments) -> Result<(String, String), &'static str> {
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (key, value) = line.split_once('=').ok_or("not KEY=VALUE")?;
    let key = key.trim();
    if key.is_empty() || !key.chars().all(is_name_char) {
        return Err("not a usable key");
    }
    let value = value.trim();
    let value = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let inner = &value[1..];
            let end = closing(inner, quote).ok_or("a quote that is not closed")?;
            let inner = &inner[..end];
            if quote == '"' { expand(inner, known) } else { inner.to_owned() }
        }
        _ => expand(before_comment(value), known),
    };
    Ok((key.to_owned(), value))
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

/// Position of the quote that closes `text`; a backslash hides one.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let found = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        found.then_some(at)
    })
}

/// A `#` begins a comment only after a blank.
fn before_comment(value: &str) -> &str {
    let end = value
        .char_indices()
        .find(|(at, c)| *c == '#' && (*at == 0 || value[..*at].ends_with([' ', '\t'])))
        .map_or(value.len(), |(at, _)| at);
    value[..end].trim_end()
}

/// Replaces `$NAME` and `${NAME}` by the value set before, or nothing, and drops backslashes of escaped characters.
fn expand(text: &str, known: &Assignments) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['$', '\\']) {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        rest = if rest[at..].starts_with('\\') {
            let escaped = after.chars().next();
            out.extend(escaped);
            &after[escaped.map_or(0, char::len_utf8)..]
        } else {
            let (name, left) = split_name(after);
            out.push_str(
                known.get(name).map_or(if name.is_empty() { "$" } else { "" }, |(_, v)| v),
            );
            left
        };
    }
    out.push_str(rest);
    out
}

/// The variable name at the start of `text`, braces or not, and what follows it.
fn split_name(text: &str) -> (&str, &str) {
    if let Some(braced) = text.strip_prefix('{')
        && let Some((name, rest)) = braced.split_once('}')
    {
        return (name, rest);
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    text.split_at(end)
}
