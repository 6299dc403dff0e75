//! Makes devices as wanted: step by step, reading the device again after each.

use std::io;
use std::time::Instant;

use flannel_common::IfName;
use flannel_entries::kernel::{Key, Link, LinkKind, Vxlan};
use flannel_netlink::verbs::{indexed_link, named_link};
use flannel_netlink::{NetlinkError, Request};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::nsid::NsidAttribute;

use super::Reconciler;
use crate::encode::{self, dump};
use crate::link_plan::{LinkPlan, Step, plan_link};
use crate::observed::{Observed, ObservedLink};
use crate::wanted;

/// Number of steps: enough to remove what is in the way, take a device back under its name, and change it.
const MAX_STEPS: usize = 6;

impl<S: Ord + Clone> Reconciler<S> {
    pub(super) fn flush_links(&mut self, now: Instant) -> io::Result<()> {
        let dirty: Vec<Link> = wanted::links(&self.wanted)
            .filter(|link| self.wanted.is_marked(&Key::Link(link.name)))
            .cloned()
            .collect();
        for link in dirty {
            let key = Key::Link(link.name);
            match self.settle_link(&link)? {
                Ok(()) => self.wanted.succeeded(&key),
                Err(error) => self.note_failure(&key, error, now),
            }
        }
        Ok(())
    }

    /// Makes a device as wanted. `Ok` only when it is seen to be so; else why it is not.
    fn settle_link(&mut self, link: &Link) -> io::Result<Result<(), String>> {
        let mut changed = false;
        for _ in 0..MAX_STEPS {
            match plan_link(link, self.link_context()) {
                LinkPlan::Keep => return Ok(Ok(())),
                LinkPlan::Wait(what) => return Ok(Err(format!("waiting for {what}"))),
                LinkPlan::Rename { index, from } => {
                    if let Err(error) = self.take_back(link, index, from)? {
                        return Ok(Err(error));
                    }
                }
                // What the kernel refuses is not drift, and asking again does not help.
                LinkPlan::Change(steps) if changed => {
                    let what: Vec<String> = steps.into_iter().map(|step| step.what).collect();
                    return Ok(Err(format!("the kernel keeps it so: {}", what.join(", "))));
                }
                LinkPlan::Change(steps) => {
                    changed = true;
                    if let Err(error) = self.change_link(link, steps)? {
                        return Ok(Err(error));
                    }
                }
                LinkPlan::Remove { index, why } => {
                    tracing::warn!("recreating {}: {why}", link.name);
                    if let Err(error) = self.remove_link(index)? {
                        return Ok(Err(format!("{why}, and it cannot be removed: {error}")));
                    }
                }
                LinkPlan::Create => {
                    let made = match self.renamed_wireguard(link)? {
                        Some((index, from)) => self.take_back(link, index, from)?,
                        None => self.create_link(link)?,
                    };
                    if let Err(error) = made {
                        return Ok(Err(error));
                    }
                }
            }
        }
        Ok(Err("it changes while it is being put right".to_owned()))
    }

    fn take_back(
        &mut self,
        link: &Link,
        index: u32,
        from: IfName,
    ) -> io::Result<Result<(), String>> {
        tracing::warn!("somebody has renamed {} to {from}", link.name);
        if let Err(error) = self.rename(index, link.name)? {
            return Ok(Err(format!("{from} cannot be renamed: {error}")));
        }
        self.learn_link(indexed_link(index, []))?;
        self.resync_due = true;
        Ok(Ok(()))
    }

    /// Renames a device while it is up, if the kernel is new enough (6.2) for that.
    fn rename(&mut self, index: u32, name: IfName) -> io::Result<Result<(), NetlinkError>> {
        match self.apply_one(encode::set_name(index, name))? {
            Err(error) if error.errno == libc::EBUSY => {}
            other => return Ok(other),
        }
        if let Err(error) = self.apply_one(encode::set_flags(index, LinkFlags::Up, false))? {
            return Ok(Err(error));
        }
        let renamed = self.apply_one(encode::set_name(index, name))?;
        let up = self.apply_one(encode::set_flags(index, LinkFlags::Up, true))?;
        Ok(renamed.and(up))
    }

    fn change_link(&mut self, link: &Link, steps: Vec<Step>) -> io::Result<Result<(), String>> {
        let Some(index) = self.links.index(link.name) else { return Ok(Ok(())) };
        let mut refused = None;
        for Step { what, request, recreate_if_refused } in steps {
            let Err(error) = self.apply_one(request)? else { continue };
            if recreate_if_refused {
                tracing::warn!(
                    "recreating {}: {what}, and that cannot be changed: {error}",
                    link.name
                );
                return Ok(match self.remove_link(index)? {
                    Ok(()) => self.create_link(link)?,
                    Err(error) => Err(format!("{what}, and it cannot be removed: {error}")),
                });
            }
            refused = Some(format!("{what}, and that cannot be changed: {error}"));
        }
        self.learn_link(indexed_link(index, []))?;
        // Down and up, or another MAC, has removed entries on it.
        self.resync_due = true;
        Ok(refused.map_or(Ok(()), Err))
    }

    fn remove_link(&mut self, index: u32) -> io::Result<Result<(), NetlinkError>> {
        let removed = self.apply_one(Request::delete_link(index))?;
        if removed.is_ok() {
            self.links.remove(index);
            self.facts_changed = true;
        }
        Ok(removed)
    }

    fn create_link(&mut self, link: &Link) -> io::Result<Result<(), String>> {
        let parent = match link.kind.parent().map(|name| self.links.index(name)) {
            Some(None) => return Ok(Err("its parent device is gone".to_owned())),
            parent => parent.flatten(),
        };
        let create = |this: &mut Self| this.apply_one(encode::create_link(link, parent));
        let mut created = create(self)?;
        if matches!(&created, Err(error) if error.errno == libc::EEXIST)
            && self.remove_from_other_namespace(link)?
        {
            created = create(self)?;
        }
        if let Err(error) = created {
            return Ok(Err(self.explain(link, &error)?));
        }
        self.learn_link(named_link(link.name.as_str(), []))?;
        wanted::rewrite_all_on(&mut self.wanted, link.name);
        Ok(Ok(()))
    }

    /// Why a device cannot be made, with what is in its way and the fix.
    fn explain(&mut self, link: &Link, error: &NetlinkError) -> io::Result<String> {
        if error.errno == libc::EOPNOTSUPP {
            return Ok(lacks_kind(link, error));
        }
        let around = self.link_context();
        let same = |other: &&ObservedLink| around.receives_the_same(&link.kind, other);
        let near = around.links.iter().map(|(other, _)| other).find(same).map(|other| other.name);
        match (&link.kind, near) {
            (LinkKind::Vxlan(vxlan), near) => self.explain_vxlan(link, vxlan, near, error),
            (LinkKind::IpTunnel(wanted), Some(name)) if error.errno == libc::EEXIST => Ok(format!(
                "{name} is in the way, a device of the kind {} with the same local address {} that is not \
                     flannel's: remove it (ip link del {name})",
                wanted.kind.name(),
                wanted.local
            )),
            _ => Ok(error.to_string()),
        }
    }

    /// The same for a vxlan device; `near` receives its packets.
    fn explain_vxlan(
        &mut self,
        link: &Link,
        wanted: &Vxlan,
        near: Option<IfName>,
        error: &NetlinkError,
    ) -> io::Result<String> {
        let (vni, port) = (wanted.vni, self.link_context().port(wanted));
        let elsewhere = "or give flannel another Backend.VNI or Backend.Port on all nodes";
        Ok(match (error.errno, near) {
            (libc::EEXIST, Some(name)) => format!(
                "{name} is in the way, a vxlan device with the same VNI {vni} and port {port} that is \
                 not flannel's: remove it (ip link del {name}), {elsewhere}"
            ),
            (libc::EEXIST, None) => match self.find_in_other_namespace(link)? {
                Some((namespace, other)) => format!(
                    "{} is in the way, a vxlan device with the same VNI {vni} and port {port} that was \
                     made here and moved into another network namespace (nsid {namespace} of \
                     `ip netns list-id`): remove it there, {elsewhere}",
                    other.name
                ),
                None => format!(
                    "{error}: one with VNI {vni} and port {port} was made here and moved into another \
                     network namespace: remove it there, {elsewhere}"
                ),
            },
            (libc::EADDRINUSE, _) => format!(
                "{error}: the UDP port {port} is taken by another program or vxlan device (ss -ulnp \
                 'sport = :{port}', ip -d link show type vxlan): stop it, or give flannel another \
                 Backend.Port on all nodes"
            ),
            _ => error.to_string(),
        })
    }

    /// Removes the wanted device if somebody has moved it into another network namespace: the kernel goes on counting
    /// it as one of ours, and makes no second one. Returns whether there was one.
    fn remove_from_other_namespace(&mut self, link: &Link) -> io::Result<bool> {
        let Some((namespace, other)) = self.find_in_other_namespace(link)? else {
            return Ok(false);
        };
        if other.mac.is_none() || other.mac != link.mac {
            return Ok(false);
        }
        let name = other.name;
        match self.apply_one(encode::delete_link_elsewhere(namespace, other.index))? {
            Ok(()) => {
                tracing::warn!(
                    "{} was moved into another network namespace (nsid {namespace}, as {name}): \
                     recreating it",
                    link.name
                );
                Ok(true)
            }
            Err(error) => {
                tracing::warn!(
                    "cannot remove {name} in the namespace with nsid {namespace}: {error}"
                );
                Ok(false)
            }
        }
    }

    /// Finds a device in another network namespace that receives the packets of the wanted one.
    fn find_in_other_namespace(&mut self, link: &Link) -> io::Result<Option<(i32, ObservedLink)>> {
        let namespaces = self.connection.dump(&dump::namespaces(), |message| match message {
            RouteNetlinkMessage::NewNsId(message) => {
                message.attributes.iter().find_map(|attribute| match attribute {
                    NsidAttribute::Id(id) if *id >= 0 => Some(*id),
                    _ => None,
                })
            }
            _ => None,
        })?;
        for namespace in namespaces {
            // One that has just gone, or that we have no right to look into.
            let Ok(links) = self.connection.dump(&dump::links_elsewhere(namespace), Observed::read)
            else {
                continue;
            };
            let around = self.link_context();
            let found = links.into_iter().find_map(|observed| match observed {
                Observed::Link(other) if around.receives_the_same(&link.kind, &other) => {
                    Some(other)
                }
                _ => None,
            });
            if let Some(other) = found {
                return Ok(Some((namespace, other)));
            }
        }
        Ok(None)
    }

    pub(super) fn apply_one(&mut self, request: Request) -> io::Result<Result<(), NetlinkError>> {
        let mut result = Ok(());
        self.connection.apply([request], |_, error| result = Err(error))?;
        Ok(result)
    }

    fn learn_link(&mut self, message: LinkMessage) -> io::Result<()> {
        if let Ok(answer) = self.connection.get(&RouteNetlinkMessage::GetLink(message))?
            && let Some(Observed::Link(link)) = Observed::read(answer)
        {
            self.links.put(link);
            self.facts_changed = true;
        }
        Ok(())
    }
}

/// Error of a kernel that was built without devices of this kind, or cannot load its module.
fn lacks_kind(link: &Link, error: &NetlinkError) -> String {
    let kind = link.kind.kind();
    format!(
        "{error}: this kernel has no {kind} devices; load its module (modprobe {kind}), which a container \
         cannot do for its host, boot a kernel that has it, or use another Backend.Type"
    )
}
