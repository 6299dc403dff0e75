//! Options of a backend: typed, bounded, and silent about secrets.

use flannel_lease::BackendConfig;

use crate::support::config;

fn backend(options: &str) -> BackendConfig {
    config(&format!(r#"{{"Network":"10.3.0.0/16","Backend":{{"Type":"vxlan",{options}}}}}"#))
        .backend
}

#[test]
fn options_have_types_and_any_case() {
    let backend =
        backend(r#""vni":7,"DIRECTROUTING":true,"Mode":"auto","Tables":["a","b"],"Table":"c""#);
    assert_eq!(backend.int("VNI", 1, 0..=16_777_215).unwrap(), 7);
    assert!(backend.bool("DirectRouting", false).unwrap());
    assert_eq!(backend.string("Mode").unwrap().as_deref(), Some("auto"));
    assert_eq!(backend.string_list("Tables").unwrap(), ["a", "b"]);
    assert_eq!(backend.string_list("Table").unwrap(), ["c"]);
}

#[test]
fn absent_and_null_options_have_their_default() {
    let backend = backend(r#""VNI":null,"GBP":null,"Mode":null,"Tables":null"#);
    for key in ["VNI", "Absent"] {
        assert_eq!(backend.int(key, 1, 2..=3).unwrap(), 1);
    }
    assert!(backend.bool("GBP", true).unwrap());
    assert_eq!(backend.string("Mode").unwrap(), None);
    assert_eq!(backend.string_list("Tables").unwrap(), [] as [&str; 0]);
}

#[test]
fn a_wrong_option_is_named_with_value_and_remedy() {
    let backend = backend(
        r#""VNI":-1,"Port":"8472","MTU":1.5,"Big":18446744073709551615,"GBP":"yes","Mode":5,"Tables":["a",1]"#,
    );
    let int = |key| backend.int(key, 0, 0..=65535).unwrap_err().to_string();
    let fix = "write a number from 0 to 65535, without quotes or fraction";
    assert_eq!(int("VNI"), format!("Backend.VNI -1 is out of range: {fix}"));
    assert_eq!(int("Port"), format!("Backend.Port \"8472\" is not a whole number: {fix}"));
    assert_eq!(int("MTU"), format!("Backend.MTU 1.5 is not a whole number: {fix}"));
    assert_eq!(int("Big"), format!("Backend.Big 18446744073709551615 is out of range: {fix}"));
    assert_eq!(
        backend.bool("GBP", false).unwrap_err().to_string(),
        "Backend.GBP \"yes\" is neither true nor false: write true or false, without quotes"
    );
    assert_eq!(
        backend.string("Mode").unwrap_err().to_string(),
        "Backend.Mode 5 is not text: write it in double quotes"
    );
    assert_eq!(
        backend.string_list("Tables").unwrap_err().to_string(),
        r#"Backend.Tables ["a",1] is not a list of texts: write it as ["...", "..."]"#
    );
}

#[test]
fn a_backend_words_its_own_refusals() {
    let backend = backend(r#""Mode":"both""#);
    assert_eq!(
        backend.invalid("Mode", "is not a mode", "use separate, auto, ipv4 or ipv6").to_string(),
        "Backend.Mode \"both\" is not a mode: use separate, auto, ipv4 or ipv6"
    );
    assert_eq!(backend.missing("PSK", "give one").to_string(), "Backend.PSK is missing: give one");
}

#[test]
fn secrets_are_never_printed() {
    let json = r#"{"Network":"10.3.0.0/16","Backend":{"Type":"ipsec","PSK":"hush","accessKeySecret":"hush",
        "Password":["hush"],"ApiToken":"hush","Nested":[{"psk":"hush"}],"UDPEncap":true}}"#;
    let config = config(json);
    for shown in [
        format!("{config:?}"),
        format!("{config:#?}"),
        config.backend.to_string(),
        config.shown().to_string(),
    ] {
        assert!(!shown.contains("hush"), "{shown}");
        assert!(shown.contains("udpencap"), "{shown}");
    }
    for error in [
        config.backend.int("PSK", 0, 0..=1).unwrap_err(),
        config.backend.bool("AccessKeySecret", true).unwrap_err(),
        config.backend.string("Password").unwrap_err(),
        config.backend.invalid("PSK", "is too short", "use 96 bytes"),
        config.backend.invalid("Nested", "is odd", "leave it out"),
    ] {
        assert!(!error.to_string().contains("hush"), "{error}");
        assert!(!format!("{error:?}").contains("hush"), "{error:?}");
    }
    assert!(config.to_json().contains("hush"), "but the config can be written");
}

#[test]
fn a_config_is_shown_as_it_is_used_and_without_what_is_secret_in_a_command() {
    let json = r#"{"Network":"10.3.0.0/16","Backend":{"Type":"extension",
        "PostStartupCommand":"curl -H 'Authorization: Bearer hush' http://a"}}"#;
    let shown = config(json).shown();
    assert_eq!((&shown["Network"], &shown["SubnetLen"]), (&"10.3.0.0/16".into(), &24.into()));
    let command = shown["Backend"]["poststartupcommand"].as_str().unwrap();
    assert_eq!(command, "curl -H 'Authorization: Bearer <removed>' http://a");
}

#[test]
fn a_backend_can_be_put_together_in_code() {
    let made = BackendConfig::new("VXLAN").with("VNI", 7).with("GBP", true);
    assert_eq!(made, backend(r#""VNI":7,"GBP":true"#));
}
