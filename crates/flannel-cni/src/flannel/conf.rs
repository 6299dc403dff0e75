//! The flannel plugin's own configuration, and the document that it hands to its delegate.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::subnet_env::SubnetEnv;
use crate::protocol::{
    Attachment, Conf, Error, ErrorContext, FieldError, Route, Sorted, Version, compact,
};

const SUBNET_FILE: &str = "/run/flannel/subnet.env";
const DATA_DIR: &str = "/var/lib/cni/flannel";

pub(super) struct FlannelConf<'a> {
    pub(super) subnet_file: PathBuf,
    pub(super) data_dir: PathBuf,
    /// Start the delegate as a program even where it is built in.
    pub(super) by_exec: bool,
    name: &'a str,
    version: Option<&'a str>,
    delegate: Option<&'a Map<String, Value>>,
    ipam: Option<&'a Map<String, Value>>,
    runtime_config: Option<&'a Map<String, Value>>,
}

/// What the delegate is told: its type, and the whole text.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) kind: String,
    members: BTreeMap<String, Box<RawValue>>,
}

impl<'a> FlannelConf<'a> {
    pub(super) fn read(conf: &'a Conf) -> Result<Self, Error> {
        Self::of_fields(conf).or_cni("failed to load flannel netconf file: failed to load netconf")
    }

    fn of_fields(conf: &'a Conf) -> Result<Self, FieldError> {
        let fields = conf.fields();
        let path = |key, default: &str| {
            Ok(PathBuf::from(
                fields.string(key)?.filter(|text| !text.is_empty()).unwrap_or(default),
            ))
        };
        Ok(Self {
            subnet_file: path("subnetFile", SUBNET_FILE)?,
            data_dir: path("dataDir", DATA_DIR)?,
            by_exec: fields.bool("delegateByExec")?.unwrap_or_default(),
            name: &conf.name,
            version: fields.string("cniVersion")?.filter(|text| !text.is_empty()),
            delegate: fields.map("delegate")?,
            ipam: fields.map("ipam")?,
            runtime_config: fields.map("runtimeConfig")?,
        })
    }

    pub(super) fn check_delegate(&self) -> Result<(), Error> {
        let Some(delegate) = self.delegate else { return Ok(()) };
        if delegate.get("type").is_some_and(|kind| !kind.is_string()) {
            return Err(Error::internal(
                "'delegate' dictionary, if present, must have (string) 'type' field",
            ));
        }
        for key in ["name", "ipam"] {
            if delegate.contains_key(key) {
                return Err(Error::internal(format_args!(
                    "'delegate' dictionary must not have '{key}' field, it'll be set by flannel"
                )));
            }
        }
        Ok(())
    }

    /// Without the node's subnet it says who and where, but not what: enough to undo.
    pub(super) fn document(&self, env: Option<&SubnetEnv>) -> Result<Document, Error> {
        let given = |key: &str| self.delegate.is_some_and(|delegate| delegate.contains_key(key));
        let kind = self
            .delegate
            .and_then(|delegate| delegate.get("type")?.as_str())
            .unwrap_or("bridge")
            .to_owned();
        let mut document = Document { kind, members: BTreeMap::new() };
        for (key, value) in self.delegate.into_iter().flatten() {
            document.put(key, value);
        }
        if let Some(runtime_config) = self.runtime_config {
            document.put("runtimeConfig", &Value::Object(runtime_config.clone()));
        }
        document.put("name", &self.name.into());
        document.put("type", &document.kind.clone().into());
        if let Some(env) = env {
            if !given("ipMasq") {
                // If flannel does not masquerade, the delegate must.
                document.put("ipMasq", &(!env.ipmasq).into());
            }
            if !given("mtu") {
                document.put("mtu", &env.mtu.into());
            }
        }
        if document.kind == "bridge" && !given("isGateway") {
            document.put("isGateway", &true.into());
        }
        if let Some(version) = self.version {
            document.put("cniVersion", &version.into());
        }
        let ipam = self.ipam(env)?;
        document.members.insert("ipam".into(), raw(compact(&ipam)));
        Ok(document)
    }

    fn ipam(&self, env: Option<&SubnetEnv>) -> Result<BTreeMap<&str, Box<RawValue>>, Error> {
        let mut ipam: BTreeMap<&str, Box<RawValue>> = self
            .ipam
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), raw(compact(&Sorted(value)))))
            .collect();
        ipam.entry("type").or_insert_with(|| raw("\"host-local\"".into()));
        let Some(env) = env else { return Ok(ipam) };
        let ranges: Vec<Value> = env
            .subnets
            .iter()
            .map(|subnet| serde_json::json!([{ "subnet": subnet.to_string() }]))
            .collect();
        ipam.insert("ranges", raw(compact(&ranges)));
        let mut routes = self
            .given_routes()
            .or_cni("failed to assemble Delegate IPAM: failed to read IPAM routes: failed to parse ipam.routes")?;
        routes.extend(env.networks.iter().map(|network| Route::to(*network, None)));
        ipam.insert("routes", raw(compact(&routes)));
        Ok(ipam)
    }

    fn given_routes(&self) -> Result<Vec<Route>, FieldError> {
        let Some(ipam) = self.ipam else { return Ok(Vec::new()) };
        crate::protocol::Fields::new(ipam).objects("routes")?.into_iter().map(Route::read).collect()
    }
}

impl Document {
    /// As an earlier ADD saved it. `None`: it is not one of ours.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let members: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(text).ok()?;
        let kind = serde_json::from_str(members.get("type")?.get()).ok()?;
        Some(Self { kind, members })
    }

    pub(super) fn name(&self) -> String {
        self.members
            .get("name")
            .and_then(|name| serde_json::from_str(name.get()).ok())
            .unwrap_or_default()
    }

    pub(super) fn put(&mut self, key: &str, value: &Value) {
        self.members.insert(key.to_owned(), raw(compact(&Sorted(value))));
    }

    pub(super) fn put_attachments(&mut self, attachments: &[Attachment]) {
        let list: Vec<Value> = attachments
            .iter()
            .map(|it| serde_json::json!({ "containerID": it.container_id, "ifname": it.ifname }))
            .collect();
        self.put("cni.dev/valid-attachments", &list.into());
    }

    pub(super) fn set_version(&mut self, version: Version) {
        self.put("cniVersion", &version.as_str().into());
    }

    pub(super) fn text(&self) -> String {
        compact(&self.members)
    }
}

fn raw(json: String) -> Box<RawValue> {
    // It was written by an encoder just now.
    RawValue::from_string(json).unwrap_or_default()
}
