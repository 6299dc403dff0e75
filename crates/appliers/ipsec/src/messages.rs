//! Secrets and connections as messages for charon.

use std::net::IpAddr;

use flannel_common::xfrm::ESP_REQID;
use flannel_entries::ipsec::{Connection, ConnectionName, SharedSecret};

use crate::vici::Message;

/// Proposal of the key exchange, the same as the Go flannel's.
const IKE_PROPOSAL: &str = "aes256-sha256-modp4096";
const SECRET_PREFIX: &str = "flannel-";
/// Time after which a silent node is probed.
const ASK_AFTER: &str = "30s";

pub(crate) fn secret_id(owner: &IpAddr) -> String {
    format!("{SECRET_PREFIX}{owner}")
}

/// Owner of a secret, if it is one of flannel's.
pub(crate) fn secret_owner(id: &str) -> Option<IpAddr> {
    id.strip_prefix(SECRET_PREFIX)?.parse().ok()
}

pub(crate) fn secret_message(shared: &SharedSecret) -> Message {
    Message::default()
        .text("id", secret_id(&shared.owner))
        .text("type", "IKE")
        .text("data", shared.secret.reveal())
        .list("owners", [shared.owner.to_string()])
}

pub(crate) fn connection_message(wanted: &Connection) -> Message {
    let ConnectionName { local, local_subnet, remote_subnet, remote } = &wanted.name;
    let child = Message::default()
        .list("local_ts", [local_subnet.to_string()])
        .list("remote_ts", [remote_subnet.to_string()])
        .list("esp_proposals", [wanted.esp_proposal.as_str()])
        .text("start_action", "start")
        // What is closed is opened again by the applier.
        .text("close_action", "none")
        .text("dpd_action", "restart")
        .text("mode", "tunnel")
        .text("reqid", ESP_REQID.to_string())
        .text("rekey_time", "1h")
        // The kernel's own applier keeps these.
        .text("policies", "no");
    let connection = Message::default()
        .list("local_addrs", [wanted.source.to_string()])
        .list("remote_addrs", [remote.to_string()])
        .list("proposals", [IKE_PROPOSAL])
        .text("version", "2")
        .text("encap", if wanted.udp_encap { "yes" } else { "no" })
        .text("keyingtries", "0")
        .text("dpd_delay", ASK_AFTER)
        .section("local", Message::default().text("auth", "psk").text("id", local.to_string()))
        .section("remote", Message::default().text("auth", "psk"))
        .section("children", Message::default().section(&wanted.name.child(), child));
    Message::default().section(&wanted.name.to_string(), connection)
}

#[cfg(test)]
mod tests {
    use flannel_common::Secret;

    use super::*;

    #[test]
    fn a_secret_is_told_to_charon_and_shown_to_nobody() {
        const SECRET: &str = "hunter2hunter2";
        let owner = IpAddr::from([192, 168, 100, 2]);
        assert_eq!(secret_owner(&secret_id(&owner)), Some(owner));
        assert_eq!(secret_owner("ike-home"), None);
        let message = secret_message(&SharedSecret { owner, secret: Secret::new(SECRET) });
        assert_eq!(message.get_text("data"), Some(SECRET));
        assert!(!format!("{message:?}").contains(SECRET));
    }
}
