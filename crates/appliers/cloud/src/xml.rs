//! XML as EC2 answers with: nested elements, and text. Attributes, comments and declarations are skipped.

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) children: Vec<Element>,
}

/// Largest depth: more than any answer has.
const DEEPEST: usize = 64;

impl Element {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        // The document is an element without a name around its root.
        let (mut open, mut inside) = (Vec::new(), Self::default());
        loop {
            match reader.read_event().map_err(|error| error.to_string())? {
                Event::Start(_) if open.len() >= DEEPEST => {
                    return Err("elements are nested too deeply".to_owned());
                }
                Event::Start(tag) => {
                    let name = tag.name().as_ref().to_owned();
                    open.push(std::mem::replace(&mut inside, Self { name, ..Self::default() }));
                }
                Event::End(_) => {
                    let around = open.pop().ok_or("an end without a beginning")?;
                    let done = std::mem::replace(&mut inside, around);
                    inside.children.push(done);
                }
                Event::Text(text) => inside.text += &text.xml10_content(),
                Event::CData(text) => inside.text += &text.xml10_content(),
                Event::GeneralRef(name) => {
                    let c = name.resolve_char_ref().map_err(|error| error.to_string())?;
                    match (c, resolve_predefined_entity(&name)) {
                        (Some(c), _) => inside.text.push(c),
                        (None, Some(text)) => inside.text += text,
                        (None, None) => return Err(format!("&{}; stands for nothing", &*name)),
                    }
                }
                Event::Eof => break,
                Event::Empty(_)
                | Event::Comment(_)
                | Event::Decl(_)
                | Event::PI(_)
                | Event::DocType(_) => {}
            }
        }
        match inside.children.len() {
            _ if !open.is_empty() => Err(format!("<{}> has no end", inside.name)),
            1 => Ok(inside.children.swap_remove(0)),
            _ => Err("it has no root".to_owned()),
        }
    }

    pub(crate) fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| child.text.trim()).filter(|text| !text.is_empty())
    }

    /// Items of a list: elements called `item` in one that has the list's name.
    pub(crate) fn items(&self, list: &str) -> impl Iterator<Item = &Self> {
        let all = self.child(list).into_iter().flat_map(|list| &list.children);
        all.filter(|item| item.name == "item")
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Self> {
        let here = (self.name == name).then_some(self);
        here.or_else(|| self.children.iter().find_map(|child| child.find(name)))
    }
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
