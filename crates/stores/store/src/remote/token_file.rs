//! The token file of a lease server: one line per client, `sha256:<hash of the token> <name> [addresses…]`.
//!
//! The addresses are those that the client may announce; `any` stands for all; without any it may announce the one
//! it comes from. `admin` in their place makes it an operator, `read` a client that changes nothing. The file holds no
//! secret: the hash of a long random token cannot be reversed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use flannel_common::hex;
use flannel_https::sha256;

use super::token::unhex;

#[derive(Debug, Default)]
pub struct TokenFile(HashMap<[u8; 32], TokenHolder>);

#[derive(Clone, Debug)]
pub struct TokenHolder {
    pub name: Arc<str>,
    pub rights: TokenRights,
}

#[derive(Clone, Debug)]
pub enum TokenRights {
    Operator,
    Reader,
    Any,
    Source,
    Only(Arc<[IpAddr]>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: {problem}; a line is: sha256:<64 hexadecimal digits> <name> [address… | any | admin | read]"
)]
pub struct TokenFileError {
    line: usize,
    problem: &'static str,
}

impl TokenFile {
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read the tokens in {}: {error}", file.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", file.display()))
    }

    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut tokens = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |problem| TokenFileError { line: index + 1, problem };
            let (hash, holder) = read_line(line).map_err(wrong)?;
            tokens.insert(hash, holder);
        }
        Ok(Self(tokens))
    }

    /// Holder of a token. Tokens are compared by their hash, so that the time it takes reveals nothing about them.
    pub fn holder(&self, token: &str) -> Option<&TokenHolder> {
        self.0.get(&sha256(token.as_bytes()))
    }
}

fn read_line(line: &str) -> Result<([u8; 32], TokenHolder), &'static str> {
    let mut words = line.split_whitespace();
    let hash = words.next().and_then(|word| word.strip_prefix("sha256:"));
    let hash = hash.and_then(unhex).ok_or("it does not begin with the hash of a token")?;
    let name = words.next().ok_or("the name is missing")?.into();
    let words: Vec<&str> = words.collect();
    let rights = match words[..] {
        [] => TokenRights::Source,
        ["admin"] => TokenRights::Operator,
        ["any"] => TokenRights::Any,
        ["read"] => TokenRights::Reader,
        _ => {
            let addresses: Result<Vec<IpAddr>, _> = words.iter().map(|word| word.parse()).collect();
            TokenRights::Only(
                addresses.map_err(|_| "what follows the name is not an address")?.into(),
            )
        }
    };
    Ok((hash, TokenHolder { name, rights }))
}

pub fn hash_token(token: &str) -> String {
    format!("sha256:{}", hex(&sha256(token.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_says_where() {
        for (text, line) in [
            ("one node-1".to_owned(), 1),
            (format!("\n{}", hash_token("one")), 2),
            (format!("{} node-1 here", hash_token("one")), 1),
        ] {
            assert_eq!(TokenFile::parse(&text).unwrap_err().line, line, "{text}");
        }
    }
}
