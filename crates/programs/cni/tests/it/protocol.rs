//! The protocol: what is refused, with which code, and what every plugin answers alike.

use std::fs;
use std::process::Command;

use crate::support::{FLANNEL, Request, fake_plugin, files};

const CONF: &str = r#"{"cniVersion":"1.0.0","name":"n","type":"flannel"}"#;

#[test]
fn without_a_command_the_program_says_what_it_is() {
    let output = Command::new(FLANNEL).env_remove("CNI_COMMAND").output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("CNI Plugin flannel version v"), "{text}");
    assert!(
        text.ends_with(
            "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"
        ),
        "{text}"
    );
}

#[test]
fn what_is_wrong_with_a_request_is_told_with_the_specifications_code() {
    let refuse = |change: &dyn Fn(&mut Request), conf: &str| {
        let mut request = Request::new("ADD");
        change(&mut request);
        request.send(conf).expect_error()
    };
    let ok = |_: &mut Request| {};
    for (change, conf, code, msg) in [
        (&ok as &dyn Fn(&mut Request), "{", 6, "error unmarshall network config"),
        (&ok, "[]", 6, "error unmarshall network config"),
        (&ok, r#"{"cniVersion":"1.0.0"}"#, 7, "missing network name"),
        (&ok, r#"{"name":"a/b"}"#, 7, "invalid characters found in network name"),
        (&ok, r#"{"name":"n","cniVersion":"7.0.0"}"#, 1, "incompatible CNI versions"),
        (&ok, r#"{"name":"n","cniVersion":7}"#, 6, "decoding version from network config"),
        (&|r| r.command = "JUMP".into(), CONF, 4, "unknown CNI_COMMAND: JUMP"),
        (&|r| r.container_id = "../x".into(), CONF, 4, "invalid characters in containerID"),
        (&|r| r.ifname = "a/b".into(), CONF, 4, "interface name contains / or :"),
        (&|r| r.ifname = "a".repeat(16), CONF, 4, "interface name is too long"),
        (
            &|r| {
                r.netns.clear();
                r.path.clear();
            },
            CONF,
            4,
            "required env variables [CNI_NETNS,CNI_PATH] missing",
        ),
        (&|r| r.netns = "/proc/self/ns/net".into(), CONF, 8, "should not be the same"),
        (&|r| r.command = "GC".into(), CONF, 1, "config version does not allow GC"),
        (&|r| r.command = "STATUS".into(), CONF, 1, "config version does not allow STATUS"),
        (&ok, r#"{"name":"n","ipam":7}"#, 999, "failed to load flannel netconf file"),
        (&ok, CONF, 11, "open /run/flannel/subnet.env: no such file"),
    ] {
        let (got, text) = refuse(change, conf);
        assert!(
            got == code && text.contains(msg),
            "{conf}: wanted {code} {msg:?}, got {got} {text:?}"
        );
    }
}

#[test]
fn defect_73_del_keeps_its_state_while_the_delegate_fails() {
    let root = tempfile::tempdir().unwrap();
    let (data, log) = (root.path().join("data"), root.path().join("log"));
    fs::create_dir(&data).unwrap();
    fs::write(data.join("abc123"), r#"{"name":"n","type":"bridge"}"#).unwrap();
    let conf = format!(r#"{{"cniVersion":"1.0.0","name":"n","dataDir":{data:?}}}"#);
    let mut request = Request::new("DEL");
    request.path = root.path().display().to_string();
    request.by_exec = true;
    fake_plugin(
        root.path(),
        "bridge",
        &log,
        r#"{"code": 11, "msg": "not now", "details": "busy"}"#,
        false,
    );
    assert_eq!(request.send(&conf).expect_error(), (11, "not now".into()));
    assert_eq!(files(&data).len(), 1, "a second DEL must be able to undo it");
    fake_plugin(root.path(), "bridge", &log, "", true);
    request.send(&conf).expect_success();
    assert!(files(&data).is_empty());
    request.send(&conf).expect_success();
}

#[test]
fn del_of_an_unreadable_record_undoes_by_the_present_configuration() {
    let root = tempfile::tempdir().unwrap();
    let (data, log) = (root.path().join("data"), root.path().join("log"));
    fs::create_dir(&data).unwrap();
    // As a host that lost its power may leave it.
    fs::write(data.join("abc123"), "").unwrap();
    let conf = format!(r#"{{"name":"n","dataDir":{data:?},"subnetFile":"/absent"}}"#);
    let mut request = Request::new("DEL");
    request.path = root.path().display().to_string();
    request.by_exec = true;
    fake_plugin(root.path(), "bridge", &log, "", true);
    request.send(&conf).expect_success();
    let called = fs::read_to_string(&log).unwrap();
    assert!(
        called.contains(
            r#"{"ipam":{"type":"host-local"},"isGateway":true,"name":"n","type":"bridge"}"#
        ),
        "{called}"
    );
    assert!(files(&data).is_empty());
}

#[test]
fn defect_75_check_of_what_was_never_added_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let conf = format!(r#"{{"cniVersion":"1.0.0","name":"n","dataDir":{:?}}}"#, root.path());
    let (code, msg) = Request::new("CHECK").send(&conf).expect_error();
    assert!(code == 3 && msg.contains("was not added by flannel"), "{code} {msg}");
}

#[test]
fn defect_75_status_says_when_an_add_would_fail() {
    let conf = r#"{"cniVersion":"1.1.0","name":"n","subnetFile":"/absent"}"#;
    let (code, msg) = Request::new("STATUS").send(conf).expect_error();
    assert!(code == 50 && msg.contains("open /absent: no such file or directory"), "{code} {msg}");
}

#[test]
fn gc_with_something_else_than_a_list_collects_nothing() {
    for list in [r#""pod-1""#, "{}", "7", r#"["pod-1"]"#] {
        let conf =
            format!(r#"{{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":{list}}}"#);
        let (code, msg) = Request::new("GC").send(&conf).expect_error();
        assert!(code == 7 && msg.contains("cni.dev/valid-attachments"), "{code} {msg}");
    }
}

#[test]
fn installed_by_its_own_hand_it_answers_under_every_name() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("cni/bin");
    let output = Command::new(FLANNEL).arg("--install").arg(&directory).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("portmap: linked to flannel\n"), "{said}");
    for name in ["flannel", "bridge", "host-local", "loopback", "portmap"] {
        let program = directory.join(name);
        let output = Command::new(&program).env_remove("CNI_COMMAND").output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with(&format!("CNI Plugin {name} version v")), "{text}");
        let mut request = Request::new("VERSION");
        request.program = program;
        let versions = request.send("{}").expect_success().json();
        assert_eq!(versions["supportedVersions"].as_array().unwrap().len(), 7, "{name}");
    }
    let output = Command::new(FLANNEL).arg("--install").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "where to?");
}

/// An answer takes two milliseconds: there is nothing to wait for side by side.
#[test]
fn no_async_runtime_is_part_of_it() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--package", "flannel-cni", "--edges", "normal"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(tree.contains("flannel-netlink"), "{}", String::from_utf8_lossy(&output.stderr));
    for name in ["tokio", "mio", "futures", "async"] {
        assert!(!tree.contains(name), "{name} is in:\n{tree}");
    }
}
