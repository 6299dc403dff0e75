use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flannel_kube::KubeOptions;
use flannel_lease::NetworkName;
use flannel_store::{EtcdOptions, Secret};
use proptest::prelude::*;

use super::*;

fn parse_with(words: &[&str], env: &[(&str, &str)]) -> Result<Parsed, UsageError> {
    let args = ["flanneld"].iter().chain(words).map(OsString::from);
    parse(args, env.iter().map(|(name, value)| (name.into(), value.into())))
}

fn run(words: &[&str], env: &[(&str, &str)]) -> (Options, Vec<Remark>) {
    match parse_with(words, env) {
        Ok(Parsed::Run { options, remarks, .. }) => (*options, remarks),
        other => panic!("{words:?} must run, but: {other:?}"),
    }
}

fn options(words: &[&str]) -> Options {
    run(words, &[]).0
}

fn one(mut options: Options) -> Joined {
    assert_eq!(options.networks.len(), 1);
    options.networks.remove(0)
}

fn etcd(options: Options) -> EtcdOptions {
    match one(options).store {
        StoreOptions::Etcd(etcd) => etcd,
        other => panic!("etcd is the default, not {other:?}"),
    }
}

fn error(words: &[&str]) -> UsageError {
    parse_with(words, &[]).expect_err("it must be refused")
}

#[test]
fn without_any_word_the_defaults_hold() {
    let (options, remarks) = run(&[], &[]);
    assert_eq!(remarks, []);
    assert_eq!(options.underlay, crate::iface::Selection::default());
    assert_eq!(options.networks[0].subnet_file, Path::new("/run/flannel/subnet.env"));
    assert_eq!(options.socket, Path::new("/run/flannel/flanneld.sock"));
    assert_eq!(options.renew_margin, Duration::from_secs(3600));
    assert_eq!(
        options.traffic,
        Traffic {
            ip_masq: false,
            random_fully: true,
            forward_rules: true,
            resync: Duration::from_secs(5),
        }
    );
    assert!(!options.blackhole_route);
    assert_eq!(options.probe, None);
    let verbosity = crate::verbosity::Verbosity::default();
    assert_eq!(format!("{:?}", options.verbosity), format!("{verbosity:?}"));
    let etcd = etcd(options);
    assert_eq!(etcd.endpoints, ["http://127.0.0.1:2379"]);
    assert_eq!(etcd.prefix, "/coreos.com/network");
    assert_eq!((etcd.key, etcd.cert, etcd.ca), (None, None, None));
    assert_eq!((etcd.username, etcd.password), (None, None));
    let kube = options_of_kube(&["-kube-subnet-mgr"]);
    assert_eq!(
        kube,
        KubeOptions {
            api_url: None,
            annotation_prefix: "flannel.alpha.coreos.com".into(),
            kubeconfig: None,
            net_config: "/etc/kube-flannel/net-conf.json".into(),
            set_node_network_unavailable: true,
        }
    );
}

fn options_of_kube(words: &[&str]) -> KubeOptions {
    match one(options(words)).store {
        StoreOptions::Kube(kube) => kube,
        other => panic!("kube-subnet-mgr was given, not {other:?}"),
    }
}

#[test]
fn one_dash_or_two_and_the_value_after_an_equals_sign_or_as_the_next_word_are_the_same() {
    for words in [
        &["-etcd-prefix=/a"][..],
        &["--etcd-prefix=/a"],
        &["-etcd-prefix", "/a"],
        &["--etcd-prefix", "/a"],
    ] {
        assert_eq!(etcd(options(words)).prefix, "/a", "{words:?}");
    }
    assert_eq!(etcd(options(&["-etcd-prefix=a=b"])).prefix, "a=b", "only the first = counts");
    assert_eq!(
        etcd(options(&["-etcd-prefix", "-iface"])).prefix,
        "-iface",
        "a value may look like a flag"
    );
    assert_eq!(etcd(options(&["-etcd-prefix", "--"])).prefix, "--");
    assert_eq!(etcd(options(&["-etcd-prefix="])).prefix, "");
}

#[test]
fn the_last_of_a_repeated_flag_wins_but_lists_collect() {
    assert_eq!(etcd(options(&["-etcd-prefix=/a", "-etcd-prefix=/b"])).prefix, "/b");
    let options = options(&["-iface=eth1", "-iface-regex", "^10", "-iface", "eth0", "-iface=a,b"]);
    assert_eq!(options.underlay.iface, ["eth1", "eth0", "a,b"]);
    assert_eq!(options.underlay.regex, ["^10"]);
}

#[test]
fn booleans_take_a_value_only_with_an_equals_sign() {
    assert!(options(&["-ip-masq"]).traffic.ip_masq);
    assert!(options(&["--ip-masq=T"]).traffic.ip_masq);
    assert!(!options(&["-ip-masq", "-ip-masq=0"]).traffic.ip_masq);
    assert!(!options(&["-iptables-forward-rules=false"]).traffic.forward_rules);
    assert!(!options(&["-ip-masq-fully-random-disable"]).traffic.random_fully);
    assert!(matches!(error(&["-ip-masq=yes"]), UsageError::Malformed(_)));
    assert!(matches!(error(&["-ip-masq="]), UsageError::Malformed(_)));
}

#[test]
fn the_first_word_that_is_no_flag_ends_the_reading_and_that_is_remarked() {
    let (options, remarks) = run(&["-ip-masq", "false", "-iface=eth0", "-nonsense"], &[]);
    assert!(options.traffic.ip_masq);
    assert!(options.underlay.iface.is_empty());
    let [remark] = &remarks[..] else { panic!("one remark, not {remarks:?}") };
    assert_eq!(
        remark.to_string(),
        "ignored at the end of the command line: 3 words after -ip-masq (a boolean flag takes its \
         value as -ip-masq=false)"
    );
    for (words, ignored) in [
        (&["--", "-iface=eth0"][..], 1),
        (&["-", "-iface=eth0"], 2),
        (&["", "-iface=eth0"], 2),
        (&["iface=eth0"], 1),
        (&["--"], 0),
    ] {
        let (options, remarks) = run(words, &[]);
        assert!(options.underlay.iface.is_empty(), "{words:?}");
        let expected: Vec<Remark> = (ignored > 0)
            .then_some(Remark::WordsIgnored { after: None, count: ignored, boolean: false })
            .into_iter()
            .collect();
        assert_eq!(remarks, expected, "{words:?}");
    }
}

#[test]
fn help_and_version_are_answered_at_once() {
    for words in [&["-h"][..], &["--help"], &["-ip-masq", "-help", "-nonsense"], &["-h=1"]] {
        let Ok(Parsed::Help(text)) = parse_with(words, &[]) else { panic!("{words:?} is help") };
        assert!(text.starts_with("Usage: flanneld [OPTION]...\n"), "{text}");
    }
    let version = |words, env| matches!(parse_with(words, env), Ok(Parsed::Version));
    assert!(version(&["-version", "-iptables-resync=0"], &[]));
    assert!(!version(&["-version=false"], &[]));
    assert!(!version(&[], &[("FLANNELD_VERSION", "true")]), "only on the command line");
}

#[test]
fn defect_64_a_command_line_that_cannot_be_read_does_not_end_with_success() {
    for words in [
        &["-nonsense"][..],
        &["-iface"],
        &["-ip-masq=yes"],
        &["-healthz-port=http"],
        &["-v=0x2"],
        &["-vmodule=x"],
        &["-log_backtrace_at=x"],
        &["-=x"],
        &["---iface=x"],
    ] {
        assert_eq!(error(words).exit_status(), 2, "{words:?}");
    }
    assert_eq!(error(&["-subnet-lease-renew-margin=0"]).exit_status(), 1);
}

#[test]
fn an_unknown_flag_brings_the_nearest_known_one_to_mind() {
    assert_eq!(
        error(&["-etcd-endpoint=http://a"]).to_string(),
        "flag provided but not defined: -etcd-endpoint (did you mean -etcd-endpoints?)"
    );
    assert_eq!(
        error(&["--xyzzy"]).to_string(),
        "flag provided but not defined: -xyzzy (-help lists all flags)"
    );
}

#[test]
fn a_wrong_value_is_shown_with_its_flag_and_the_way_to_mend_it() {
    assert_eq!(
        error(&["-healthz-port=8081/tcp"]).to_string(),
        "invalid value \"8081/tcp\" for flag -healthz-port: use a whole number without a unit, such as 10 or 0x10"
    );
    assert_eq!(error(&["-iface"]).to_string(), "flag needs an argument: -iface");
}

#[test]
fn defect_61_a_resync_that_would_never_pause_is_refused() {
    for seconds in ["0", "-1", "-9223372036854775808"] {
        let error = error(&["-iptables-resync", seconds]);
        assert_eq!(
            error.to_string(),
            format!(
                "invalid value {seconds:?} for flag -iptables-resync: use 1 second or more; the usual is 5"
            )
        );
        assert_eq!(error.exit_status(), 1);
    }
    assert_eq!(options(&["-iptables-resync=1"]).traffic.resync, Duration::from_secs(1));
    let longest = options(&["-iptables-resync=9223372036854775807"]).traffic.resync;
    assert!(std::time::Instant::now().checked_add(longest).is_some(), "no sum overflows");
    let error = parse_with(&[], &[("FLANNELD_IPTABLES_RESYNC", "0")]).expect_err("refused");
    assert!(error.to_string().contains("for FLANNELD_IPTABLES_RESYNC: "), "{error}");
}

#[test]
fn the_renew_margin_must_lie_within_a_lease() {
    for (minutes, accepted) in
        [("0", false), ("1", true), ("1439", true), ("1440", false), ("-5", false)]
    {
        let parsed = parse_with(&["-subnet-lease-renew-margin", minutes], &[]);
        assert_eq!(parsed.is_ok(), accepted, "{minutes}");
    }
    assert_eq!(
        options(&["-subnet-lease-renew-margin=0x10"]).renew_margin,
        Duration::from_secs(960)
    );
}

#[test]
fn the_probe_server_is_off_without_a_port() {
    for port in ["0", "-1"] {
        assert_eq!(options(&["-healthz-port", port]).probe, None, "{port}");
    }
    let probe = options(&["-healthz-port=8081", "-healthz-ip=::1"]).probe;
    assert_eq!(probe, Some(ProbeAddress { host: "::1".into(), port: 8081 }));
    assert!(error(&["-healthz-port=65536"]).to_string().contains("65535"));
}

#[test]
fn peers_are_probed_unless_the_port_is_none() {
    let port = |words: &[&str]| options(words).peer_probe_port.map(std::num::NonZeroU16::get);
    assert_eq!(port(&[]), Some(8475));
    assert_eq!(port(&["-peer-probe-port=9000"]), Some(9000));
    assert_eq!(port(&["-peer-probe-port=0"]), None);
    assert!(error(&["-peer-probe-port=65536"]).to_string().contains("65535"));
}

#[test]
fn addresses_are_of_the_right_family() {
    let options = options(&[
        "-public-ip=192.0.2.1",
        "-public-ipv6=2001:db8::1",
        "-iface-can-reach=2001:db8::2",
    ]);
    assert_eq!(options.underlay.public_ip, Some(Ipv4Addr::new(192, 0, 2, 1)));
    assert_eq!(options.underlay.public_ipv6, "2001:db8::1".parse::<Ipv6Addr>().ok());
    assert_eq!(options.underlay.can_reach, "2001:db8::2".parse::<IpAddr>().ok());
    for words in [
        "-public-ip=2001:db8::1",
        "-public-ip=192.0.2",
        "-public-ip=0.0.0.0",
        "-public-ip=255.255.255.255",
        "-public-ip=127.0.0.1",
        "-public-ipv6=::",
        "-public-ipv6=ff02::1",
        "-public-ipv6=192.0.2.1",
        "-iface-can-reach=node",
    ] {
        assert!(matches!(error(&[words]), UsageError::Refused(_)), "{words}");
    }
}

#[test]
fn files_are_files() {
    assert_eq!(one(options(&["-subnet-file=a.env"])).subnet_file, Path::new("a.env"));
    for file in ["", "/", "/run/flannel/", ".."] {
        assert!(matches!(error(&["-subnet-file", file]), UsageError::Refused(_)), "{file:?}");
    }
    let kube = options_of_kube(&["-kube-subnet-mgr", "-kubeconfig-file=/k", "-net-config-path=/n"]);
    assert_eq!(
        (kube.kubeconfig, kube.net_config),
        (Some(PathBuf::from("/k")), PathBuf::from("/n"))
    );
}

#[test]
fn etcd_is_reached_at_each_endpoint_with_name_password_and_certificates() {
    let with = |words: &[&str]| etcd(options(words));
    assert_eq!(
        with(&["-etcd-endpoints=http://a:1, http://b:2,"]).endpoints,
        ["http://a:1", "http://b:2"]
    );
    assert!(matches!(error(&["-etcd-endpoints=,"]), UsageError::Refused(_)));
    assert!(
        parse_with(&["-etcd-endpoints=", "-kube-subnet-mgr"], &[]).is_ok(),
        "nobody asks etcd then"
    );
    let login = with(&["-etcd-username=a", "-etcd-password=b"]);
    assert_eq!((login.username.as_deref(), login.password), (Some("a"), Some(Secret::new("b"))));
    let files = with(&["-etcd-keyfile=/k", "-etcd-certfile=/c", "-etcd-cafile=/a"]);
    let files = [files.key, files.cert, files.ca].map(Option::unwrap_or_default);
    assert_eq!(files, ["/k", "/c", "/a"].map(PathBuf::from));
}

#[test]
fn listen_serves_and_joins_only_with_remote() {
    let alone = options(&["-listen=127.0.0.1"]);
    assert!(alone.networks.is_empty());
    let serve = alone.serve.expect("it serves");
    assert_eq!(serve.listen.to_string(), "127.0.0.1:10253");
    assert!(
        matches!(&serve.backing, Backing::Embedded(dir) if dir == Path::new("/var/lib/flannel"))
    );
    assert_eq!((serve.config, serve.tls), (None, None));

    let both = options(&["-listen=:1", "-remote=self", "-networks=blue", "-net-config-path=/c"]);
    let blue: NetworkName = "blue".parse().expect("a name");
    assert!(
        matches!(&both.networks[..], [Joined { name, store: StoreOptions::Own, .. }] if *name == blue)
    );
    assert_eq!(both.serve.expect("it serves").config, Some((blue, PathBuf::from("/c"))));

    let node = options(&["-remote=a:1, b", "-remote-token=hunter2"]);
    assert!(node.serve.is_none() && !format!("{node:?}").contains("hunter2"));
    let StoreOptions::Remote(remote) = one(node).store else { panic!("a lease server is used") };
    assert_eq!(
        (remote.addresses, remote.token),
        (vec!["a:1".into(), "b".into()], Some(Secret::new("hunter2")))
    );

    let in_front = options(&["-listen=:1", "-store=etcd", "-etcd-prefix=/p"]).serve;
    assert!(
        matches!(in_front.map(|s| s.backing), Some(Backing::Etcd(etcd)) if etcd.prefix == "/p")
    );
    for words in [
        &["-remote=self"][..],
        &["-remote=,"],
        &["-listen=a b"],
        &["-listen=:1", "-store=redis"],
        &["-listen=:1", "-remote-certfile=/c"],
        &["-remote=a", "-networks=a b"],
        &["-remote=a", "-networks=subnets"],
    ] {
        assert!(matches!(error(words), UsageError::Refused(_)), "{words:?}");
    }
}

#[test]
fn several_networks_have_a_store_and_a_file_each() {
    let files = |options: Options| -> Vec<_> {
        let file = |network: Joined| network.subnet_file.display().to_string();
        options.networks.into_iter().map(file).collect()
    };
    let two = options(&["-networks=blue, green,blue", "-etcd-prefix=/p"]);
    let prefix = |network: &Joined| match &network.store {
        StoreOptions::Etcd(etcd) => etcd.prefix.clone(),
        _ => panic!("etcd is the usual"),
    };
    let prefixes: Vec<_> = two.networks.iter().map(prefix).collect();
    assert_eq!(prefixes, ["/p/blue", "/p/green"]);
    assert_eq!(files(two), ["/run/flannel/networks/blue.env", "/run/flannel/networks/green.env"]);
    let elsewhere = options(&["-networks=a,b", "-subnet-dir=/x", "-remote=c"]);
    let StoreOptions::Remote(remote) = &elsewhere.networks[1].store else {
        panic!("a lease server")
    };
    assert_eq!(remote.network.as_str(), "b");
    assert_eq!(files(elsewhere), ["/x/a.env", "/x/b.env"]);
    assert_eq!(files(options(&["-networks=a", "-subnet-file=/x/y"])), ["/x/y"], "one alone");
    for words in [
        &["-networks=a,b", "-subnet-file=/x/y"][..],
        &["-networks=a", "-kube-subnet-mgr"],
        &["-networks=a,b", "-listen=:1", "-remote=self", "-net-config-path=/c"],
    ] {
        assert!(matches!(error(words), UsageError::Refused(_)), "{words:?}");
    }
}

#[test]
fn a_variable_counts_when_its_flag_is_not_given() {
    let env = [
        ("FLANNELD_ETCD_PREFIX", "/env"),
        ("FLANNELD_IP_MASQ", "true"),
        ("FLANNELD_IFACE", "eth0,eth1"),
        ("FLANNELD_V", "4"),
        ("FLANNELD_SUBNET_FILE", ""),
        ("FLANNELD_LOG_BACKTRACE_AT", "main.rs:1"),
        ("PATH", "/bin"),
    ];
    let (options, remarks) = run(&["-etcd-prefix=/flag"], &env);
    assert_eq!(remarks, []);
    assert!(options.traffic.ip_masq);
    assert_eq!(options.underlay.iface, ["eth0,eth1"], "a list takes it as one element");
    assert_eq!(options.verbosity.level, 4);
    assert!(options.verbosity.backtrace_at.is_some());
    assert_eq!(
        options.networks[0].subnet_file,
        Path::new("/run/flannel/subnet.env"),
        "empty is not given"
    );
    assert_eq!(etcd(options).prefix, "/flag");
}

#[test]
fn a_bad_variable_is_an_error_in_the_log_and_the_flag_stays_as_it_was() {
    let env = [("FLANNELD_HEALTHZ_PORT", "many"), ("FLANNELD_IP_MASQ", "yes"), ("FLANNELD_V", "3")];
    let (options, remarks) = run(&[], &env);
    assert_eq!((options.probe, options.traffic.ip_masq, options.verbosity.level), (None, false, 3));
    let texts: Vec<String> = remarks.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "invalid value \"yes\" for FLANNELD_IP_MASQ: use true or false; the variable is ignored",
            "invalid value \"many\" for FLANNELD_HEALTHZ_PORT: use a whole number without a unit, such as \
             10 or 0x10; the variable is ignored",
        ]
    );
}

#[test]
fn a_variable_that_no_flag_reads_is_remarked_without_its_value() {
    let env = [("FLANNELD_ETCD_PASWORD", "hunter2"), ("FLANNELD_UNHEARD_OF_THINGS", ":8080")];
    let texts: Vec<String> = run(&[], &env).1.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "no flag reads FLANNELD_ETCD_PASWORD; the variable is ignored (did you mean FLANNELD_ETCD_PASSWORD?)",
            "no flag reads FLANNELD_UNHEARD_OF_THINGS; the variable is ignored",
        ]
    );
}

#[test]
fn bytes_that_are_no_text_are_refused_or_ignored() {
    let bytes = || OsString::from_vec(vec![b'-', 0xff]);
    let parsed = parse([OsString::from("flanneld"), bytes()], []);
    assert_eq!(parsed.err(), Some(UsageError::NotText(1)));
    let Ok(Parsed::Run { remarks, .. }) = parse([], [("FLANNELD_IFACE".into(), bytes())]) else {
        panic!("a variable stops nothing");
    };
    assert_eq!(remarks, [Remark::VariableNotText("FLANNELD_IFACE".into())]);
}

#[test]
fn defect_63_the_password_is_in_no_log_line_and_no_error() {
    const PASSWORD: &str = "hunter2";
    let flag = format!("-etcd-password={PASSWORD}");
    let (options, remarks) = run(&["-etcd-username=me", &flag, "stray", PASSWORD], &[]);
    let dump = format!("{options:?} {options:#?} {remarks:?} {}", remarks[0]);
    assert!(!dump.contains(PASSWORD), "{dump}");
    let (options, _) = run(&["-etcd-username=me"], &[("FLANNELD_ETCD_PASSWORD", PASSWORD)]);
    assert!(!format!("{options:?}").contains(PASSWORD));
    for wrong in [
        format!("-etcd-endpoints=http://me:{PASSWORD}@etcd:2379"),
        format!("--{flag}"),
        format!("-etcd-pasword={PASSWORD}"),
        format!("-={PASSWORD}"),
    ] {
        let error = error(&[&wrong]);
        assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error:?}");
    }
}

fn flag_name() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(FLAGS.iter().map(|flag| flag.name).collect::<Vec<_>>())
}

/// Words as somebody might type them, and worse.
fn word() -> impl Strategy<Value = OsString> {
    let name = flag_name();
    let value = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        "[0-9a-zA-Z_.:,=/*+-]{0,12}",
        ".{0,12}",
    ];
    prop_oneof![
        4 => (name, "-{0,3}", "=?", value).prop_map(|(name, dashes, gap, value)| {
            OsString::from(match gap.as_str() {
                "" => format!("{dashes}{name}"),
                _ => format!("{dashes}{name}={value}"),
            })
        }),
        2 => ".{0,20}".prop_map(OsString::from),
        1 => proptest::collection::vec(any::<u8>(), 0..12).prop_map(OsString::from_vec),
    ]
}

proptest! {
    #[test]
    fn no_command_line_and_no_environment_makes_it_panic(
        args in proptest::collection::vec(word(), 0..8),
        env in proptest::collection::vec(
            (prop_oneof![
                flag_name().prop_map(|name| flags::variable(name).into()),
                "FLANNELD_.{0,40}".prop_map(OsString::from),
                word(),
            ], word()),
            0..8,
        ),
    ) {
        match parse(args, env) {
            Ok(Parsed::Run { options, remarks, .. }) => {
                prop_assert!(options.traffic.resync >= Duration::from_secs(1));
                for remark in remarks {
                    prop_assert!(!remark.to_string().is_empty());
                }
            }
            Ok(Parsed::Help(text)) => prop_assert!(text.starts_with("Usage: ")),
            Ok(Parsed::Version) => {}
            Err(error) => {
                prop_assert!(error.exit_status() > 0);
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn what_was_given_is_shown_as_it_was_written_and_secrets_are_not() {
    let words = ["flanneld", "--iface=eth0", "-remote", "10.0.0.1", "--remote-token=hunter2"];
    let env = [("FLANNELD_IP_MASQ", "true"), ("FLANNELD_ETCD_PASSWORD", "hunter3")];
    let parsed = parse(words.map(Into::into), env.map(|(name, value)| (name.into(), value.into())));
    let Ok(Parsed::Run { given, .. }) = parsed else { panic!("{parsed:?}") };
    let shown = given.join(" ");
    assert!(!shown.contains("hunter"), "{shown}");
    for part in ["--iface=eth0", "--remote=10.0.0.1", "FLANNELD_IP_MASQ=true", "--remote-token=("] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}
