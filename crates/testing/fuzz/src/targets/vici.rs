//! Messages of VICI as charon would send them, or whoever listens in its place.

use flannel_ipsec::vici::Message;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(message) = Message::read(bytes) else { return };
    let mut written = Vec::new();
    // What was no UTF-8 has become longer, perhaps too long to be said.
    if message.write(&mut written).is_ok() {
        assert!(Message::read(&written).as_ref() == Ok(&message), "read as another");
    }
    for (_, section) in message.sections() {
        let _ = (
            section.get_text("state"),
            section.get_list("conns"),
            section.get_section("child-sas"),
        );
    }
}
