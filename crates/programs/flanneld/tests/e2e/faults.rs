//! Faults that operators meet, planted one at a time on three nodes of vxlan: `flannelctl status` or `check` names
//! each with its layer and the command that mends it, in words and in JSON, and none when it is not there.

use std::process::Command;
use std::time::{Duration, Instant};

use flannel_lab::{Lab, LabError, Process, Result};
use serde_json::Value;

use crate::support::{LIMIT, flanneld, lab, lease_path, measured};

/// What an operator is promised.
const PROMISE: Duration = Duration::from_secs(10);
/// As the container runtime is told where its plugins are.
const PLUGINS: [&str; 2] = ["--cni-bin-dir", "/run/plugins"];

/// What is typed on which node, and what is to be read there.
pub(crate) struct ExpectedFinding<'a> {
    node: u16,
    command: Diagnostic,
    /// With which it ends.
    code: i32,
    layer: &'a str,
    what: &'a str,
    fix: &'a str,
    /// It has to be said; what has not may follow from the fault.
    is_wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Diagnostic {
    Status,
    Check,
}

pub(crate) fn status<'a>(
    node: u16,
    layer: &'a str,
    what: &'a str,
    fix: &'a str,
) -> ExpectedFinding<'a> {
    ExpectedFinding {
        node,
        command: Diagnostic::Status,
        code: 1,
        layer,
        what,
        fix,
        is_wanted: true,
    }
}

pub(crate) fn check<'a>(
    node: u16,
    layer: &'a str,
    what: &'a str,
    fix: &'a str,
) -> ExpectedFinding<'a> {
    ExpectedFinding { node, command: Diagnostic::Check, code: 1, layer, what, fix, is_wanted: true }
}

/// What may be said as well, anywhere: it follows from the fault.
pub(crate) fn also(what: &str) -> ExpectedFinding<'_> {
    ExpectedFinding { is_wanted: false, ..status(0, "", what, "") }
}

impl ExpectedFinding<'_> {
    /// It is worth knowing, and pods reach each other all the same.
    pub(crate) fn remark(self) -> Self {
        Self { code: 0, ..self }
    }

    /// In words and in JSON. Returns when the words were read.
    fn is_said(&self, lab: &Lab) -> std::result::Result<Instant, String> {
        let Answers { code, text, read_at, json_code, json } =
            ask_in_both_forms(lab, self.node, self.command);
        let said = || format!("node {}, {:?}: {code}\n{text}{json}", self.node, self.command);
        let json: Value = serde_json::from_str(&json).map_err(|_| said())?;
        let (head, rows_below) = match self.command {
            Diagnostic::Status => (format!("({}): ", self.layer), 1),
            Diagnostic::Check => (format!("  {} ", self.layer), 2),
        };
        let lines: Vec<&str> = text.lines().collect();
        // `check` writes the cause and the fix below, and `status` the fix alone.
        let rows = (0..lines.len()).filter(|at| {
            lines[*at].contains(&head) || lines[*at].contains(&format!(" {} ", self.layer))
        });
        let row = |at: usize| lines[at..lines.len().min(at + rows_below + 1)].join("\n");
        let mut rows = rows.map(row).filter(|row| {
            row.contains(self.what)
                || row.replace("\n               why: ", ": ").contains(self.what)
        });
        let said_rows: Vec<String> = rows.by_ref().collect();
        let named = !said_rows.is_empty();
        let mended = said_rows
            .iter()
            .any(|row| row.lines().any(|line| line.contains("fix: ") && line.contains(self.fix)));
        let in_json = findings(self.command, &json).iter().any(|found| {
            found.layer == self.layer
                && found.what.contains(self.what)
                && found.fix.contains(self.fix)
        });
        let coded = (code, json_code) == (self.code, self.code);
        if named && mended && in_json && coded {
            return Ok(read_at);
        }
        Err(format!("in words {named} {mended}, in JSON {in_json}, code {coded}: {}", said()))
    }
}

/// What is wrong, as a program reads it.
struct Finding {
    layer: String,
    what: String,
    fix: String,
}

fn findings(command: Diagnostic, said: &Value) -> Vec<Finding> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = |list: &Value| list.as_array().cloned().unwrap_or_default();
    match command {
        Diagnostic::Check => all(&said["findings"])
            .iter()
            .filter(|found| found["severity"] != "note")
            .map(|found| Finding {
                layer: text(&found["subject"]),
                what: format!("{}: {}", text(&found["what"]), text(&found["why"])),
                fix: text(&found["fix"]),
            })
            .collect(),
        Diagnostic::Status => {
            let network = &said["networks"][0];
            let mut found = all(&network["issues"]);
            found.extend(all(&network["probing"]["findings"]));
            let finding = |found: &Value| Finding {
                layer: text(&found["layer"]),
                what: format!("{}: {}", text(&found["about"]), text(&found["why"])),
                fix: text(&found["fix"]),
            };
            found.iter().map(finding).collect()
        }
    }
}

pub(crate) fn ask(lab: &Lab, node: u16, command: Diagnostic, more: &[&str]) -> (i32, String) {
    let program = flanneld().with_file_name("flannelctl");
    let mut words = vec![program.to_str().unwrap()];
    match command {
        Diagnostic::Status => words.push("status"),
        Diagnostic::Check => words.extend(["check", PLUGINS[0], PLUGINS[1]]),
    }
    words.extend(more);
    let output = lab.node(node).output(&words).unwrap();
    // Beside a document that a program reads, people are told that it takes a while.
    let errors = if more.contains(&"json") { "" } else { &output.stderr };
    (output.status.code().unwrap_or(-1), output.stdout + errors)
}

/// What is said to people and to programs.
struct Answers {
    code: i32,
    text: String,
    /// When the text was there.
    read_at: Instant,
    json_code: i32,
    json: String,
}

/// Both at once: most of the time is spent waiting for answers of others.
fn ask_in_both_forms(lab: &Lab, node: u16, command: Diagnostic) -> Answers {
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(lab, node, command, &["-o", "json"]));
        let (code, text) = ask(lab, node, command, &[]);
        let read_at = Instant::now();
        let (json_code, json) = asking.join().unwrap();
        Answers { code, text, read_at, json_code, json }
    })
}

/// Asks all nodes, each of them one thing after the other and all nodes at once.
fn ask_everywhere<R: Send>(lab: &Lab, ask_one: impl Fn(u16, Diagnostic) -> R + Sync) -> Vec<R> {
    let ask_node =
        |number: u16| [Diagnostic::Status, Diagnostic::Check].map(|asked| ask_one(number, asked));
    std::thread::scope(|scope| {
        let numbers = lab.nodes().iter().map(|node| node.number());
        let asking: Vec<_> = numbers.map(|number| scope.spawn(move || ask_node(number))).collect();
        asking.into_iter().flat_map(|one| one.join().unwrap()).collect()
    })
}

/// Nothing is reported anywhere, in words or in JSON.
fn nothing_is_wrong(lab: &Lab) -> Result<()> {
    let others = lab.nodes().len() - 1;
    let look = |number: u16, command: Diagnostic| {
        let Answers { code, text, json, .. } = ask_in_both_forms(lab, number, command);
        let is_healthy = match command {
            Diagnostic::Status => {
                text.contains("the network is healthy\n")
                    && text.contains(&format!("probes    {others} reached; round trip"))
            }
            Diagnostic::Check => text.contains("nothing is wrong\n"),
        };
        let found = serde_json::from_str(&json).map(|json| findings(command, &json).len());
        if code != 0 || !is_healthy || text.contains("fix: ") || found.ok() != Some(0) {
            return Err(LabError::Spec(format!("node {number}: {code} {text}{json}")));
        }
        Ok(())
    };
    lab.wait_until("nothing to be wrong", 2 * LIMIT, || {
        ask_everywhere(lab, look).into_iter().collect::<Result<Vec<()>>>()
    })?;
    Ok(())
}

/// Plants a fault in a lab that reports nothing, sees it named wherever it is to be and nothing else besides, mends it,
/// and sees that nothing is reported again.
pub(crate) fn is_named<R>(
    lab: &Lab,
    plant: impl FnOnce() -> R,
    told: &[ExpectedFinding<'_>],
    mend: impl FnOnce(R),
) -> Result<()> {
    find(lab, plant, told, mend).map(drop)
}

/// And an operator who asks is told as soon as it is promised.
pub(crate) fn is_named_in_time<R>(
    lab: &Lab,
    plant: impl FnOnce() -> R,
    told: &[ExpectedFinding<'_>],
    mend: impl FnOnce(R),
) -> Result<()> {
    let after = find(lab, plant, told, mend)?;
    assert!(after <= PROMISE, "it was first named after {after:.1?}");
    Ok(())
}

/// Returns after how long it was first named.
fn find<R>(
    lab: &Lab,
    plant: impl FnOnce() -> R,
    told: &[ExpectedFinding<'_>],
    mend: impl FnOnce(R),
) -> Result<Duration> {
    let planted = plant();
    let since = Instant::now();
    let mut unsaid: Vec<&ExpectedFinding<'_>> = told.iter().filter(|told| told.is_wanted).collect();
    let name = |told: &ExpectedFinding<'_>| {
        format!("node {} to say in {:?}: {}", told.node, told.command, told.what)
    };
    let (at, first) = lab.wait_until("the fault to be named", LIMIT, || {
        let mut answers = Vec::new();
        for (at, told) in unsaid.iter().enumerate() {
            match told.is_said(lab) {
                Ok(read_at) => return Ok((at, read_at.duration_since(since))),
                Err(why) => answers.push(why),
            }
        }
        Err(LabError::Spec(answers.join("\n")))
    })?;
    measured(format_args!("after {first:.1?}: {}", name(unsaid.remove(at))));
    for told in unsaid {
        let what = name(told);
        let read_at = lab.wait_until(&what, LIMIT, || told.is_said(lab).map_err(LabError::Spec))?;
        measured(format_args!("after {:.1?}: {what}", read_at.duration_since(since)));
    }
    nothing_else_is_said(lab, told);
    mend(planted);
    nothing_is_wrong(lab)?;
    Ok(first)
}

/// Everything that any node reports is the fault, or what follows from it.
fn nothing_else_is_said(lab: &Lab, told: &[ExpectedFinding<'_>]) {
    let look = |number: u16, command: Diagnostic| {
        let (_, said) = ask(lab, number, command, &["-o", "json"]);
        // A daemon that does not run says nothing.
        let found = serde_json::from_str(&said).map(|json| findings(command, &json));
        let more = found
            .unwrap_or_default()
            .into_iter()
            .filter(|finding| !told.iter().any(|told| finding.what.contains(told.what)));
        more.map(|Finding { layer, what, .. }| {
            format!("node {number}, {command:?}, {layer}: {what}")
        })
        .collect::<Vec<String>>()
    };
    let more = ask_everywhere(lab, look).concat();
    assert!(more.is_empty(), "this is said as well:\n{}", more.join("\n"));
}

/// A lab with pods, of which nothing is reported.
pub(crate) fn started() -> Result<Lab> {
    let lab = lab(3).start()?;
    lab.pod_on_every_node()?;
    nothing_is_wrong(&lab)?;
    Ok(lab)
}

pub(crate) fn shell(lab: &Lab, node: u16, command: &str) {
    lab.node(node).exec(&["sh", "-ec", command]).unwrap();
}

/// Somebody who does the same again and again, until it is dropped.
pub(crate) fn again_and_again(lab: &Lab, node: u16, command: &str) -> Process {
    let mut vandal = Command::new("sh");
    vandal.args(["-c", &format!("while true; do {command}; sleep 0.02; done 2>/dev/null")]);
    lab.node(node).spawn(vandal).unwrap()
}

/// The subnet of a node.
fn subnet(lab: &Lab, node: u16) -> String {
    lab.node(node).subnet_env().unwrap().subnet.unwrap().trunc().to_string()
}

/// The address of its end of the tunnel.
pub(crate) fn tunnel_end(lab: &Lab, node: u16) -> String {
    lab.node(node).subnet_env().unwrap().subnet.unwrap().network().to_string()
}

pub(crate) fn repair(lab: &Lab, node: u16) {
    let program = flanneld().with_file_name("flannelctl");
    lab.node(node).output(&[program.to_str().unwrap(), "repair"]).unwrap();
}

/// What somebody keeps deleting is named with who does it, and the peers say that it is the other node's matter.
#[test]
fn a_device_that_somebody_deletes_again_and_again_is_named() -> Result<()> {
    let lab = started()?;
    let what = "changed by somebody else again and again";
    is_named(
        &lab,
        || again_and_again(&lab, 2, "ip link del flannel.1"),
        &[
            status(2, "entries", what, "stop whoever does that"),
            check(2, "entries", what, "stop whoever does that"),
            status(1, "entries", "lacks entries that lead to this node", "flannelctl status"),
            also("device flannel.1 is not there"),
            also("this node does not have the address that it is to send from"),
            // Whoever asks it at the wrong moment finds a tunnel that takes nothing.
            also("is blocked between this node and 192.168.100.2"),
            also("is refused by 192.168.100.2"),
        ],
        |vandal| {
            drop(vandal);
            repair(&lab, 2);
        },
    )
}

/// The kernel refuses what leads to one peer, while all others are reached.
#[test]
fn a_peer_whose_entries_somebody_else_holds_is_named() -> Result<()> {
    let lab = started()?;
    let (net, via) = (subnet(&lab, 2), tunnel_end(&lab, 2));
    let other =
        format!("ip neigh replace {via} lladdr 02:00:00:00:00:09 dev flannel.1 nud permanent");
    is_named(
        &lab,
        || again_and_again(&lab, 1, &other),
        &[
            status(
                1,
                "entries",
                "changed by somebody else again and again",
                "stop whoever does that",
            ),
            check(1, "entries", &format!(", for the peer {net}"), "flannelctl repair"),
            status(2, "entries", "lacks entries that lead to this node", "flannelctl status"),
            also("this node lacks entries that lead to it"),
            also("02:00:00:00:00:09 on flannel.1, and that node says it is"),
        ],
        |vandal| {
            drop(vandal);
            repair(&lab, 1);
        },
    )
}

#[test]
fn a_device_of_somebody_else_in_the_tunnels_place_is_named() -> Result<()> {
    let lab = started()?;
    let node = lab.node(2);
    is_named(
        &lab,
        || {
            node.flanneld().stop().unwrap();
            shell(
                &lab,
                2,
                "ip link del flannel.1; ip link add vxold type vxlan id 1 dstport 8472 local 192.168.100.2 dev eth0; \
                 ip link set vxold up",
            );
            node.flanneld().start().unwrap();
        },
        &[
            status(2, "entries", "vxold is in the way", "flannelctl repair"),
            check(2, "entries", "remove it (ip link del vxold)", "flannelctl repair"),
            status(1, "entries", "lacks entries that lead to this node", "flannelctl status"),
            also("device flannel.1 is not there"),
            also("this node does not have the address that it is to send from"),
        ],
        |()| shell(&lab, 2, "ip link del vxold"),
    )
}

#[test]
fn a_bridge_without_the_address_of_its_nodes_subnet_is_named() -> Result<()> {
    let lab = started()?;
    let own = lab.node(1).subnet_env()?.subnet.unwrap();
    is_named(
        &lab,
        || shell(&lab, 1, "ip addr flush dev cni0; ip addr add 10.99.0.1/24 dev cni0"),
        &[check(
            1,
            "bridge",
            "cni0 has 10.99.0.1/24, and this node's subnet is",
            "ip link del cni0",
        )],
        |()| shell(&lab, 1, &format!("ip addr flush dev cni0; ip addr add {own} dev cni0")),
    )?;
    is_named(
        &lab,
        || shell(&lab, 1, "ip addr flush dev cni0"),
        &[check(
            1,
            "bridge",
            "cni0 has pods on it, and no address",
            &format!("ip addr add {own} dev cni0"),
        )],
        |()| shell(&lab, 1, &format!("ip addr add {own} dev cni0")),
    )?;
    is_named(
        &lab,
        || shell(&lab, 1, "ip link set cni0 down"),
        &[check(1, "bridge", "cni0 is down", "ip link set cni0 up")],
        |()| shell(&lab, 1, "ip link set cni0 up"),
    )
}

/// One finding for all peers, and what it says mends it for all of them.
#[test]
fn a_policy_that_drops_what_is_forwarded_is_named_once_and_mended_by_what_is_said() -> Result<()> {
    let lab = started()?;
    let fix = "nft insert rule inet fw f ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 accept";
    is_named(
        &lab,
        || {
            shell(
                &lab,
                1,
                "nft 'add table inet fw { chain f { type filter hook forward priority 0; policy drop; }; }'",
            )
        },
        &[
            check(
                1,
                "firewall",
                "the policy of the nftables chain inet fw f drops what pods of this node send",
                fix,
            ),
            also("drops what comes from pods of"),
        ],
        |()| {
            let (_, said) = ask(&lab, 1, Diagnostic::Check, &[]);
            assert_eq!(
                said.matches("BROKEN  firewall").count(),
                2,
                "one for each direction: {said}"
            );
            shell(&lab, 1, fix);
        },
    )
}

#[test]
fn a_daemon_that_hangs_is_named_on_its_node_and_elsewhere() -> Result<()> {
    let lab = started()?;
    is_named(
        &lab,
        || lab.node(1).flanneld().pause().unwrap(),
        &[
            check(
                1,
                "daemon",
                "flanneld listens here and does not answer",
                "systemctl restart flanneld",
            ),
            status(2, "daemon", "its UDP port 8475 does not answer", "systemctl status flanneld")
                .remark(),
            // By a node whose daemon is not sure yet.
            also("UDP port 8475 does not answer at 192.168.100.1"),
        ],
        |()| {
            let (code, said) = ask(&lab, 1, Diagnostic::Status, &[]);
            assert!(code == 1 && said.contains("does not answer within"), "{said}");
            lab.node(1).flanneld().resume().unwrap();
        },
    )
}

#[test]
fn a_lease_that_cannot_be_used_is_named_by_all() -> Result<()> {
    let lab = started()?;
    let (etcd, path) = (lab.etcd()?, lease_path(&lab, "10.244.200.0-24"));
    let lease = r#"{"PublicIP":"192.168.100.77","PublicIPv6":null,"BackendType":"host-gw"}"#;
    is_named(
        &lab,
        || etcd.put(&path, lease).unwrap(),
        &[
            status(
                1,
                "lease",
                "it uses the backend 'host-gw', we use 'vxlan'",
                "flannelctl release 10.244.200.0/24",
            ),
            status(
                3,
                "lease",
                "it uses the backend 'host-gw', we use 'vxlan'",
                "flannelctl release 10.244.200.0/24",
            ),
            also("1 of 3 nodes do not answer a ping: 192.168.100.77"),
        ],
        |()| assert!(etcd.delete(&path).unwrap()),
    )
}

/// What a tidy-up of `/run` takes away is there again before the next pod is started.
#[test]
fn a_subnet_file_that_was_removed_is_written_anew() -> Result<()> {
    let lab = started()?;
    let before = lab.node(1).read_file("/run/flannel/subnet.env")?;
    shell(&lab, 1, "rm /run/flannel/subnet.env");
    lab.wait_until("the subnet file", LIMIT, || {
        lab.node(1).read_file("/run/flannel/subnet.env").is_ok_and(|now| now == before)
    })?;
    assert!(lab.node(1).flanneld().log().contains("Somebody has removed the subnet file"));
    nothing_is_wrong(&lab)
}

#[test]
fn a_disk_without_room_for_the_subnet_file_is_named() -> Result<()> {
    let lab = started()?;
    // A full file system in the place of its directory, with the daemon's socket where it was.
    is_named(
        &lab,
        || {
            shell(
                &lab,
                1,
                "mkdir -p /run/keep; mount --bind /run/flannel /run/keep; \
                 mount -t tmpfs -o size=8k tmpfs /run/flannel; touch /run/flannel/flanneld.sock; \
                 mount --bind /run/keep/flanneld.sock /run/flannel/flanneld.sock; \
                 dd if=/dev/zero of=/run/flannel/fill bs=4k 2>/dev/null || true",
            )
        },
        &[status(1, "files", "No space left on device", "df -h /run/flannel")],
        |()| shell(&lab, 1, "umount /run/flannel/flanneld.sock /run/flannel /run/keep"),
    )
}
