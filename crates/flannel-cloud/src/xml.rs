//! XML as EC2 answers with: elements in elements, and text. Attributes, comments and declarations mean nothing
//! there and are passed over.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) children: Vec<Element>,
}

/// Deeper than any answer.
const DEEPEST: usize = 64;

impl Element {
    /// The root of a document.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        // The document is an element without a name around its root.
        let mut open = vec![Self::default()];
        let mut rest = text;
        while let Some(start) = rest.find('<') {
            let inside = open.last_mut().ok_or("an end without a beginning")?;
            inside.text += &unescape(&rest[..start])?;
            rest = &rest[start + 1..];
            if let Some(comment) = rest.strip_prefix("!--") {
                rest = after(comment, "-->")?;
            } else if let Some(raw) = rest.strip_prefix("![CDATA[") {
                let end = raw.find("]]>").ok_or("CDATA without an end")?;
                inside.text += &raw[..end];
                rest = &raw[end + 3..];
            } else if rest.starts_with(['?', '!']) {
                rest = after(rest, ">")?;
            } else {
                let end = rest.find('>').ok_or("a tag without an end")?;
                let tag = &rest[..end];
                rest = &rest[end + 1..];
                if let Some(name) = tag.strip_prefix('/') {
                    close(&mut open, name.trim())?;
                    continue;
                }
                let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
                let name = tag.split_whitespace().next().ok_or("a tag without a name")?.to_owned();
                if open.len() > DEEPEST {
                    return Err("elements are nested too deeply".to_owned());
                }
                open.push(Self { name: name.clone(), ..Self::default() });
                if empty {
                    close(&mut open, &name)?;
                }
            }
        }
        match (open.pop(), open.is_empty()) {
            (Some(mut document), true) if document.children.len() == 1 => {
                document.children.pop().ok_or_else(|| "it is empty".to_owned())
            }
            (Some(unfinished), false) => Err(format!("<{}> has no end", unfinished.name)),
            _ => Err("it has no root".to_owned()),
        }
    }

    pub(crate) fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The text of a child, if it has any.
    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| child.text.trim()).filter(|text| !text.is_empty())
    }

    /// Lists are elements called `item` in one that has the list's name.
    pub(crate) fn items(&self, list: &str) -> impl Iterator<Item = &Self> {
        let all = self.child(list).into_iter().flat_map(|list| &list.children);
        all.filter(|item| item.name == "item")
    }

    /// Somewhere below, whatever is around it.
    pub(crate) fn find(&self, name: &str) -> Option<&Self> {
        let here = (self.name == name).then_some(self);
        here.or_else(|| self.children.iter().find_map(|child| child.find(name)))
    }
}

fn close(open: &mut Vec<Element>, name: &str) -> Result<(), String> {
    let done = open.pop().ok_or("an end without a beginning")?;
    let around = open.last_mut().ok_or_else(|| format!("</{name}> without a beginning"))?;
    if done.name != name {
        return Err(format!("<{}> ends as </{name}>", done.name));
    }
    around.children.push(done);
    Ok(())
}

fn after<'a>(text: &'a str, end: &str) -> Result<&'a str, String> {
    text.find(end).map(|at| &text[at + end.len()..]).ok_or_else(|| format!("no {end}"))
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        out += &rest[..start];
        let end = rest[start..].find(';').ok_or("an & without ;")? + start;
        let name = &rest[start + 1..end];
        let code =
            |digits: &str, base| u32::from_str_radix(digits, base).ok().and_then(char::from_u32);
        let c = match name {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => match (name.strip_prefix("#x"), name.strip_prefix('#')) {
                (Some(hex), _) => code(hex, 16),
                (None, Some(decimal)) => code(decimal, 10),
                _ => None,
            },
        };
        out.push(c.ok_or_else(|| format!("&{name}; stands for nothing"))?);
        rest = &rest[end + 1..];
    }
    out += rest;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_lists_and_text_are_read() {
        let root = Element::parse(
            "<?xml version=\"1.0\"?>\n<!-- c --><R xmlns=\"http://x/\"><list><item><a>1 &amp; 2</a></item>\n\
             <item><a><![CDATA[<3>]]></a><b/></item><other/></list><t> &#65;&#x42; </t></R>",
        )
        .expect("it is XML");
        let texts: Vec<_> = root.items("list").map(|item| item.text_of("a")).collect();
        assert_eq!(texts, [Some("1 & 2"), Some("<3>")]);
        assert_eq!(root.text_of("t"), Some("AB"));
        assert_eq!(root.find("b"), Some(&Element { name: "b".into(), ..Element::default() }));
        assert_eq!((root.text_of("b"), root.items("none").count()), (None, 0));
    }

    #[test]
    fn what_is_not_xml_is_refused() {
        let deep = "<a>".repeat(100_000);
        for text in [
            "",
            "text",
            "<a>",
            "<a></b>",
            "</a>",
            "<a",
            "<a>&nope;</a>",
            "<a>&x</a>",
            "<a/><b/>",
            "< >",
            "<!-- ",
            "<a><![CDATA[</a>",
            &deep,
        ] {
            assert!(Element::parse(text).is_err(), "{}", &text[..text.len().min(20)]);
        }
    }
}
