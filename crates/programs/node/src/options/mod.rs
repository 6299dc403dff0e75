//! The command line and the environment → [`Options`]: what the daemon is asked to do. Words and variables are matched against
//! the table of flags ([`flags`], [`value`]) in Go's syntax; [`meaning`] turns what was typed into values that cannot be wrong.
//! Nothing here reads the process's own arguments or environment, so everything can be tested.

mod document;
mod error;
mod flags;
mod meaning;
mod value;

use std::collections::BTreeMap;
use std::ffi::OsString;

use flannel_common::{is_secret_name, without_secrets};
use flannel_lease::nearest;

pub use error::{BadValue, Remark, UsageError};
pub use meaning::{Backing, CniConf, Joined, Options, ProbeAddress, Serve, StoreOptions, Traffic};

use document::usage;
use flags::{FLAGS, Flag, Typed};

#[derive(Debug, Clone)]
pub enum Parsed {
    Run {
        options: Box<Options>,
        /// To be logged as soon as there is a log.
        remarks: Vec<Remark>,
        /// The flags and variables that were given, as they were written, without secrets.
        given: Vec<String>,
    },
    Help(String),
    Version,
}

/// Reads `args`, the program's name first, and for flags that are not among them `env`.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Parsed, UsageError> {
    let mut args = args.into_iter();
    let program = args.next().map(|name| name.to_string_lossy().into_owned());
    let mut given = Given::default();
    let help = given.read_words(args.collect())?;
    if help {
        return Ok(Parsed::Help(usage(program.as_deref().unwrap_or("flanneld"))));
    }
    if given.typed.version {
        return Ok(Parsed::Version);
    }
    given.read_environment(env);
    let options = Box::new(Options::new(&given)?);
    Ok(Parsed::Run { options, remarks: given.remarks, given: given.shown })
}

struct Given {
    typed: Typed,
    origins: BTreeMap<&'static str, Origin>,
    remarks: Vec<Remark>,
    shown: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    CommandLine,
    Environment,
}

impl Default for Given {
    fn default() -> Self {
        let (origins, remarks, shown) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { typed: Typed::defaults(), origins, remarks, shown }
    }
}

impl Given {
    /// Go's `flag.Parse`. True when help was asked for, which ends the reading.
    fn read_words(&mut self, words: Vec<OsString>) -> Result<bool, UsageError> {
        let count = words.len();
        let mut words = words
            .into_iter()
            .enumerate()
            .map(|(index, word)| word.into_string().map_err(|_| UsageError::NotText(index + 1)));
        let mut last: Option<&'static Flag> = None;
        let mut read = 0;
        while let Some(word) = words.next().transpose()? {
            let Some(body) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else { break };
            read += 1;
            let body = match body.strip_prefix('-') {
                // `--` ends the flags and is not a word itself.
                Some("") => break,
                Some(rest) => rest,
                None => body,
            };
            // What follows `=` may be a secret and stays out of messages.
            if body.is_empty() || body.starts_with(['-', '=']) {
                let shown = word.split('=').next().unwrap_or_default();
                return Err(UsageError::Syntax(shown.to_owned()));
            }
            let (name, inline) = match body.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (body, None),
            };
            let Some(flag) = Flag::find(name) else {
                if name == "help" || name == "h" {
                    return Ok(true);
                }
                let nearest = nearest(name, FLAGS.iter().map(|flag| flag.name));
                return Err(UsageError::Unknown { name: name.to_owned(), nearest });
            };
            let text = match inline {
                Some(text) => text.to_owned(),
                None if flag.is_bool() => "true".to_owned(),
                None => {
                    read += 1;
                    words.next().transpose()?.ok_or(UsageError::NeedsArgument(flag.name))?
                }
            };
            self.origins.insert(flag.name, Origin::CommandLine);
            self.show(&format!("--{}", flag.name), flag, &text);
            value::set(&mut self.typed, flag, &text)
                .map_err(|fix| UsageError::Malformed(self.bad_value(flag.name, text, fix)))?;
            last = Some(flag);
        }
        if read < count {
            self.remarks.push(Remark::WordsIgnored {
                after: last.map(|flag| flag.name.to_owned()),
                count: count - read,
                boolean: last.is_some_and(Flag::is_bool),
            });
        }
        Ok(false)
    }

    /// A flag that was not given takes the value of its variable, if that can be read and is not empty.
    fn read_environment(&mut self, env: impl IntoIterator<Item = (OsString, OsString)>) {
        let mut variables: BTreeMap<String, OsString> = env
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, value)| name.starts_with("FLANNELD_") && !value.is_empty())
            .collect();
        for flag in FLAGS {
            let name = flags::variable(flag.name);
            let Some(text) = variables.remove(&name) else { continue };
            // The version is printed before the environment is looked at.
            if self.origins.contains_key(flag.name) || flag.name == "version" {
                continue;
            }
            let Ok(text) = text.into_string() else {
                self.remarks.push(Remark::VariableNotText(name));
                continue;
            };
            match value::set(&mut self.typed, flag, &text) {
                Ok(()) => {
                    self.show(&name, flag, &text);
                    self.origins.insert(flag.name, Origin::Environment);
                }
                Err(fix) => {
                    let bad = BadValue { origin: name, value: text, fix };
                    self.remarks.push(Remark::BadVariable(bad));
                }
            }
        }
        let known: Vec<String> = FLAGS.iter().map(|flag| flags::variable(flag.name)).collect();
        for name in variables.into_keys() {
            let nearest = nearest(&name, known.iter().map(String::as_str)).map(str::to_owned);
            self.remarks.push(Remark::UnknownVariable { name, nearest });
        }
    }

    fn show(&mut self, name: &str, flag: &Flag, text: &str) {
        let value = match text {
            _ if is_secret_name(flag.name) => "(not shown)".to_owned(),
            text => without_secrets(text),
        };
        self.shown.push(format!("{name}={value}"));
    }

    fn is_given(&self, flag: &str) -> bool {
        self.origins.contains_key(flag)
    }

    fn bad_value(&self, flag: &'static str, value: String, fix: String) -> BadValue {
        let origin = match self.origins.get(flag) {
            Some(Origin::Environment) => flags::variable(flag),
            Some(Origin::CommandLine) | None => format!("flag -{flag}"),
        };
        BadValue { origin, value, fix }
    }
}

#[cfg(test)]
mod tests;
