//! The CNI configuration of the node: container runtimes see it from the moment the network works.
//!
//! A runtime that finds a configuration calls the node ready, and a node that is ready gets pods. So it is not there before
//! pods can be attached, neither at the first start nor after a reboot: the file in the runtime's directory is a link to one
//! beside `subnet.env`, in a directory that a reboot empties. While flanneld is replaced, or is not ready for a moment, it
//! stays: pods that are there must be able to go.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use flannel_cni::install::is_installed;
use flannel_common::{replace_by, replace_file, temporary_path};
use flannel_node::options::CniConf;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::readiness::Readiness;

/// The version of CNI that manifests name: the newest that every runtime knows.
const NAMED: &str = "1.0.0";
/// The first one in which runtimes ask whether the network is ready (STATUS), and say which pods there are (GC).
const WITH_STATUS: &str = "1.1.0";

/// How often the source is compared: the kubelet itself brings a changed ConfigMap within a minute.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Installs it as soon as the network works, and again when the source or the file has changed.
pub async fn keep(
    conf: CniConf,
    mut readiness: watch::Receiver<Readiness>,
    every: Duration,
) -> Infallible {
    if readiness.wait_for(Readiness::has_begun).await.is_err() {
        return std::future::pending().await;
    }
    let mut complaint = None;
    loop {
        match install(&conf) {
            Ok(true) => {
                complaint = None;
                tracing::info!("The CNI configuration is in place: {}", conf.file.display());
            }
            Ok(false) => complaint = None,
            Err(error) if complaint.as_ref() == Some(&error) => {}
            Err(error) => {
                tracing::error!("No pod can be started on this node: {error}");
                complaint = Some(error);
            }
        }
        tokio::time::sleep(every).await;
    }
}

fn install(conf: &CniConf) -> Result<bool, String> {
    let wanted = fs::read(&conf.source)
        .map_err(|error| format!("cannot read {}: {error}", conf.source.display()))?;
    let parsed = serde_json::from_slice(&wanted)
        .map_err(|error| format!("{} is not JSON: {error}", conf.source.display()))?;
    let wanted = with_newer_version(conf, parsed).unwrap_or(wanted);
    let name = conf.file.file_name().ok_or("cni-conf-file has no name")?;
    let target = conf.volatile.join(name);
    let leads_there = fs::read_link(&conf.file).is_ok_and(|found| found == target);
    if leads_there && fs::read(&target).is_ok_and(|found| found == wanted) {
        return Ok(false);
    }
    replace_file(&target, &wanted, 0o644).map_err(failed("write", &target))?;
    // Made again even if it is there: runtimes watch its directory alone.
    let temporary = temporary_path(&conf.file, "new");
    replace_by(&conf.file, &temporary, |temporary| symlink(&target, temporary))
        .map_err(failed("replace", &conf.file))?;
    Ok(true)
}

/// The newer version for a runtime, if every plugin knows it: a runtime hands the newest it knows to all of them.
fn with_newer_version(conf: &CniConf, mut document: Value) -> Option<Vec<u8>> {
    let directory = conf.plugins.as_deref()?;
    let mut kinds = Vec::new();
    collect_kinds(document.get("plugins")?, &mut kinds)?;
    let can = document.get("cniVersion")? == NAMED
        && document.get("cniVersions").is_none()
        && kinds.iter().all(|kind| is_installed(directory, kind));
    if !can {
        return None;
    }
    document.as_object_mut()?.insert("cniVersions".to_owned(), json!([NAMED, WITH_STATUS]));
    serde_json::to_vec_pretty(&document).ok()
}

/// The names of all programs that a configuration leads to; `None`: it says that others than those are started.
fn collect_kinds(conf: &Value, kinds: &mut Vec<String>) -> Option<()> {
    match conf {
        Value::Object(members) if members.contains_key("delegateByExec") => return None,
        Value::Object(members) => {
            kinds.extend(members.get("type").and_then(Value::as_str).map(str::to_owned));
            members.values().try_for_each(|member| collect_kinds(member, kinds))?;
        }
        Value::Array(items) => items.iter().try_for_each(|item| collect_kinds(item, kinds))?,
        _ => {}
    }
    Some(())
}

fn failed(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> String + use<> {
    let path = path.display().to_string();
    move |error| format!("cannot {verb} {path}: {error}")
}

#[cfg(test)]
mod tests {
    use flannel_state::Verdict;

    use super::*;

    struct Case {
        root: tempfile::TempDir,
        conf: CniConf,
    }

    impl Case {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let path = |name: &str| root.path().join(name);
            for dir in ["run", "net.d"] {
                fs::create_dir(path(dir)).unwrap();
            }
            fs::write(path("cni-conf.json"), "{}").unwrap();
            let conf = CniConf {
                source: path("cni-conf.json"),
                file: path("net.d/10-flannel.conflist"),
                plugins: None,
                volatile: path("run"),
            };
            Self { root, conf }
        }

        fn seen(&self) -> Option<String> {
            fs::read_to_string(&self.conf.file).ok()
        }
    }

    #[tokio::test]
    async fn it_is_there_when_the_network_works_and_not_before() {
        let case = Case::new();
        let seen = async |wanted: Option<&str>| {
            while case.seen().as_deref() != wanted {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let (say, readiness) = watch::channel(Readiness::not_ready("starting"));
        let every = Duration::from_millis(1);
        let task = tokio::spawn(keep(case.conf.clone(), readiness, every));
        tokio::time::sleep(20 * every).await;
        assert_eq!(case.seen(), None);
        say.send(Readiness::new(Verdict::Ready, "")).unwrap();
        seen(Some("{}")).await;

        say.send(Readiness::not_ready("no store")).unwrap();
        replace_file(&case.conf.source, b"[]", 0o644).unwrap();
        seen(Some("[]")).await;
        fs::remove_file(&case.conf.file).unwrap();
        seen(Some("[]")).await;
        task.abort();
    }

    #[test]
    fn a_reboot_hides_it_until_it_is_installed_again() {
        let case = Case::new();
        assert!(install(&case.conf).unwrap());
        assert!(!install(&case.conf).unwrap(), "nothing is written twice");
        fs::remove_file(case.root.path().join("run/10-flannel.conflist")).unwrap();
        assert_eq!(case.seen(), None);
        assert!(install(&case.conf).unwrap());
        assert_eq!(case.seen().as_deref(), Some("{}"));
    }

    #[test]
    fn runtimes_are_told_of_the_newer_cni_only_if_every_plugin_is_ours() {
        let mut case = Case::new();
        let plugins = case.root.path().join("bin");
        let own = std::env::current_exe().unwrap();
        flannel_cni::install::install(&own, &plugins, false).unwrap();
        case.conf.plugins = Some(plugins.clone());
        let told = |source: Value| {
            fs::write(&case.conf.source, source.to_string()).unwrap();
            install(&case.conf).unwrap();
            let seen: Value = serde_json::from_str(&case.seen().unwrap()).unwrap();
            seen.get("cniVersions").cloned()
        };
        let chain = |version: &str| {
            let plugins = json!([{"type": "flannel", "delegate": {}}, {"type": "portmap"}]);
            json!({"name": "cbr0", "cniVersion": version, "plugins": plugins})
        };
        assert_eq!(told(chain("1.0.0")), Some(json!(["1.0.0", "1.1.0"])));
        assert_eq!(told(chain("0.3.1")), None, "who asks for an old version has a reason");
        let delegated = json!([{"type": "flannel", "delegate": {"type": "macvlan"}}]);
        let delegated = json!({"name": "cbr0", "cniVersion": "1.0.0", "plugins": delegated});
        assert_eq!(told(delegated), None, "a delegate of somebody else");

        fs::remove_file(plugins.join("portmap")).unwrap();
        fs::write(plugins.join("portmap"), "somebody else's").unwrap();
        assert_eq!(told(chain("1.0.0")), None);
        fs::remove_file(plugins.join("portmap")).unwrap();
        assert_eq!(told(chain("1.0.0")), None, "none at all");
    }

    #[test]
    fn a_file_of_another_flannel_is_replaced_and_nonsense_replaces_nothing() {
        let case = Case::new();
        fs::write(&case.conf.file, "old").unwrap();
        fs::write(&case.conf.source, "{nonsense").unwrap();
        assert!(install(&case.conf).unwrap_err().contains("is not JSON"));
        assert_eq!(case.seen().as_deref(), Some("old"));
        fs::write(&case.conf.source, "{}").unwrap();
        assert!(install(&case.conf).unwrap());
        assert_eq!(case.seen().as_deref(), Some("{}"));
        assert_eq!(fs::read_dir(case.root.path().join("net.d")).unwrap().count(), 1);
    }
}
