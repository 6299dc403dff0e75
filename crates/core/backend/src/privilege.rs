//! Privileges: what a network config asks of a node beyond data, which is commands that run as root, and addresses
//! that get the node's cloud credentials. The right to write a config does not include them: the node decides.

use std::fmt;
use std::sync::{Arc, OnceLock};

use flannel_entries::commands::Form;

const SWITCH: &str = "--allow-commands";
const SHOWN_CHARS: usize = 100;

/// A privilege that a config asks for, and that a node may withhold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Privilege {
    Command {
        option: &'static str,
        line: String,
        form: Form,
    },
    /// A URL that gets this node's cloud credentials, or decides which to use, and is not the provider's own.
    Endpoint {
        option: &'static str,
        url: String,
    },
}

impl fmt::Display for Privilege {
    /// Leaves out the command itself, which may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { option, .. } => write!(f, "Backend.{option}"),
            Self::Endpoint { option, url } => write!(f, "Backend.{option} {}", shown_url(url)),
        }
    }
}

/// Scheme and host of a URL: a user before it and a path behind it may be secrets.
fn shown_url(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let shown = format!("{scheme}://{host}");
    shown.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect()
}

/// Where a node's configs come from, as far as it trusts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigOrigin {
    /// etcd or Kubernetes. As with the Go flannel, the commands that the config has when the daemon starts are run.
    Cluster,
    /// A lease server, this node's own included.
    LeaseServer,
}

/// Policy of a node for the configs of one network. Clones share what the daemon started with.
#[derive(Clone, Debug)]
pub struct PrivilegePolicy {
    allow_all: bool,
    origin: ConfigOrigin,
    /// Privileges of the first config; empty until there is one.
    at_start: Arc<OnceLock<Vec<Privilege>>>,
}

impl PrivilegePolicy {
    pub fn new(allow_all: bool, origin: ConfigOrigin) -> Self {
        Self { allow_all, origin, at_start: Arc::default() }
    }

    /// Notes the privileges of the first config: the daemon started with them.
    pub fn start_with(&self, asked: Vec<Privilege>) {
        let _ = self.at_start.set(asked);
    }

    /// Grants all privileges that a config asks for, or returns those that are withheld.
    pub fn check(&self, asked: &[Privilege]) -> Result<(), PrivilegesWithheld> {
        let withheld = asked.iter().filter(|it| !self.grants(it)).cloned();
        let is_command = |it: &Privilege| matches!(it, Privilege::Command { .. });
        let (commands, endpoints): (Vec<_>, Vec<_>) = withheld.partition(is_command);
        if commands.is_empty() && endpoints.is_empty() {
            return Ok(());
        }
        Err(PrivilegesWithheld { commands, endpoints, origin: self.origin })
    }

    fn grants(&self, asked: &Privilege) -> bool {
        match (asked, self.at_start.get()) {
            _ if self.allow_all => true,
            (Privilege::Endpoint { .. }, _) => false,
            (Privilege::Command { .. }, _) if self.origin == ConfigOrigin::LeaseServer => false,
            (Privilege::Command { .. }, None) => true,
            (Privilege::Command { .. }, Some(at_start)) => at_start.contains(asked),
        }
    }
}

/// Privileges that wait for the node's flag. Shown to an operator as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivilegesWithheld {
    commands: Vec<Privilege>,
    endpoints: Vec<Privilege>,
    origin: ConfigOrigin,
}

impl std::error::Error for PrivilegesWithheld {}

impl fmt::Display for PrivilegesWithheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list =
            |all: &[Privilege]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let is_cluster = self.origin == ConfigOrigin::Cluster;
        let since = if is_cluster { ", which were not in it when flanneld started" } else { "" };
        let commands = (!self.commands.is_empty())
            .then(|| format!("has commands to run as root ({}{since})", list(&self.commands)));
        let endpoints = (!self.endpoints.is_empty()).then(|| {
            format!(
                "would send cloud credentials to what is not the provider's own ({})",
                list(&self.endpoints)
            )
        });
        let both: Vec<String> = commands.into_iter().chain(endpoints).collect();
        let restart = match is_cluster && self.endpoints.is_empty() {
            true => "restart flanneld to accept them as they are now, or ",
            false => "",
        };
        write!(
            f,
            "{}: this node waits for its own operator to allow that; look at it (`flannelctl config get`), and if it \
             is meant, {restart}start flanneld with {SWITCH}",
            both.join(" and ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Privilege {
        let (option, line) = ("PreStartupCommand", line.to_owned());
        Privilege::Command { option, line, form: Form::Direct }
    }

    fn endpoint() -> Privilege {
        Privilege::Endpoint { option: "Endpoint", url: "https://me:hunter2@thief.example".into() }
    }

    fn policy(allow: bool, origin: ConfigOrigin, at_start: Option<&str>) -> PrivilegePolicy {
        let policy = PrivilegePolicy::new(allow, origin);
        if let Some(line) = at_start {
            policy.start_with(vec![command(line)]);
        }
        policy
    }

    #[test]
    fn commands_of_the_start_run_and_others_wait_for_the_switch() {
        use ConfigOrigin::{Cluster, LeaseServer};
        for (allow, origin, at_start, line, granted) in [
            (false, Cluster, None, "a", true),
            (false, Cluster, Some("a"), "a", true),
            (false, Cluster, Some("a"), "b", false),
            (true, Cluster, Some("a"), "b", true),
            (false, LeaseServer, None, "a", false),
            (false, LeaseServer, Some("a"), "a", false),
            (true, LeaseServer, None, "a", true),
            (true, LeaseServer, Some("a"), "b", true),
        ] {
            let found = policy(allow, origin, at_start).check(&[command(line)]);
            assert_eq!(found.is_ok(), granted, "{allow} {origin:?} {at_start:?} {line}");
        }
        let in_a_shell = Privilege::Command {
            option: "PreStartupCommand",
            line: "a".to_owned(),
            form: Form::Shell,
        };
        policy(false, Cluster, Some("a")).check(&[in_a_shell]).expect_err("it is another command");
        assert_eq!(policy(false, LeaseServer, None).check(&[]), Ok(()));
        // A network that is joined again after an error has not started again.
        let again = policy(false, Cluster, Some("a"));
        again.clone().start_with(vec![command("b")]);
        again.check(&[command("b")]).expect_err("it was not there at the start");
    }

    #[test]
    fn endpoints_of_others_wait_for_the_switch_from_any_store() {
        for origin in [ConfigOrigin::Cluster, ConfigOrigin::LeaseServer] {
            let policy = PrivilegePolicy::new(false, origin);
            policy.check(&[endpoint()]).expect_err("at the start");
            policy.start_with(vec![endpoint()]);
            policy.check(&[endpoint()]).expect_err("and later");
            assert_eq!(PrivilegePolicy::new(true, origin).check(&[endpoint()]), Ok(()));
        }
    }

    #[test]
    fn what_is_said_names_the_option_and_the_way_out_and_no_secret() {
        let live = policy(false, ConfigOrigin::Cluster, Some("a"));
        let said = live.check(&[command("curl -u hunter2 x")]).expect_err("it waits").to_string();
        for part in ["Backend.PreStartupCommand", "restart flanneld", "--allow-commands"] {
            assert!(said.contains(part), "{said}");
        }
        assert!(!said.contains("hunter2"), "{said}");
        let server = policy(false, ConfigOrigin::LeaseServer, None);
        let said = server.check(&[command("x"), endpoint()]).expect_err("it waits").to_string();
        assert!(
            said.contains("Backend.Endpoint https://thief.example") && !said.contains("hunter2"),
            "{said}"
        );
        assert!(!said.contains("restart flanneld"), "{said}");
    }
}
