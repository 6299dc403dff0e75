//! Handing a request on to another plugin: to one that is built in, or to a program found in
//! `CNI_PATH`, started with the same environment and another configuration.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::protocol::{Added, Call, Code, Conf, Error, ErrorContext, Outcome, Result, internal};
use crate::subprocess;

/// Longer than any runtime waits for us, so it is never us who give up first.
const DELEGATE_TIMEOUT: Duration = Duration::from_secs(300);

/// Another plugin, with the configuration that we hand it.
pub struct Delegate<'a> {
    pub kind: &'a str,
    pub conf: &'a str,
}

impl Delegate<'_> {
    pub fn add(&self, call: &Call) -> Result<Added> {
        let stdout = self.exec(call)?;
        let assumed = Conf::parse(self.conf.as_bytes())?.version;
        let (outcome, version) = Outcome::parse(&stdout, assumed)
            .or_cni(format_args!("the plugin {} gave a result that makes no sense", self.kind))?;
        Ok(Added { outcome, version })
    }

    pub fn run(&self, call: &Call) -> Result<()> {
        self.exec(call).map(drop)
    }

    fn exec(&self, call: &Call) -> Result<Vec<u8>> {
        let program = find(self.kind, &call.path)?;
        let variables = [
            ("CNI_COMMAND", call.command.as_str()),
            ("CNI_CONTAINERID", &call.container_id),
            ("CNI_NETNS", &call.netns),
            ("CNI_IFNAME", &call.ifname),
            ("CNI_ARGS", &call.args),
            ("CNI_PATH", &call.path),
        ];
        let output =
            subprocess::run(&program, &[], &variables, self.conf.as_bytes(), DELEGATE_TIMEOUT)
                .or_cni(format_args!("could not run the plugin {}", program.display()))?;
        if !output.status.success() {
            return Err(plugin_error(&output));
        }
        // Only for people to read: what a plugin says besides its answer.
        let _ = std::io::stderr().write_all(&output.stderr);
        Ok(output.stdout)
    }
}

/// The error that a failed plugin printed, or why there is none.
fn plugin_error(output: &std::process::Output) -> Error {
    let stdout = String::from_utf8_lossy(&output.stdout);
    if output.stdout.is_empty() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Error::internal(if stderr.is_empty() {
            format!("netplugin failed with no error message: {}", output.status)
        } else {
            format!("netplugin failed: {stderr:?}")
        });
    }
    match serde_json::from_slice::<serde_json::Value>(&output.stdout) {
        Ok(value) => Error {
            code: value["code"]
                .as_u64()
                .and_then(|code| code.try_into().ok())
                .unwrap_or(Code::Internal as u32),
            msg: value["msg"].as_str().unwrap_or_default().to_owned(),
            details: value["details"].as_str().unwrap_or_default().to_owned(),
        },
        Err(error) => Error::internal(format!(
            "netplugin failed but error parsing its diagnostic message {stdout:?}: {error}"
        )),
    }
}

pub fn find(kind: &str, path: &str) -> Result<PathBuf> {
    if kind.is_empty() {
        return Err(Error::internal("no plugin name provided"));
    }
    if kind.contains('/') {
        return Err(internal!("invalid plugin name: {kind}"));
    }
    let directories: Vec<&str> =
        path.split(':').filter(|directory| !directory.is_empty()).collect();
    let found = directories
        .iter()
        .map(|directory| PathBuf::from(directory).join(kind))
        .find(|program| fs::metadata(program).is_ok_and(|metadata| metadata.is_file()));
    found.ok_or_else(|| {
        internal!("failed to find plugin {kind:?} in path [{}]", directories.join(" "))
    })
}
