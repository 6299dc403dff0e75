//! The flannel plugin: makes of its own configuration and of what flanneld wrote about this node's
//! subnet the configuration of another plugin, usually `bridge`, and has that one do the work.

mod conf;
mod daemon;

use std::io::Write;
use std::time::SystemTime;

use conf::{Document, FlannelConf};
pub use daemon::ABSENCE_NOTE;

use flannel_lease::SubnetFile;

use crate::bridge::refuse_attached;
use crate::builtin::built_in;
use crate::delegate::{self, Delegate};
use crate::netns::Netns;
use crate::protocol::{Added, Attachment, Call, Code, Command, Error, Plugin, Result};
use crate::saved_confs;

pub struct Flannel {
    /// Start delegates as programs even where they are built in.
    pub by_exec: bool,
}

impl Plugin for Flannel {
    fn add(&self, call: &Call) -> Result<Added> {
        let conf = FlannelConf::read(&call.conf)?;
        let env = load_env(&conf)?;
        conf.check_delegate()?;
        let document = conf.document(Some(&env))?;
        let text = document.text();
        let failed = |error: Error| error.context("failed to delegate add");
        let is_built_in = self.built_in(&conf, &document.kind).is_some();
        if !is_built_in {
            // What cannot even begin leaves no record that DEL would stumble over for ever.
            delegate::find(&document.kind, &call.path).map_err(failed)?;
        }
        // An earlier try that was cut short has left its mark here.
        let retried = saved_confs::exists(&conf.data_dir, &call.container_id, &call.ifname);
        if retried && let Ok(netns) = Netns::open(&call.netns) {
            // Unless it was not cut short at all.
            refuse_attached(call, &netns).map_err(failed)?;
        }
        saved_confs::save(&conf.data_dir, &call.container_id, &call.ifname, &text)
            .map_err(|error| io_error("save the delegate's configuration", &conf, error))?;
        let added = self.hand_on_add(call, &conf, &document, &text, retried).map_err(failed);
        if is_built_in && !retried && added.as_ref().is_err_and(Error::is_refusal) {
            // Nothing was done, and to DEL the same configuration would make no more sense.
            let _ = saved_confs::forget(&conf.data_dir, &call.container_id, &call.ifname);
        }
        added
    }

    fn del(&self, call: &Call) -> Result<()> {
        let conf = FlannelConf::read(&call.conf)?;
        let saved = saved_confs::load(&conf.data_dir, &call.container_id, &call.ifname)
            .map_err(|error| io_error("read what ADD saved", &conf, error))?;
        let Some(saved) = saved else { return Ok(()) };
        let mut document = match Document::parse(&saved.text) {
            Some(document) => document,
            None => {
                note(format_args!(
                    "what ADD saved for container {} is not readable; undoing by the present configuration",
                    call.container_id
                ));
                conf.document(load_env(&conf).ok().as_ref())?
            }
        };
        if self.built_in(&conf, &document.kind).is_some()
            && let Some(result) = call.conf.fields().get("prevResult")
        {
            document.put("prevResult", result.clone());
        }
        // As long as the delegate has not succeeded, what it needs for the next try stays.
        self.hand_on(call, &conf, &document)?;
        saved.forget().map_err(|error| io_error("remove what ADD saved", &conf, error))
    }

    fn check(&self, call: &Call) -> Result<()> {
        let conf = FlannelConf::read(&call.conf)?;
        let saved = saved_confs::load(&conf.data_dir, &call.container_id, &call.ifname)
            .map_err(|error| io_error("read what ADD saved", &conf, error))?;
        let document = saved.and_then(|saved| Document::parse(&saved.text));
        let Some(mut document) = document else {
            let msg = format!(
                "interface {} of container {} was not added by flannel: there is no record of it in {}",
                call.ifname,
                call.container_id,
                conf.data_dir.display()
            );
            return Err(Error::new(Code::UnknownContainer, msg));
        };
        if let Some(result) = call.conf.fields().get("prevResult") {
            document.put("prevResult", result.clone());
        }
        self.hand_on(call, &conf, &document)
    }

    fn gc(&self, call: &Call) -> Result<()> {
        let conf = FlannelConf::read(&call.conf)?;
        let valid = call.valid_attachments()?;
        let mut failures = self.collect_saved(call, &conf, &valid)?;
        let mut document = conf.document(load_env(&conf).ok().as_ref())?;
        document.put_attachments(&valid);
        failures.extend(self.hand_on(call, &conf, &document).err());
        match failures
            .into_iter()
            .reduce(|all, next| Error { msg: format!("{all}; {next}"), ..all })
        {
            Some(error) => Err(error.context("not everything could be cleaned up (GC)")),
            None => Ok(()),
        }
    }

    fn status(&self, call: &Call) -> Result<()> {
        let conf = FlannelConf::read(&call.conf)?;
        let env = load_env(&conf).map_err(Error::not_available)?;
        daemon::ask(&conf.subnet_file, SystemTime::now())?;
        conf.check_delegate().map_err(Error::not_available)?;
        let document = conf.document(Some(&env)).map_err(Error::not_available)?;
        self.hand_on(call, &conf, &document).map_err(Error::not_available)
    }
}

impl Flannel {
    /// Who is to do the work of a call on a node with this subnet, and the call that they get.
    pub fn handed_on(call: &Call, env: &SubnetFile) -> Result<(String, Call)> {
        let conf = FlannelConf::read(&call.conf)?;
        conf.check_delegate()?;
        let document = conf.document(Some(env))?;
        let call = document.call(call)?;
        Ok((document.kind, call))
    }

    fn hand_on_add(
        &self,
        call: &Call,
        conf: &FlannelConf<'_>,
        document: &Document,
        text: &str,
        retried: bool,
    ) -> Result<Added> {
        match self.built_in(conf, &document.kind) {
            Some(plugin) => plugin.add(&Call { retried, ..document.call(call)? }),
            None => Delegate { kind: &document.kind, conf: text }.add(call),
        }
    }

    fn hand_on(&self, call: &Call, conf: &FlannelConf<'_>, document: &Document) -> Result<()> {
        match self.built_in(conf, &document.kind) {
            Some(plugin) => plugin.run(&document.call(call)?),
            None => Delegate { kind: &document.kind, conf: &document.text() }.run(call),
        }
    }

    fn built_in(&self, conf: &FlannelConf<'_>, kind: &str) -> Option<&'static dyn Plugin> {
        let by_exec = self.by_exec || conf.by_exec;
        built_in(kind).filter(|_| !by_exec)
    }

    /// Undoes what was added for attachments that are gone, each by its saved configuration.
    fn collect_saved(
        &self,
        call: &Call,
        conf: &FlannelConf<'_>,
        valid: &[Attachment],
    ) -> Result<Vec<Error>> {
        let entries = saved_confs::list(&conf.data_dir)
            .map_err(|error| io_error("list what ADD saved", conf, error))?;
        saved_confs::remove_torn(&conf.data_dir, SystemTime::now());
        let mut failures = Vec::new();
        for entry in entries {
            let is_valid = valid.iter().any(|attachment| {
                attachment.container_id == entry.container_id
                    && entry.ifname.as_ref().is_none_or(|ifname| *ifname == attachment.ifname)
            });
            let document = std::fs::read(&entry.path).ok().and_then(|text| Document::parse(&text));
            let Some(mut document) =
                document.filter(|document| !is_valid && document.name() == call.conf.name)
            else {
                continue;
            };
            document.put_missing_version(call.conf.version);
            let gone = Call {
                command: Command::Del,
                container_id: entry.container_id,
                ifname: entry.ifname.unwrap_or_else(|| saved_confs::FIRST_INTERFACE.to_owned()),
                netns: String::new(),
                ..call.clone()
            };
            match self.hand_on(&gone, conf, &document) {
                Ok(()) => saved_confs::remove(&entry.path)
                    .map_err(|error| io_error("remove what ADD saved", conf, error))?,
                Err(error) => {
                    failures.push(error.context(format_args!("container {}", gone.container_id)))
                }
            }
        }
        Ok(failures)
    }
}

fn load_env(conf: &FlannelConf<'_>) -> Result<SubnetFile> {
    let path = &conf.subnet_file;
    let (code, why) = match std::fs::read(path) {
        Ok(text) => match SubnetFile::parse_complete(&String::from_utf8_lossy(&text), path) {
            Ok(file) => return Ok(file),
            Err(why) => (Code::Internal, why),
        },
        // flanneld writes it as soon as it has its subnet. Without the number that Rust appends: people search for
        // this sentence.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            (Code::TryAgainLater, format!("open {}: no such file or directory", path.display()))
        }
        Err(error) => (Code::Internal, format!("open {}: {error}", path.display())),
    };
    let msg = format!(
        "failed to load flannel 'subnet.env' file: {why}. Check the flannel pod log for this node."
    );
    Err(Error::new(code, msg))
}

fn io_error(attempted: &str, conf: &FlannelConf<'_>, error: std::io::Error) -> Error {
    let msg = format!("could not {attempted} in {}: {error}", conf.data_dir.display());
    Error::new(Code::Io, msg)
}

fn note(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "flannel: {text}");
}
