//! Against what the Go flannel really wrote: its config, keys, values and subnet files.

use flannel_lease::{Lease, LeaseAttrs, NetworkConfig, Subnet, SubnetFile};

struct Run {
    name: &'static str,
    config: NetworkConfig,
    /// Key without its directory, and value.
    leases: Vec<(&'static str, &'static str)>,
    subnet_env: &'static str,
}

macro_rules! runs {
    ($($name:literal),* $(,)?) => {
        [$(Run::read($name, include_str!(concat!("../data/golden/", $name, ".txt")))),*]
    };
}

fn runs() -> [Run; 10] {
    runs![
        "alloc-v4",
        "host-gw-v4",
        "udp-v4",
        "vxlan-direct",
        "vxlan-dual",
        "vxlan-options",
        "vxlan-v4",
        "vxlan-v4-masq-iptables",
        "vxlan-v4-masq-nft",
        "vxlan-v6only",
    ]
}

impl Run {
    fn read(name: &'static str, text: &'static str) -> Self {
        let config = text.lines().find_map(|line| line.strip_prefix("# config: ")).unwrap();
        let (_, rest) = text.split_once("## etcd: key, then value\n").unwrap();
        let (etcd, subnet_env) = rest.split_once("\n\n## subnet.env\n").unwrap();
        let lines: Vec<&str> = etcd.lines().collect();
        let leases = lines
            .chunks(2)
            .map(|pair| (pair[0].strip_prefix("/coreos.com/network/subnets/").unwrap(), pair[1]))
            .collect();
        Self {
            name,
            config: NetworkConfig::parse(config).unwrap(),
            leases,
            subnet_env: subnet_env.strip_suffix('\n').unwrap(),
        }
    }

    fn leases(&self) -> Vec<Lease> {
        let read = |(key, value): &(&str, &str)| Lease {
            subnet: key.parse().unwrap(),
            attrs: LeaseAttrs::from_json(value.as_bytes()).unwrap(),
        };
        self.leases.iter().map(read).collect()
    }
}

#[test]
fn every_run_has_leases_and_a_subnet_file() {
    for run in runs() {
        assert!(!run.leases.is_empty(), "{}", run.name);
        assert!(run.subnet_env.ends_with('\n'), "{}", run.name);
    }
}

#[test]
fn keys_are_written_as_they_were_read() {
    for run in runs() {
        for ((key, _), lease) in run.leases.iter().zip(run.leases()) {
            let written = lease.subnet.to_string();
            let expected = key.strip_prefix("0.0.0.0-0&").unwrap_or(key);
            assert_eq!(written, expected, "{}", run.name);
        }
    }
}

#[test]
fn values_are_written_as_they_were_read() {
    for run in runs() {
        for ((_, value), lease) in run.leases.iter().zip(run.leases()) {
            assert_eq!(lease.attrs.to_json(), *value, "{}", run.name);
        }
    }
}

#[test]
fn the_config_accepts_the_leases_made_under_it() {
    for run in runs() {
        for lease in run.leases() {
            assert!(run.config.accepts(&lease.subnet), "{} {}", run.name, lease.subnet);
        }
    }
}

#[test]
fn the_subnet_file_is_the_same_byte_for_byte() {
    for run in runs() {
        let (file, problems) = SubnetFile::parse(run.subnet_env);
        assert_eq!(problems, [], "{}", run.name);
        let own = file.lease_subnet().unwrap();
        assert!(run.leases().iter().any(|lease| lease.subnet == own), "{}", run.name);

        assert_eq!(file.render(), run.subnet_env, "{}", run.name);
        let networks: Vec<_> = run.config.v4.iter().map(|source| source.network()).collect();
        assert_eq!(file.networks, networks, "{}", run.name);
        let networks: Vec<_> = run.config.v6.iter().map(|source| source.network()).collect();
        assert_eq!(file.ipv6_networks, networks, "{}", run.name);
    }
}

#[test]
fn the_options_run_has_its_own_range() {
    let run = runs().into_iter().find(|run| run.name == "vxlan-options").unwrap();
    let pool = run.config.v4.unwrap().pool().unwrap();
    assert_eq!(pool.first(), "10.244.10.0/26".parse().unwrap());
    assert_eq!(pool.last(), "10.244.99.0/26".parse().unwrap());
    assert_eq!(run.config.backend.int("VNI", 1, 0..=0xff_ffff).unwrap(), 7);
    assert!(run.config.backend.bool("GBP", false).unwrap());
    assert!(!run.config.accepts(&"10.244.9.192-26".parse::<Subnet>().unwrap()));
}
