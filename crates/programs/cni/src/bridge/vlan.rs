//! Containers in VLANs of the bridge, as the configuration has them: the host's end of a container's
//! pair belongs to them, and so does one end of a pair whose other end is the VLAN's gateway.

use std::fs::File;
use std::os::fd::AsFd;

use flannel_common::Mac;

use super::conf::{BridgeConf, wrong};
use super::host;
use crate::kernel::{Change, Kernel, Link, PortVlans, Veth};
use crate::protocol::{Error, ErrorContext, Fields, Result};

const LAST: i64 = 4094;
/// Of frames without a tag on a trunk for which nothing is said.
const NATIVE: u16 = 1;
const LONGEST_NAME: usize = 15;

/// What `vlan`, `vlanTrunk` and `preserveDefaultVlan` say. `None`: no VLANs.
pub(super) fn read(fields: Fields<'_>) -> Result<Option<PortVlans>> {
    let id = fields.integer("vlan").map_err(wrong)?.unwrap_or_default();
    if !(0..=LAST).contains(&id) {
        return Err(Error::config(format!("invalid VLAN ID {id} (must be between 0 and {LAST})")));
    }
    let mut tagged = Vec::new();
    let trunk = |item: Fields<'_>| {
        Ok((item.integer("minID")?, item.integer("maxID")?, item.integer("id")?))
    };
    for (min, max, id) in fields.objects("vlanTrunk", trunk).map_err(wrong)? {
        tagged.extend(range(min, max)?);
        tagged.extend(id.map(|id| checked("id", id)).transpose()?);
    }
    tagged.sort_unstable();
    tagged.dedup();
    let keep_default = fields.flag("preserveDefaultVlan").map_err(wrong)?;
    let own = u16::try_from(id).ok().filter(|id| *id != 0);
    if own.is_none() && tagged.is_empty() {
        return Ok(None);
    }
    Ok(Some(PortVlans { untagged: own.or(Some(NATIVE)), tagged, keep_default }))
}

fn range(min: Option<i64>, max: Option<i64>) -> Result<std::ops::Range<u16>> {
    let missing = |which: &str| {
        Error::config(format!(
            "minID and maxID should be configured simultaneously, {which} is missing"
        ))
    };
    match (min, max) {
        (None, None) => Ok(0..0),
        (None, Some(_)) => Err(missing("minID")),
        (Some(_), None) => Err(missing("maxID")),
        (Some(min), Some(max)) => {
            let (min, max) = (checked("minID", min)?, checked("maxID", max)?);
            if max < min {
                return Err(Error::config("minID is greater than maxID in trunk parameter"));
            }
            Ok(min..max + 1)
        }
    }
}

fn checked(key: &str, id: i64) -> Result<u16> {
    u16::try_from(id)
        .ok()
        .filter(|_| (1..=LAST).contains(&id))
        .ok_or_else(|| Error::config(format!("incorrect trunk {key} parameter")))
}

/// Makes the bridge keep VLANs apart, where the configuration has any.
pub(super) fn filter(host: &mut Kernel, conf: &BridgeConf, bridge: &Link) -> Result<()> {
    if conf.vlans.is_none() {
        return Ok(());
    }
    host.filter_vlans(bridge).map_err(|error| {
        let unable = error.errno() == Some(libc::EOPNOTSUPP);
        let error = Error::from(error);
        match unable {
            true => error.with_details("this kernel has no CONFIG_BRIDGE_VLAN_FILTERING"),
            false => error,
        }
    })
}

/// Puts the host's end of a container's pair into its VLANs.
pub(super) fn join(host: &mut Kernel, conf: &BridgeConf, port: &str) -> Result<()> {
    let Some(vlans) = &conf.vlans else { return Ok(()) };
    let link = host.link_made(port)?;
    Ok(host.set_port_vlans(&link, vlans)?)
}

/// Gateway of the container's VLAN on the host, made if need be. `None`: the bridge itself.
pub(super) fn gateway(
    host: &mut Kernel,
    conf: &BridgeConf,
    bridge: &Link,
    rng: &mut fastrand::Rng,
) -> Result<Option<Link>> {
    let Some(id) = conf.vlan else { return Ok(None) };
    let name = format!("{}.{id}", conf.bridge);
    if name.len() > LONGEST_NAME {
        let msg = format!("the gateway of VLAN {id} cannot be called {name}: that is too long");
        return Err(Error::config(msg).with_details("give 'bridge' a shorter name"));
    }
    if let Some(link) = host.link(&name)? {
        return Ok(Some(link));
    }
    let own = File::open("/proc/thread-self/ns/net").or_cni("could not open our own namespace")?;
    let port = format!("veth{:08x}", rng.u32(..));
    let pair = Veth {
        name: &port,
        mac: Mac::random(rng),
        bridge: bridge.index,
        peer_name: &name,
        peer_mac: Mac::random(rng),
        peer_netns: own.as_fd(),
        mtu: conf.mtu,
    };
    match host.apply(vec![Change::make_veth(&pair)]) {
        // Another ADD was faster.
        Err(error) if error.errno() == Some(libc::EEXIST) => {}
        made => {
            made.or_cni(format_args!("failed to create the VLAN gateway {name}"))?;
            let vlans = PortVlans {
                untagged: Some(id),
                tagged: Vec::new(),
                keep_default: conf.vlans.as_ref().is_some_and(|vlans| vlans.keep_default),
            };
            let link = host.link_made(&port)?;
            host.set_port_vlans(&link, &vlans)?;
            host.apply(vec![Change::set_up(&port), Change::set_up(&name)])?;
        }
    }
    // As on the bridge itself: no container is believed that says it is a router.
    host::ignore_routers(&name);
    host.link_made(&name).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_of(conf: serde_json::Value) -> Result<Option<PortVlans>, String> {
        read(Fields::new(conf.as_object().unwrap())).map_err(|error| error.msg)
    }

    #[test]
    fn a_vlan_and_a_trunk_are_read_as_the_other_bridge_reads_them() {
        assert_eq!(read_of(json!({"vlan": 0})), Ok(None));
        let conf = json!({"vlan": 100, "vlanTrunk": [{"minID": 200, "maxID": 202}, {"id": 101}]});
        let both = PortVlans {
            untagged: Some(100),
            tagged: vec![101, 200, 201, 202],
            keep_default: false,
        };
        assert_eq!(read_of(conf), Ok(Some(both)));
        let trunk = json!({"vlanTrunk": [{"id": 7}], "preserveDefaultVlan": true});
        let native = PortVlans { untagged: Some(1), tagged: vec![7], keep_default: true };
        assert_eq!(read_of(trunk), Ok(Some(native)));
    }

    #[test]
    fn what_is_no_vlan_is_refused() {
        for (conf, words) in [
            (json!({"vlan": -100}), "invalid VLAN ID -100 (must be between 0 and 4094)"),
            (json!({"vlan": 5000}), "invalid VLAN ID 5000 (must be between 0 and 4094)"),
            (json!({"vlanTrunk": [{"id": 0}]}), "incorrect trunk id parameter"),
            (json!({"vlanTrunk": [{"minID": 5, "maxID": 4}]}), "minID is greater than maxID"),
            (json!({"vlanTrunk": [{"minID": 5}]}), "maxID is missing"),
            (json!({"vlanTrunk": [{"maxID": 5}]}), "minID is missing"),
            (json!({"vlanTrunk": [{"minID": 5, "maxID": 4095}]}), "incorrect trunk maxID"),
        ] {
            let refused = read_of(conf).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
