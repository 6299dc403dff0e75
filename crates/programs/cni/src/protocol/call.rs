//! What a runtime asks: a command from the environment, a configuration from standard input.

use std::io::Read;

use serde_json::{Map, Value};

use super::{Code, Error, ErrorContext, Fields, Outcome, Result, Version};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

#[derive(Clone)]
pub struct Call {
    pub command: Command,
    pub container_id: String,
    /// Path of the container's network namespace. Empty at DEL when it is gone.
    pub netns: String,
    pub ifname: String,
    /// `K=V;K=V`
    pub args: String,
    /// Where plugins are, separated by colons.
    pub path: String,
    /// The namespace may be our own.
    pub netns_override: bool,
    /// An earlier ADD of this attachment may have been cut short, and left something behind.
    pub retried: bool,
    pub conf: Conf,
}

/// A network's configuration, as far as every plugin needs it.
#[derive(Clone)]
pub struct Conf {
    pub members: Map<String, Value>,
    pub name: String,
    pub version: Version,
}

/// An attachment that a runtime names as valid, at GC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    pub container_id: String,
    pub ifname: String,
}

/// Reads an environment variable; absent and empty are the same.
#[derive(Clone, Copy)]
pub struct Environment<'a>(pub &'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    pub fn get(&self, name: &str) -> String {
        (self.0)(name).unwrap_or_default()
    }
}

const LARGEST_CONF: u64 = 16 << 20;

impl Call {
    /// Checks and takes in all there is to know. `Ok(None)`: no command at all was given.
    pub fn read(env: &Environment<'_>, stdin: impl Read) -> Result<Option<Self>> {
        let command = env.get("CNI_COMMAND");
        if command.is_empty() {
            return Ok(None);
        }
        let known = Command::of_text(&command);
        let [container_id, netns, ifname, path] = required(env, known)?;
        let mut call = Self {
            command: known.unwrap_or(Command::Version),
            container_id,
            netns,
            ifname,
            args: env.get("CNI_ARGS"),
            path,
            netns_override: matches!(
                env.get("CNI_NETNS_OVERRIDE").to_ascii_uppercase().as_str(),
                "TRUE" | "1"
            ),
            // Who calls us by name may have called before.
            retried: true,
            conf: Conf { members: Map::new(), name: String::new(), version: Version::LATEST },
        };
        if known != Some(Command::Version) {
            call.conf = Conf::read(stdin)?;
        }
        if known.is_none() {
            return Err(invalid_env(format!("unknown CNI_COMMAND: {command}")));
        }
        call.check_version()?;
        Ok(Some(call))
    }

    fn check_version(&self) -> Result<()> {
        let since = match self.command {
            Command::Check => Version::V040,
            Command::Gc | Command::Status => Version::V110,
            Command::Add | Command::Del | Command::Version => return Ok(()),
        };
        if self.conf.version < since {
            let msg = format!("config version does not allow {}", self.command.as_str());
            return Err(Error::new(Code::IncompatibleVersion, msg));
        }
        Ok(())
    }

    pub fn arg(&self, key: &str) -> Option<&str> {
        self.args
            .split(';')
            .find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
            .filter(|v| !v.is_empty())
    }

    /// What the plugins before us in a chain have made, or at CHECK and DEL what all of them have.
    pub fn previous_result(&self) -> Result<Option<Outcome>> {
        const ATTEMPTED: &str = "could not parse prevResult";
        let members = self.conf.fields().map("prevResult").or_cni(ATTEMPTED)?;
        let result = members.map(|members| Outcome::of_members(members, self.conf.version));
        Ok(result.transpose().or_cni(ATTEMPTED)?.map(|(outcome, _)| outcome))
    }

    /// Attachments that a runtime names as valid at GC: an empty list, null or no list is none.
    pub fn valid_attachments(&self) -> Result<Vec<Attachment>> {
        let read = |it: Fields<'_>| {
            Ok(Attachment { container_id: it.owned("containerID")?, ifname: it.owned("ifname")? })
        };
        let attachments = self.conf.fields().objects("cni.dev/valid-attachments", read);
        Ok(attachments?)
    }
}

impl Command {
    fn of_text(text: &str) -> Option<Self> {
        use Command::{Add, Check, Del, Gc, Status, Version};
        let all = [Add, Del, Check, Gc, Status, Version];
        all.into_iter().find(|command| command.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}

impl Conf {
    pub fn read(stdin: impl Read) -> Result<Self> {
        let mut text = Vec::new();
        stdin
            .take(LARGEST_CONF)
            .read_to_end(&mut text)
            .map_err(|error| Error::new(Code::Io, format!("error reading from stdin: {error}")))?;
        Self::parse(&text)
    }

    pub fn parse(text: &[u8]) -> Result<Self> {
        let members = match serde_json::from_slice(text) {
            Ok(Value::Object(members)) => members,
            Ok(_) => return Err(undecodable(&"it is JSON but not an object")),
            Err(error) => return Err(undecodable(&error)),
        };
        Self::of_members(members)
    }

    pub fn of_members(members: Map<String, Value>) -> Result<Self> {
        let fields = Fields::new(&members);
        let name = fields.owned("name").map_err(|error| undecodable(&error))?;
        check_network_name(&name)?;
        let version = fields
            .string("cniVersion")
            .map_err(|error| {
                Error::new(Code::Decoding, format!("decoding version from network config: {error}"))
            })?
            .unwrap_or_default();
        let Some(version) = Version::of_text(version) else {
            let supported: Vec<String> =
                Version::ALL.iter().map(|version| format!("\"{version}\"")).collect();
            let details =
                format!("config is \"{version}\", plugin supports [{}]", supported.join(" "));
            return Err(Error::new(Code::IncompatibleVersion, "incompatible CNI versions")
                .with_details(details));
        };
        Ok(Self { name, version, members })
    }

    pub fn fields(&self) -> Fields<'_> {
        Fields::new(&self.members)
    }
}

/// Container id, namespace, interface name and path, where the command needs them.
fn required(env: &Environment<'_>, command: Option<Command>) -> Result<[String; 4]> {
    use Command::{Add, Check, Del, Gc, Status};
    type Needed = fn(Command) -> bool;
    let variables: [(&str, Needed); 4] = [
        ("CNI_CONTAINERID", |command| matches!(command, Add | Check | Del)),
        ("CNI_NETNS", |command| matches!(command, Add | Check)),
        ("CNI_IFNAME", |command| matches!(command, Add | Check | Del)),
        ("CNI_PATH", |command| matches!(command, Add | Check | Del | Gc | Status)),
    ];
    let mut missing = Vec::new();
    let values = variables.map(|(name, needed)| {
        let value = env.get(name);
        if value.is_empty() && command.is_some_and(needed) {
            missing.push(name);
        }
        value
    });
    if command.is_some_and(|command| matches!(command, Add | Check | Del)) {
        // Of what is there, the first that is wrong is named, before what is not there.
        if !values[0].is_empty() && !is_name(&values[0]) {
            return Err(invalid_env("invalid characters in containerID").with_details(&*values[0]));
        }
        if !values[2].is_empty() {
            check_interface_name(&values[2])?;
        }
    }
    if !missing.is_empty() {
        return Err(invalid_env(format!("required env variables [{}] missing", missing.join(","))));
    }
    Ok(values)
}

fn check_network_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::config("missing network name"));
    }
    if !is_name(name) {
        return Err(Error::config("invalid characters found in network name").with_details(name));
    }
    Ok(())
}

fn check_interface_name(name: &str) -> Result<()> {
    const LONGEST: usize = 15;
    if name.len() > LONGEST {
        let details = format!("interface name should be less than {} characters", LONGEST + 1);
        return Err(invalid_env("interface name is too long").with_details(details));
    }
    if name == "." || name == ".." {
        return Err(invalid_env("interface name is . or .."));
    }
    if name.chars().any(|c| c == '/' || c == ':' || c.is_whitespace()) {
        return Err(invalid_env("interface name contains / or : or whitespace characters"));
    }
    Ok(())
}

/// Whether it can be a container id or a network name. These become file names.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

fn undecodable(error: &dyn std::fmt::Display) -> Error {
    Error::new(Code::Decoding, format!("error unmarshall network config: {error}"))
}

fn invalid_env(msg: impl Into<String>) -> Error {
    Error::new(Code::InvalidEnvironment, msg)
}
