//! What `iptables-save` writes of rules that anybody on the node has made.

use flannel_nft::{SavedLine, read_saved, split_words};

pub(crate) fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for line in read_saved(&text) {
        match line {
            SavedLine::Table(name) => assert!(!name.contains('\n')),
            SavedLine::Chain { name, policy } => {
                assert!(!name.is_empty() && !name.contains(char::is_whitespace));
                assert_ne!(policy, Some("-"));
            }
            SavedLine::Rule(rule) => {
                assert!(text.contains(rule.text), "what is deleted is what was written");
                let words: Vec<&str> = rule.words().collect();
                for pair in words.windows(2) {
                    assert!(rule.option(pair[0]).is_some(), "{words:?}");
                }
                // Words in quotation marks are cut as they were.
                let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
                assert_eq!(split_words(&quoted.join(" ")), words);
            }
        }
    }
}

fn quote(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}
