//! The network config, which an operator writes.

use flannel_backend::judge_config;
use flannel_lease::{ConfigError, NetworkConfig, SubnetOrigin};

pub(crate) fn run(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    read(&text, NetworkConfig::parse);
    read(&text, |text| NetworkConfig::read(text, SubnetOrigin::Store));
}

/// What is said beside a config that can be used is few lines without anything that a terminal takes as a command.
fn told(text: &str) {
    let Ok(judged) = judge_config(text, SubnetOrigin::Pool) else { return };
    let lines: Vec<String> = judged.remarks.iter().map(ToString::to_string).collect();
    assert!(lines.len() <= 32 && lines.iter().all(|line| line.len() < 400), "{lines:?}");
    assert!(!lines.concat().contains(char::is_control), "{lines:?}");
}

/// What was read and is written with all that follows from it is read as the same.
fn read(text: &str, parse: impl Fn(&str) -> Result<NetworkConfig, ConfigError>) {
    match parse(text) {
        Ok(config) => {
            let written = config.to_json();
            assert_eq!(parse(&written).as_ref(), Ok(&config), "{written}");
            assert_eq!(parse(&written).map(|config| config.to_json()), Ok(written));
            match flannel_backend::create(&config.backend) {
                Ok(_) => told(text),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    assert!(judge_config(text, SubnetOrigin::Pool).is_err(), "{text}");
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
