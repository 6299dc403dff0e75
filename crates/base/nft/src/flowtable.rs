//! Flowtables: connections whose packets take a short way past all chains.

use flannel_netlink::{AttributeWriter, Attributes};

use crate::{Nft, Result, TableFamily, of_table, request, wire};

const INGRESS: u32 = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flowtable {
    pub name: String,
    pub priority: i32,
    /// Interfaces whose packets it sees.
    pub devices: Vec<String>,
}

impl Flowtable {
    pub(crate) fn encode(&self, table: &str) -> AttributeWriter {
        let mut devices = AttributeWriter::default();
        for device in &self.devices {
            devices.append(&AttributeWriter::default().text(wire::DEVICE_NAME, device));
        }
        let hook = AttributeWriter::default()
            .be32(wire::HOOK_NUMBER, INGRESS)
            .be32(wire::HOOK_PRIORITY, self.priority as u32)
            .nest(wire::FLOWTABLE_DEVICES, &devices);
        of_table(table).text(wire::FLOWTABLE_NAME, &self.name).nest(wire::FLOWTABLE_HOOK, &hook)
    }

    pub(crate) fn decode(flowtable: Attributes<'_>) -> Option<Self> {
        let hook = flowtable.nested(wire::FLOWTABLE_HOOK)?;
        let devices = hook.nested(wire::FLOWTABLE_DEVICES).unwrap_or_default();
        let devices = devices.iter().filter_map(|(_, name)| flannel_netlink::text(name));
        Some(Self {
            name: flowtable.text(wire::FLOWTABLE_NAME)?.to_owned(),
            priority: hook.be32(wire::HOOK_PRIORITY)? as i32,
            devices: devices.map(str::to_owned).collect(),
        })
    }
}

impl Nft {
    pub fn flowtables(&mut self, family: TableFamily, table: &str) -> Result<Vec<Flowtable>> {
        let question = request(wire::GET_FLOWTABLE, family, of_table(table));
        self.get_all(&question, table, Flowtable::decode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not every kernel has flowtables, so this one is not asked.
    #[test]
    fn flowtable_is_decoded_as_it_was_encoded() {
        let devices = ["eth0", "cni0"].map(str::to_owned).to_vec();
        let flowtable = Flowtable { name: "fast".to_owned(), priority: -5, devices };
        let encoded = flowtable.encode("flannel");
        assert_eq!(Flowtable::decode(encoded.read()), Some(flowtable));
        assert_eq!(encoded.read().text(wire::TABLE), Some("flannel"));
    }
}
