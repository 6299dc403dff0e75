//! Documents that are a little wrong: the same ones for the same number.

use fastrand::Rng;

/// As in `scripts/fuzz`: longer than any document that has something to say.
const LENGTH_LIMIT: usize = 4096;

const EDGE_BYTES: &[u8] = &[0, 1, 0x7f, 0x80, 0xfe, 0xff, b'0', b'"', b'\n', b' ', b'/', b'-'];
const EDGE_NUMBERS: &[&str] =
    &["0", "-1", "1", "255", "256", "65535", "65536", "4294967296", "18446744073709551616"];

/// Makes documents out of others.
pub struct Mutator<'a> {
    seeds: &'a [Vec<u8>],
    words: &'a [Vec<u8>],
}

impl<'a> Mutator<'a> {
    pub fn new(seeds: &'a [Vec<u8>], words: &'a [Vec<u8>]) -> Self {
        Self { seeds, words }
    }

    /// The document of that number.
    pub fn document(&self, number: u64) -> Vec<u8> {
        let mut rng = Rng::with_seed(number);
        let mut document = rng.choice(self.seeds).cloned().unwrap_or_default();
        // Mostly few: what is wrong in many places is refused for the first.
        for _ in 0..1 << rng.u32(0..4) {
            self.change(&mut document, &mut rng);
        }
        document.truncate(LENGTH_LIMIT);
        document
    }

    fn change(&self, document: &mut Vec<u8>, rng: &mut Rng) {
        let at = rng.usize(0..=document.len());
        let end = (at + rng.usize(0..16)).min(document.len());
        match rng.u32(0..9) {
            0 => replace(document, at..(at + 1).min(end), &[rng.u8(..)]),
            1 => {
                if let Some(byte) = document.get_mut(at) {
                    *byte ^= 1 << rng.u32(0..8);
                }
            }
            2 => replace(document, at..end, &[]),
            3 => {
                let piece = document[at..end].to_vec();
                replace(document, at..at, &piece);
            }
            4 => document.truncate(at),
            5 => {
                let byte = rng.choice(EDGE_BYTES).copied().unwrap_or_default();
                replace(document, at..(at + 1).min(end), &[byte]);
            }
            6 => {
                let number = rng.choice(EDGE_NUMBERS).copied().unwrap_or_default();
                replace(document, number_at(document, at), number.as_bytes());
            }
            7 => {
                let word = rng.choice(self.words).cloned().unwrap_or_default();
                replace(document, at..if rng.bool() { at } else { end }, &word);
            }
            _ => {
                let other = rng.choice(self.seeds).map(Vec::as_slice).unwrap_or_default();
                let from = rng.usize(0..=other.len());
                let to = rng.usize(from..=other.len());
                replace(document, at..end, &other[from..to]);
            }
        }
    }
}

fn replace(document: &mut Vec<u8>, range: std::ops::Range<usize>, by: &[u8]) {
    document.splice(range, by.iter().copied());
}

/// The first digits from there on.
fn number_at(document: &[u8], from: usize) -> std::ops::Range<usize> {
    let rest = &document[from..];
    let start = from + rest.iter().position(u8::is_ascii_digit).unwrap_or(0);
    let length = document[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    start..start + length
}

/// Reads libFuzzer's list of words: one in quotes on each line, with `\xAB` for what is no text.
pub(crate) fn dictionary(text: &str) -> Vec<Vec<u8>> {
    let words = text.lines().filter_map(|line| {
        let (_, word) = line.split_once('"')?;
        Some(unescaped(word.strip_suffix('"')?))
    });
    words.collect()
}

fn unescaped(word: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((before, escape)) = rest.split_once('\\') {
        bytes.extend(before.bytes());
        let hex = escape.strip_prefix('x').and_then(|hex| hex.get(..2));
        if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            bytes.push(byte);
            rest = &escape[3..];
        } else {
            // `\\` and `\"` stand for the second character.
            let length = escape.chars().next().map_or(0, char::len_utf8);
            bytes.extend(escape[..length].bytes());
            rest = &escape[length..];
        }
    }
    bytes.extend(rest.bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionary_of_libfuzzer_is_read() {
        let words = dictionary("\"abc\"\n# words\nname=\"\\x00\\xffz\"\n\"a\\\"b\\\\\"\n");
        assert_eq!(words, [b"abc".to_vec(), vec![0, 255, b'z'], b"a\"b\\".to_vec()]);
    }

    #[test]
    fn same_number_makes_the_same_document() {
        let (seeds, words) = ([b"{\"a\": 12}".to_vec(), b"xyz".to_vec()], [b"word".to_vec()]);
        let mutator = Mutator::new(&seeds, &words);
        let documents: Vec<Vec<u8>> = (0..200).map(|number| mutator.document(number)).collect();
        assert_eq!(documents, (0..200).map(|number| mutator.document(number)).collect::<Vec<_>>());
        let different: std::collections::BTreeSet<_> = documents.into_iter().collect();
        assert!(different.len() > 100, "{}", different.len());
    }

    #[test]
    fn nothing_is_too_short_to_be_changed() {
        for number in 0..1000 {
            Mutator::new(&[Vec::new()], &[]).document(number);
            Mutator::new(&[], &[]).document(number);
        }
    }
}
