//! Tokens: one per name.

use std::io::Write as _;

use anyhow::bail;
use flannel_common::{hex, random_bytes};
use flannel_https::pem::{certificates, fingerprint};
use flannel_store::remote::{TokenFile, hash_token};

use super::{AUTHORITY, Pki, TOKENS};

impl Pki {
    pub(super) fn token(&self, name: &str, rights: &[String], replace: bool) -> anyhow::Result<()> {
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '#') {
            bail!("{name:?} is not a name");
        }
        let all = self.files.read_if_any(TOKENS)?;
        let known = all.lines().any(|line| is_of(line, name));
        let file = self.files.path(TOKENS);
        if known && !replace {
            bail!(
                "{name} has a token, in {}: a new one revokes it, and the node that uses it is locked out; say \
                 --replace if you want that, or use another name",
                file.display()
            );
        }
        let secret = hex(&random_bytes::<32>()?);
        let ca = self.files.path(&format!("{AUTHORITY}.pem"));
        let token = match ca.exists() {
            true => {
                let ca = certificates(&ca).map_err(anyhow::Error::msg)?;
                let print = ca.first().map(fingerprint).unwrap_or_default();
                format!("fl1.{}.{secret}", hex(&print))
            }
            false => secret,
        };
        let line = format!("{} {name} {}", hash_token(&token), rights.join(" "));
        let others = all.lines().filter(|line| !is_of(line, name));
        let text: String = others.chain([line.trim_end()]).map(|l| format!("{l}\n")).collect();
        TokenFile::parse(&text)?;
        self.files.write(TOKENS, &text, true)?;
        writeln!(std::io::stdout(), "{token}")?;
        let mut hint = std::io::stderr();
        if known {
            writeln!(hint, "the former token of {name} is revoked")?;
        }
        if rights.iter().any(|right| right == "admin") {
            writeln!(
                hint,
                "\nfor {name}:\n  FLANNELD_REMOTE_TOKEN=… flannelctl leases --remote=SERVER"
            )?;
        } else {
            writeln!(hint, "\non {name}:\n  FLANNELD_REMOTE_TOKEN=… flanneld --remote=SERVER")?;
        }
        Ok(())
    }

    pub(super) fn revoke_token(&self, name: &str) -> anyhow::Result<bool> {
        let all = self.files.read_if_any(TOKENS)?;
        if !all.lines().any(|line| is_of(line, name)) {
            return Ok(false);
        }
        let others = all.lines().filter(|line| !is_of(line, name));
        let text: String = others.map(|line| format!("{line}\n")).collect();
        self.files.write(TOKENS, &text, true)?;
        Ok(true)
    }
}

fn is_of(line: &str, name: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    line.split_whitespace().nth(1) == Some(name)
}
