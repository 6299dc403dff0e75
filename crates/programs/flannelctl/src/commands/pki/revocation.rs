//! Certificates that are taken back. `issued` has number and name of each that was made; a list that the authority
//! signs, behind its certificate in the file that the server has for its clients, has those that are no longer good.

use std::io::Write as _;
use std::time::SystemTime;

use anyhow::bail;
use flannel_common::{hex, random_bytes};
use flannel_https::certificate;
use flannel_https::pem::certificates;
use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevocationReason, RevokedCertParams, SerialNumber,
};

use super::{AUTHORITY, AUTHORITY_DAYS, INIT, Pki, TOKENS, check_name, date};

const ISSUED: &str = "issued";
const REVOKED: &str = "revoked";
const END: &str = "-----END CERTIFICATE-----\n";

impl Pki {
    pub(super) fn new_serial(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let mut serial = random_bytes::<16>()?;
        // Neither negative nor with a zero before it.
        serial[0] = serial[0] & 0x7f | 0x40;
        let issued = self.files.read_if_any(ISSUED)?;
        self.files.write(ISSUED, &format!("{issued}{} {name}\n", hex(&serial)), false)?;
        Ok(serial.to_vec())
    }

    pub(super) fn authority_pem(&self) -> anyhow::Result<String> {
        let text = self.files.read(&format!("{AUTHORITY}.pem"), INIT)?;
        Ok(match text.find(END) {
            Some(at) => text[..at + END.len()].to_owned(),
            None => text,
        })
    }

    pub(super) fn revoke(&self, name: &str) -> anyhow::Result<()> {
        let token = self.revoke_token(name)?;
        let certificates = self.revoke_certificates(name)?;
        if !token && certificates == 0 {
            bail!(
                "{name} has neither a token nor a certificate in {}: nothing is revoked",
                self.files.dir.display()
            );
        }
        let mut hint = std::io::stderr();
        if token {
            let file = self.files.path(TOKENS);
            writeln!(
                hint,
                "the token of {name} is revoked, at once where the server reads {}",
                file.display()
            )?;
        }
        if certificates > 0 {
            let file = self.files.path(&format!("{AUTHORITY}.pem"));
            writeln!(
                hint,
                "{certificates} certificates of {name} are revoked, at once where the server's --remote-cafile is {}",
                file.display()
            )?;
        }
        writeln!(hint, "its lease stays until it ends, or until `flannelctl release`")?;
        Ok(())
    }

    fn revoke_certificates(&self, name: &str) -> anyhow::Result<usize> {
        let issued = self.files.read_if_any(ISSUED)?;
        let of_name = |line: &&str| line.split_once(' ').is_some_and(|(_, of)| of == name);
        let mut numbers: Vec<String> = issued
            .lines()
            .filter(of_name)
            .filter_map(|line| Some(line.split_once(' ')?.0.to_owned()))
            .collect();
        // One from the time before they were noted.
        let pem = self.files.path(&format!("{name}.pem"));
        if check_name(name).is_ok() && pem.exists() {
            let found = certificates(&pem).map_err(anyhow::Error::msg)?;
            numbers.extend(found.first().and_then(|c| certificate::serial(c)).map(|n| hex(&n)));
        }
        let known = self.files.read_if_any(REVOKED)?;
        let is_known = |number: &String| known.lines().any(|line| line == number);
        numbers.retain(|number| !is_known(number));
        numbers.sort();
        numbers.dedup();
        if numbers.is_empty() {
            return Ok(0);
        }
        let all: String = known
            .lines()
            .chain(numbers.iter().map(String::as_str))
            .map(|l| format!("{l}\n"))
            .collect();
        let list = self.revocation_list(&all)?;
        self.files.write(REVOKED, &all, false)?;
        self.files.write(
            &format!("{AUTHORITY}.pem"),
            &format!("{}{list}", self.authority_pem()?),
            false,
        )?;
        Ok(numbers.len())
    }

    fn revocation_list(&self, numbers: &str) -> anyhow::Result<String> {
        let now = SystemTime::now();
        let revoked = numbers.lines().filter_map(unhex).map(|number| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&number),
            revocation_time: now.into(),
            reason_code: Some(RevocationReason::Unspecified),
            invalidity_date: None,
        });
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let list = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: date(AUTHORITY_DAYS),
            crl_number: SerialNumber::from(since.as_secs()),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(list.signed_by(&self.issuer()?)?.pem()?)
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}
