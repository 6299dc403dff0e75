//! Standard input of a plugin's call: read, checked and handed on from flannel to whoever does the
//! work, up to where the kernel or a file would be touched.

use std::path::Path;
use std::sync::LazyLock;

use flannel_cni::builtin::{BUILT_IN, built_in};
use flannel_cni::flannel::Flannel;
use flannel_cni::protocol::{
    Call, Command, Environment, Error, Outcome, Version, serve,
};
use flannel_lease::SubnetFile;

const FLANNEL: Flannel = Flannel { by_exec: false };

static ENV: LazyLock<SubnetFile> = LazyLock::new(|| {
    let text = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\n\
                FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:7::1/64\n\
                FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    SubnetFile::parse_complete(text, Path::new("subnet.env")).expect("a file as flanneld writes it")
});

pub(crate) fn run(stdin: &[u8]) {
    for command in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        match call(command, stdin) {
            Ok(call) => read(&call),
            Err(error) => told(&error),
        }
    }
    let version = answer("VERSION", stdin);
    assert!(version.contains("supportedVersions"), "{version}");
    for version in Version::ALL {
        result(stdin, version);
    }
}

fn environment(command: &str) -> impl Fn(&str) -> Option<String> {
    move |name| {
        Some(match name {
            "CNI_COMMAND" => command.to_owned(),
            "CNI_CONTAINERID" => "abc".into(),
            "CNI_IFNAME" => "eth0".into(),
            "CNI_NETNS" | "CNI_PATH" => "/does/not/exist".into(),
            "CNI_ARGS" => "IP=10.244.7.9;MAC=02:00:00:00:00:01".into(),
            _ => return None,
        })
    }
}

fn call(command: &str, stdin: &[u8]) -> Result<Call, Error> {
    let getenv = environment(command);
    Ok(Call::read(&Environment(&getenv), stdin)?.expect("a command was given"))
}

/// All that a configuration says, as STATUS judges it.
fn read(call: &Call) {
    for (_, plugin) in BUILT_IN {
        plugin.status(call).unwrap_or_else(|error| told(&error));
    }
    call.previous_result().map_or_else(|error| told(&error), drop);
    if call.command == Command::Gc {
        call.valid_attachments().map_or_else(|error| told(&error), drop);
    }
    match Flannel::handed_on(call, &ENV) {
        Ok((kind, call)) => {
            // What flannel makes of it is a document that a runtime could have written.
            assert_eq!(call.conf.fields().string("type"), Ok(Some(&*kind)));
            if let Some(plugin) = built_in(&kind) {
                plugin.status(&call).unwrap_or_else(|error| told(&error));
            }
        }
        Err(error) => told(&error),
    }
}

/// An error is in the protocol's form, whatever it quotes.
fn told(error: &Error) {
    let json: serde_json::Value = serde_json::from_str(&error.to_json()).expect("JSON");
    assert!(json["code"].as_u64() > Some(0) && json["msg"].is_string(), "{json}");
}

fn answer(command: &str, stdin: &[u8]) -> String {
    let getenv = environment(command);
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    serve(&FLANNEL, "", &Environment(&getenv), stdin, &mut stdout, &mut stderr);
    String::from_utf8(stdout).expect("text")
}

/// A result that was read can be written, and what was written is read as the same.
fn result(text: &[u8], version: Version) {
    let Ok((outcome, version)) = Outcome::parse(text, version) else { return };
    let Ok(written) = outcome.to_json(version) else { return };
    let (again, of) = Outcome::parse(written.as_bytes(), version).expect("what we write we read");
    assert_eq!(of, version);
    assert_eq!(again.to_json(version).expect("as before"), written);
}
