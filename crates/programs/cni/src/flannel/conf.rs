//! The flannel plugin's own configuration, and the document that it hands to its delegate.

use std::collections::BTreeMap;
use std::path::PathBuf;

use flannel_lease::{SUBNET_FILE, SubnetFile};
use ipnet::IpNet;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::protocol::{
    Attachment, Call, Conf, Error, ErrorContext, FieldError, Fields, Result, Route, Version,
    compact, internal,
};

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

/// Configuration of the delegate, whose type is `kind`.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) kind: String,
    members: Map<String, Value>,
    /// Routes under `ipam`, typed: Go prints their fields in an order of their own.
    routes: Option<Vec<Route>>,
}

impl<'a> FlannelConf<'a> {
    pub(super) fn read(conf: &'a Conf) -> Result<Self> {
        Self::of_fields(conf).or_cni("failed to load flannel netconf file: failed to load netconf")
    }

    fn of_fields(conf: &'a Conf) -> Result<Self, FieldError> {
        let fields = conf.fields();
        let path = |key, default| fields.text(key).map(|text| text.unwrap_or(default).into());
        Ok(Self {
            subnet_file: path("subnetFile", SUBNET_FILE)?,
            data_dir: path("dataDir", DATA_DIR)?,
            by_exec: fields.flag("delegateByExec")?,
            name: &conf.name,
            version: fields.text("cniVersion")?,
            delegate: fields.map("delegate")?,
            ipam: fields.map("ipam")?,
            runtime_config: fields.map("runtimeConfig")?,
        })
    }

    pub(super) fn check_delegate(&self) -> Result<()> {
        let Some(delegate) = self.delegate else { return Ok(()) };
        if delegate.get("type").is_some_and(|kind| !kind.is_string()) {
            return Err(Error::internal(
                "'delegate' dictionary, if present, must have (string) 'type' field",
            ));
        }
        for key in ["name", "ipam"] {
            if delegate.contains_key(key) {
                return Err(internal!(
                    "'delegate' dictionary must not have '{key}' field, it'll be set by flannel"
                ));
            }
        }
        Ok(())
    }

    /// Without the node's subnet it says who and where, but not what: enough to undo.
    pub(super) fn document(&self, env: Option<&SubnetFile>) -> Result<Document> {
        let given = |key: &str| self.delegate.is_some_and(|delegate| delegate.contains_key(key));
        let kind = self
            .delegate
            .and_then(|delegate| delegate.get("type")?.as_str())
            .unwrap_or("bridge")
            .to_owned();
        let members = self.delegate.cloned().unwrap_or_default();
        let mut document = Document { kind, members, routes: None };
        if let Some(runtime_config) = self.runtime_config {
            document.put("runtimeConfig", runtime_config.clone());
        }
        document.put("name", self.name);
        document.put("type", document.kind.clone());
        if let Some(env) = env {
            if !given("ipMasq") {
                // If flannel does not masquerade, the delegate must.
                document.put("ipMasq", env.ip_masq.map(|ip_masq| !ip_masq));
            }
            if !given("mtu") {
                document.put("mtu", env.mtu);
            }
        }
        if document.kind == "bridge" && !given("isGateway") {
            document.put("isGateway", true);
        }
        if let Some(version) = self.version {
            document.put("cniVersion", version);
        }
        let mut ipam = self.ipam.cloned().unwrap_or_default();
        ipam.entry("type").or_insert_with(|| "host-local".into());
        if let Some(env) = env {
            let range = |subnet: &IpNet| serde_json::json!([{ "subnet": subnet.to_string() }]);
            ipam.insert("ranges".into(), env.subnets().iter().map(range).collect());
            let routes = self.routes(env)?;
            let values = routes.iter().map(serde_json::to_value).collect::<Result<Value, _>>();
            ipam.insert("routes".into(), values.or_cni("could not write the routes")?);
            document.routes = Some(routes);
        }
        document.put("ipam", ipam);
        Ok(document)
    }

    fn routes(&self, env: &SubnetFile) -> Result<Vec<Route>> {
        let mut routes = self
            .given_routes()
            .or_cni("failed to assemble Delegate IPAM: failed to read IPAM routes: failed to parse ipam.routes")?;
        routes.extend(env.all_networks().into_iter().map(|network| Route::to(network, None)));
        Ok(routes)
    }

    fn given_routes(&self) -> Result<Vec<Route>, FieldError> {
        let Some(ipam) = self.ipam else { return Ok(Vec::new()) };
        Fields::new(ipam).objects("routes", Route::read)
    }
}

impl Document {
    /// As an earlier ADD saved it. `None`: it is not one of ours.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let members: Map<String, Value> = serde_json::from_slice(text).ok()?;
        let kind = members.get("type")?.as_str()?.to_owned();
        Some(Self { kind, members, routes: None })
    }

    pub(super) fn call(&self, call: &Call) -> Result<Call> {
        Ok(Call { conf: Conf::of_members(self.members.clone())?, ..call.clone() })
    }

    pub(super) fn name(&self) -> &str {
        self.members.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.members.insert(key.to_owned(), value.into());
    }

    pub(super) fn put_attachments(&mut self, attachments: &[Attachment]) {
        let list: Vec<Value> = attachments
            .iter()
            .map(|it| serde_json::json!({ "containerID": it.container_id, "ifname": it.ifname }))
            .collect();
        self.put("cni.dev/valid-attachments", list);
    }

    /// Saved in the version of its day; a delegate of today must not stumble over none at all.
    pub(super) fn put_missing_version(&mut self, version: Version) {
        self.members.entry("cniVersion").or_insert_with(|| version.as_str().into());
    }

    /// As the Go plugin writes it.
    pub(super) fn text(&self) -> String {
        let mut members = as_go_writes(&self.members);
        if let Some(routes) = &self.routes
            && let Some(ipam) = self.members.get("ipam").and_then(Value::as_object)
        {
            let mut ipam = as_go_writes(ipam);
            ipam.insert("routes", raw(compact(routes)));
            members.insert("ipam", raw(compact(&ipam)));
        }
        compact(&members)
    }
}

fn as_go_writes(members: &Map<String, Value>) -> BTreeMap<&str, Box<RawValue>> {
    members.iter().map(|(key, value)| (key.as_str(), raw(compact(value)))).collect()
}

fn raw(json: String) -> Box<RawValue> {
    // It was written by an encoder just now.
    RawValue::from_string(json).unwrap_or_default()
}
