//! The network config, which an operator writes.
#![no_main]

use flannel_lease::{ConfigError, NetworkConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let text = String::from_utf8_lossy(text);
    read(&text, NetworkConfig::parse);
    read(&text, NetworkConfig::parse_networks_only);
});

/// What was read and is written with all that follows from it is read as the same.
fn read(text: &str, parse: impl Fn(&str) -> Result<NetworkConfig, ConfigError>) {
    match parse(text) {
        Ok(config) => {
            let written = config.to_json();
            assert_eq!(parse(&written).as_ref(), Ok(&config), "{written}");
            assert_eq!(parse(&written).map(|config| config.to_json()), Ok(written));
            if let Err(error) = flannel_backend::create(&config.backend) {
                assert!(!error.to_string().is_empty());
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
