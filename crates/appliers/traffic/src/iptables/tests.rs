use super::*;
use crate::process::fake::Recorder;
use crate::programs::samples::directory_with;
use crate::rule::Keep;
use crate::testing::{Blocks as _, family, guard};
use tool::Signs;

const NFT: &str = "iptables v1.8.9 (nf_tables)";
const LEGACY: &str = "iptables v1.8.9 (legacy)";
const OLD: &str = "iptables v1.6.1";

fn programs(names: &[&str]) -> Vec<String> {
    names.iter().flat_map(|n| ["", "-save", "-restore"].map(|end| format!("{n}{end}"))).collect()
}

fn find(names: &[&str], plain: &str, preferred: Option<Variant>) -> Result<Tool, TrafficError> {
    let programs = programs(names);
    let (_directory, path) =
        directory_with(&programs.iter().map(String::as_str).collect::<Vec<_>>());
    let plain = plain.to_owned();
    let mut recorder = Recorder::answering(move |program, _, _| match program {
        "iptables-nft" | "ip6tables-nft" => NFT.into(),
        "iptables-legacy" | "ip6tables-legacy" => LEGACY.into(),
        _ => plain.clone(),
    });
    Tool::find(&path, &mut recorder, Family::V4, preferred)
}

#[test]
fn the_variant_that_holds_the_nodes_rules_is_preferred() {
    let nothing = Signs::default();
    let kube = Signs { kube: true, flannel: false };
    let flannel = Signs { kube: false, flannel: true };
    let both = Signs { kube: true, flannel: true };
    for (nft, legacy, preferred) in [
        (nothing, nothing, None),
        (kube, nothing, Some(Variant::Nft)),
        (nothing, kube, Some(Variant::Legacy)),
        (kube, both, Some(Variant::Nft)),
        (flannel, kube, Some(Variant::Legacy)),
        (flannel, nothing, Some(Variant::Nft)),
        (nothing, flannel, Some(Variant::Legacy)),
        (flannel, flannel, None),
    ] {
        assert_eq!(Variant::preferred(nft, legacy), preferred, "{nft:?} {legacy:?}");
    }
}

#[test]
fn the_preferred_variant_is_used_where_installed() {
    let all = ["iptables", "iptables-nft", "iptables-legacy"];
    let variant = |preferred| find(&all, NFT, preferred).unwrap().variant;
    assert_eq!(variant(Some(Variant::Legacy)), Variant::Legacy);
    assert_eq!(variant(Some(Variant::Nft)), Variant::Nft);
    assert_eq!(variant(None), Variant::Nft);
    assert_eq!(find(&all, LEGACY, None).unwrap().variant, Variant::Legacy);
    assert_eq!(find(&["iptables"], NFT, Some(Variant::Legacy)).unwrap().variant, Variant::Nft);
    assert_eq!(find(&["iptables"], OLD, None).unwrap().version, Version([1, 6, 1]));
    assert!(find(&["iptables-nft"], NFT, None).unwrap().save.ends_with("iptables-nft-save"));
}

#[test]
fn what_is_missing_is_named_with_what_to_do() {
    let error = find(&[], NFT, None).unwrap_err().to_string();
    assert_eq!(
        error,
        "iptables is not installed: install the package iptables, or use nftables \
         (\"EnableNFTables\": true in the network config)"
    );
}

fn open(
    version: &'static str,
    nat: &'static str,
) -> (Iptables, std::sync::Arc<std::sync::Mutex<Vec<String>>>, tempfile::TempDir) {
    let programs = programs(&["iptables"]);
    let (directory, path) =
        directory_with(&programs.iter().map(String::as_str).collect::<Vec<_>>());
    let recorder = Recorder::answering(move |program, arguments, _| match (program, arguments) {
        ("iptables", ["--version"]) => version.to_owned(),
        ("iptables-save", ["-t", "nat"]) => nat.to_owned(),
        _ => String::new(),
    });
    let log = recorder.log();
    let iptables = Iptables::open(&path, Box::new(recorder), Family::V4, None).unwrap();
    (iptables, log, directory)
}

fn look(iptables: &mut Iptables) -> Look {
    let mut rules = family("10.244.0.0/16", "10.244.1.0/24");
    guard(&mut rules);
    let wish = Wish { entries: rules.entries(true), keep: Keep::AllBut(Vec::new()) };
    iptables.look(Family::V4, &wish).unwrap()
}

/// What a look has found to be written.
fn change(iptables: &mut Iptables) -> String {
    look(iptables);
    iptables.changes.iter().map(|(_, change)| change.as_str()).collect()
}

#[test]
fn defect_56_a_look_is_one_run_per_table_and_a_change_one_for_all() {
    let (mut iptables, log, _directory) = open(NFT, "");
    let change = change(&mut iptables);
    assert!(change.contains("*nat\n") && change.contains("*filter\n"));
    assert!(change.contains("FLANNEL-TUN-IN") && change.contains("FLANNEL-TUN-OUT"), "{change}");
    iptables.write(Family::V4, &Purpose::ALL).unwrap();
    assert_eq!(
        *log.lock().unwrap(),
        [
            "iptables --version\n",
            "iptables-save -t nat\n",
            "iptables-save -t filter\n",
            "iptables-save -t mangle\n",
            &format!("iptables-restore --noflush --wait 5\n{change}")
        ]
    );
}

#[test]
fn an_old_iptables_is_not_asked_for_what_it_cannot() {
    let (mut iptables, log, _directory) = open(OLD, "");
    let change = change(&mut iptables);
    assert!(change.contains("MASQUERADE") && !change.contains("random"));
    iptables.write(Family::V4, &Purpose::ALL).unwrap();
    assert!(log.lock().unwrap()[4].starts_with("iptables-restore --noflush\n"));
}

#[test]
fn only_what_is_asked_for_is_written() {
    let (mut iptables, log, _directory) = open(NFT, "");
    assert_eq!(look(&mut iptables).differing, Purpose::ALL);
    iptables.write(Family::V4, &[Purpose::Masquerade, Purpose::Forward]).unwrap();
    let log = log.lock().unwrap();
    let written = log.last().unwrap();
    assert!(written.contains("*nat\n") && !written.contains("FLANNEL-TUN"), "{written}");
}

#[test]
fn a_table_iptables_cannot_read_is_an_error_with_a_way_out() {
    let (mut iptables, _, _directory) =
        open(NFT, "# Table `nat' is incompatible, use 'nft' tool.\n");
    let look = look(&mut iptables);
    let [(Purpose::Masquerade, error)] = look.unseen.as_slice() else { panic!("{look:?}") };
    let error = error.to_string();
    assert!(error.contains("table nat") && error.contains("\"EnableNFTables\": true"), "{error}");
    assert!(look.differing.contains(&Purpose::Forward));
}
