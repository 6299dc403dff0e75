//! The tuning plugin's configuration, which four places may speak of: the network's own keys, and for a
//! single container `CNI_ARGS`, the runtime's capabilities, and the arguments under `args.cni`. The later
//! one has the last word.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use flannel_netlink::Mac;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::protocol::{Call, Code, Error, FieldError, Fields};

const DATA_DIR: &str = "/run/cni/tuning";

pub(super) struct TuningConf {
    pub(super) data_dir: PathBuf,
    /// Kernel settings by name.
    pub(super) settings: BTreeMap<String, String>,
    pub(super) interface: Wanted,
}

/// What of the interface is to be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// As it was written, and as it is meant.
    pub(super) mac: Option<(String, Mac)>,
    pub(super) promiscuous: bool,
    pub(super) mtu: Option<u32>,
    pub(super) all_multicast: Option<bool>,
    pub(super) queue_length: Option<u32>,
}

impl Wanted {
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl TuningConf {
    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        let failed = |error: FieldError| {
            Error::new(Code::InvalidConfig, format!("failed to load netconf: {error}"))
        };
        refuse_repeated(&call.conf.text)?;
        Self::of_fields(call).map_err(failed)
    }

    fn of_fields(call: &Call) -> Result<Self, FieldError> {
        let fields = call.conf.fields();
        let runtime = fields.object("runtimeConfig")?;
        let arguments = match fields.object("args")? {
            Some(arguments) => arguments.object("cni")?,
            None => None,
        };
        let mut conf = Self {
            data_dir: fields
                .string("dataDir")?
                .filter(|it| !it.is_empty())
                .unwrap_or(DATA_DIR)
                .into(),
            settings: BTreeMap::new(),
            interface: Wanted::default(),
        };
        conf.overlay(fields)?;
        if let Some(text) = call.arg("MAC") {
            conf.interface.mac = mac(text)?;
        }
        if let Some(text) = runtime.map(|it| it.string("mac")).transpose()?.flatten()
            && !text.is_empty()
        {
            conf.interface.mac = mac(text)?;
        }
        if let Some(arguments) = arguments {
            conf.overlay(arguments)?;
        }
        Ok(conf)
    }

    fn overlay(&mut self, fields: Fields<'_>) -> Result<(), FieldError> {
        for (key, value) in fields.map("sysctl")?.into_iter().flatten() {
            let Some(text) = value.as_str() else {
                return Err(FieldError::new(&format!("sysctl.{key}"), "a string", value));
            };
            self.settings.insert(key.clone(), text.to_owned());
        }
        if let Some(text) = fields.string("mac")? {
            self.interface.mac = mac(text)?;
        }
        if let Some(promiscuous) = fields.bool("promisc")? {
            self.interface.promiscuous = promiscuous;
        }
        if let Some(mtu) = number(fields, "mtu")? {
            self.interface.mtu = (mtu != 0).then_some(mtu);
        }
        self.interface.all_multicast = fields.bool("allmulti")?.or(self.interface.all_multicast);
        self.interface.queue_length = number(fields, "txQLen")?.or(self.interface.queue_length);
        Ok(())
    }
}

fn number(fields: Fields<'_>, key: &str) -> Result<Option<u32>, FieldError> {
    const WANTED: &str = "a whole number from 0 to 2147483647";
    let Some(value) = fields.integer(key)? else { return Ok(None) };
    match u32::try_from(value) {
        Ok(number) if number <= i32::MAX as u32 => Ok(Some(number)),
        _ => Err(FieldError::new(key, WANTED, &value.into())),
    }
}

/// Empty is as good as absent.
fn mac(text: &str) -> Result<Option<(String, Mac)>, FieldError> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(mac) => Ok(Some((text.to_owned(), mac))),
        Err(_) => Err(FieldError::new("mac", "a MAC address", &Value::from(text))),
    }
}

/// Of a setting that is named twice nobody can say which value is meant.
fn refuse_repeated(text: &[u8]) -> Result<(), Error> {
    #[derive(serde::Deserialize)]
    struct Settings {
        #[serde(default, deserialize_with = "unique_keys", rename = "sysctl")]
        _settings: (),
    }
    match serde_json::from_slice::<Settings>(text) {
        Err(error) if error.to_string().starts_with(REPEATED) => {
            Err(Error::new(Code::InvalidConfig, REPEATED).with_details(error.to_string()))
        }
        // What else is wrong with it is found where it is read.
        _ => Ok(()),
    }
}

const REPEATED: &str = "duplicated sysctl keys are not allowed";

fn unique_keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    struct Unique;
    impl<'de> Visitor<'de> for Unique {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            let mut seen = BTreeSet::new();
            while let Some((key, _)) = map.next_entry::<String, IgnoredAny>()? {
                if let Some(key) = seen.replace(key) {
                    return Err(A::Error::custom(format!("{REPEATED}: {key}")));
                }
            }
            Ok(())
        }
    }
    deserializer.deserialize_map(Unique)
}
