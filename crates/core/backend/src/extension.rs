//! extension: commands of the operator make the network. One prepares this node and prints what others must know of
//! it; one is run for every peer that comes, one for every peer that goes.

use std::time::Duration;

use flannel_common::Secret;
use flannel_entries::commands::{Command, Form, Hook, HookKey};
use flannel_lease::{BackendConfig, Lease, LeaseAttrs, NetworkConfig, RawJson};

use crate::{Backend, BackendError, Need, Node, NodeMemory, PeerProblem, Privilege, Wishes};

const PRE: &str = "PreStartupCommand";
const POST: &str = "PostStartupCommand";
const ADD: &str = "SubnetAddCommand";
const REMOVE: &str = "SubnetRemoveCommand";
const SHUTDOWN: &str = "ShutdownCommand";
const DEFAULT_TIMEOUT: i64 = 60;
const MAX_TIMEOUT: i64 = 3600;
/// Words that have a meaning in a shell, and none without one.
const SHELL_WORDS: [&str; 14] =
    [";", "&", "&&", "|", "||", ">", ">>", "<", "2>&1", "export", "if", "then", "for", "while"];

pub(crate) struct ExtensionBackend {
    /// Commands that are set, by option.
    lines: Vec<(&'static str, String)>,
    form: Form,
    limit: Duration,
}

type Variables = Vec<(&'static str, String)>;

impl ExtensionBackend {
    pub(crate) fn new(config: &BackendConfig) -> Result<Self, BackendError> {
        let form = if config.bool("Shell", false)? { Form::Shell } else { Form::Direct };
        let timeout = config.int("Timeout", DEFAULT_TIMEOUT, 1..=MAX_TIMEOUT)?;
        let mut lines = Vec::new();
        for name in [PRE, POST, ADD, REMOVE, SHUTDOWN] {
            let line = config.string(name)?.filter(|line| !line.trim().is_empty());
            if let Some(word) = line.as_deref().and_then(shell_syntax)
                && form == Form::Direct
            {
                return Err(BackendError::Unfit(format!(
                    "Backend.{name} has '{word}' in it, which only a shell understands, and is run \
                     without one: add \"Shell\": true to Backend, or move it to a script and name that"
                )));
            }
            lines.extend(line.map(|line| (name, line)));
        }
        Ok(Self { lines, form, limit: Duration::from_secs(timeout.unsigned_abs()) })
    }

    fn command(&self, name: &str, variables: &Variables, input: &str) -> Option<Command> {
        let (name, line) = self.lines.iter().find(|(option, _)| *option == name)?;
        Some(Command {
            name,
            line: line.clone(),
            form: self.form,
            variables: variables.clone(),
            input: Secret::new(input),
            limit: self.limit,
        })
    }

    fn pre(&self) -> Option<Command> {
        self.command(PRE, &Variables::new(), "")
    }
}

/// First word of a command that shows that it was written for a shell.
fn shell_syntax(line: &str) -> Option<&str> {
    let shells = |word: &&str| {
        SHELL_WORDS.contains(word)
            || word.ends_with(';')
            || word.contains("$(")
            || word.contains('`')
    };
    line.split_whitespace().find(shells)
}

/// Text of a value that may be missing, as the Go flannel writes it.
fn shown<T: ToString>(value: Option<T>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

impl Backend for ExtensionBackend {
    fn kind(&self) -> &'static str {
        "extension"
    }

    fn options(&self) -> &'static [&'static str] {
        &[PRE, POST, ADD, REMOVE, SHUTDOWN, "Shell", "Timeout"]
    }

    fn privileges(&self) -> Vec<Privilege> {
        let asked = |(option, line): &(&'static str, String)| Privilege::Command {
            option,
            line: line.clone(),
            form: self.form,
        };
        self.lines.iter().map(asked).collect()
    }

    fn needs(&self) -> Vec<Need> {
        self.pre().map(Need::Output).into_iter().collect()
    }

    fn remarks(&self, _node: &Node) -> Vec<String> {
        let adds = self.lines.iter().any(|(option, _)| *option == ADD);
        let nothing = (!adds).then(|| {
            format!("Backend.{ADD} is not set: flannel does nothing that would lead to other nodes' pods")
        });
        nothing.into_iter().collect()
    }

    fn announce(&self, node: &Node, _past: &NodeMemory<'_>) -> LeaseAttrs {
        let pre = self.pre();
        let output = pre.as_ref().and_then(|pre| node.answers.output(pre));
        LeaseAttrs {
            backend_data: output.and_then(|output| RawJson::encode(&output).ok()),
            ..node.attrs(self.lease_type())
        }
    }

    fn base(&self, node: &Node, own: &Lease) -> Wishes {
        let NetworkConfig { v4, v6, .. } = &node.network;
        let mut variables = vec![
            ("NETWORK", shown(v4.map(|source| source.network()), "0.0.0.0/0")),
            ("SUBNET", shown(own.subnet.v4(), "0.0.0.0/0")),
            ("IPV6SUBNET", shown(own.subnet.v6(), "::/0")),
            ("PUBLIC_IP", shown(own.attrs.public_ip, "0.0.0.0")),
            ("PUBLIC_IPV6", shown(own.attrs.public_ipv6, "<nil>")),
        ];
        variables.extend(v6.map(|source| ("IPV6NETWORK", source.network().to_string())));
        let run = self.command(POST, &variables, "");
        let undo = self.command(SHUTDOWN, &variables, "");
        hook(HookKey::Network, run, undo)
    }

    fn peer(&self, _node: &Node, _own: &Lease, peer: &Lease) -> Result<Wishes, PeerProblem> {
        self.peer_hook(peer)
    }
}

impl ExtensionBackend {
    fn peer_hook(&self, peer: &Lease) -> Result<Wishes, PeerProblem> {
        let LeaseAttrs { public_ip, public_ipv6, backend_data, .. } = &peer.attrs;
        let data: Option<String> = match backend_data {
            Some(data) => data.parse().map_err(|error| {
                PeerProblem::data(format!("it is not the output of a {PRE}: {error}"))
            })?,
            None => None,
        };
        let data = data.unwrap_or_default();
        let mut variables = Variables::new();
        variables.extend(peer.subnet.v4().map(|net| ("SUBNET", net.to_string())));
        variables.extend(public_ip.map(|ip| ("PUBLIC_IP", ip.to_string())));
        variables.extend(peer.subnet.v6().map(|net| ("IPV6SUBNET", net.to_string())));
        variables.extend(public_ipv6.map(|ip| ("PUBLIC_IPV6", ip.to_string())));
        let run = self.command(ADD, &variables, &data);
        let undo = self.command(REMOVE, &variables, &data);
        Ok(hook(HookKey::Peer(format!("{:#}", peer.subnet)), run, undo))
    }
}

fn hook(key: HookKey, run: Option<Command>, undo: Option<Command>) -> Wishes {
    let wanted = run.is_some() || undo.is_some();
    let commands = wanted.then_some(Hook { key, run, undo }).into_iter().collect();
    Wishes { commands, ..Wishes::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

    use flannel_lease::SubnetOrigin;

    use crate::judge_config;

    fn judged(backend: &str) -> Result<Vec<String>, String> {
        let text =
            format!(r#"{{"Network":"10.244.0.0/16","Backend":{{"Type":"extension",{backend}}}}}"#);
        let judged = judge_config(&text, SubnetOrigin::Pool).map_err(|error| error.to_string())?;
        Ok(judged.remarks.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_config_that_cannot_work_is_refused_with_the_fix() {
        for (backend, told) in [
            (r#""SubnetAddCommand": 5"#, "SubnetAddCommand"),
            (r#""Timeout": 0"#, "a number from 1 to 3600"),
            (r#""Shell": "yes""#, "true or false"),
            (r#""SubnetAddCommand": "ip link ; ip route""#, "has ';' in it"),
            (r#""PreStartupCommand": "export A=1; run""#, "has 'export' in it"),
            (r#""PostStartupCommand": "run $(hostname)""#, "\"Shell\": true"),
            (r#""ShutdownCommand": "a && b""#, "Backend.ShutdownCommand has '&&'"),
        ] {
            let error = judged(backend).unwrap_err();
            assert!(error.contains(told), "{backend}: {error}");
        }
        for backend in [
            r#""SubnetAddCommand": "ip route replace $SUBNET via ${PUBLIC_IP}""#,
            r#""SubnetAddCommand": "a && b; c | d > e", "Shell": true, "Timeout": 5"#,
            r#""PreStartupCommand": " ""#,
        ] {
            assert_eq!(judged(backend), Ok(Vec::new()), "{backend}");
        }
        assert_eq!(judged(r#""SubnetAddComand": "x""#).unwrap().len(), 1, "a name misspelt");
    }

    #[test]
    fn every_command_is_a_privilege() {
        let text = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"extension","Shell":true,
            "PreStartupCommand":"a","PostStartupCommand":"b","SubnetAddCommand":"c",
            "SubnetRemoveCommand":"d","ShutdownCommand":"e"}}"#;
        let privileges = judge_config(text, SubnetOrigin::Pool).unwrap().backend.privileges();
        assert_eq!(privileges.len(), 5, "{privileges:?}");
    }

    #[test]
    fn data_that_no_command_wrote_makes_a_peer_unusable() {
        use flannel_lease::{Lease, LeaseAttrs};

        use crate::{Backend as _, PeerProblem};
        let config = flannel_lease::BackendConfig::new("extension").with("SubnetAddCommand", "x");
        let backend = super::ExtensionBackend::new(&config).unwrap();
        let peer = |data: &str| {
            let text = format!(r#"{{"PublicIP":"192.0.2.7","BackendType":"extension"{data}}}"#);
            let attrs = LeaseAttrs::from_json(text.as_bytes()).unwrap();
            let lease = Lease { subnet: "10.244.5.0-24".parse().unwrap(), attrs };
            let wishes = backend.peer_hook(&lease)?;
            Ok(wishes.commands[0].run.as_ref().unwrap().input.reveal().to_owned())
        };
        assert_eq!(backend.lease_type(), "extension");
        assert_eq!(peer(r#","BackendData":"a b""#), Ok("a b".to_owned()));
        assert_eq!(peer(r#","BackendData":null"#), Ok(String::new()));
        assert_eq!(peer(""), Ok(String::new()));
        let problem = peer(r#","BackendData":{"VtepMAC":"x"}"#);
        assert!(matches!(problem, Err(PeerProblem::Data(_))), "{problem:?}");
    }
}
