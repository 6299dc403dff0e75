//! The process charon: found, started, ended. It outlives its starter.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use flannel_common::{SearchPath, replace_file};
use flannel_entries::ipsec::{ConnectionName, IpsecKey};
use ipnet::IpNet;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::messages::{secret_id, secret_owner};
use crate::vici::{Message, Result, Vici};

/// Usual socket of charon. The Go flannel relies on it too, so that either finds what the other has started.
const SOCKET: &str = "/var/run/charon.vici";
/// File in which charon records its process id, and checks whether there is another.
const OTHER_PID_FILE: &str = "/var/run/charon.pid";
/// Paths of the program in distributions, in the order in which the Go flannel looks.
const PROGRAMS: [&str; 4] = [
    "/usr/lib/strongswan/charon",
    "/usr/lib/ipsec/charon",
    "/usr/libexec/strongswan/charon",
    "/usr/libexec/ipsec/charon",
];
/// UDP ports of IKE, and of IPsec through a NAT.
const IKE_PORTS: [u16; 2] = [500, 4500];
/// Time to end: it tells its peers first.
const END_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn ended_at_once(status: ExitStatus) -> String {
    format!(
        "charon ended at once ({status}): its own log says why (syslog, of the facility daemon); a charon whose \
         socket is gone may run ({OTHER_PID_FILE})"
    )
}

pub(crate) fn does_not_listen(since: Duration) -> String {
    format!(
        "charon does not listen at {SOCKET} after {since:.0?}: is its VICI plugin installed (on Debian and Ubuntu: \
         strongswan-swanctl)?"
    )
}

/// Connects to whatever answers at its socket.
pub(crate) fn connect() -> io::Result<Vici> {
    Vici::connect(Path::new(SOCKET))
}

/// Record of a charon that flannel has started: its process, and the networks it serves.
pub(crate) struct Record {
    file: PathBuf,
    pub(crate) pid: Pid,
    pub(crate) networks: Vec<IpNet>,
}

impl Record {
    fn path(directory: &Path) -> PathBuf {
        directory.join("charon.pid")
    }

    /// Reads the record; `None` if there is none, or the process has ended.
    pub(crate) fn read(directory: &Path) -> Option<Self> {
        let file = Self::path(directory);
        let text = fs::read_to_string(&file).ok()?;
        let mut lines = text.lines();
        let pid = lines.next()?.parse().ok().and_then(Pid::from_raw)?;
        let networks = lines.filter_map(|line| line.parse().ok()).collect();
        is_charon(pid).then_some(Self { file, pid, networks })
    }

    pub(crate) fn write(directory: &Path, child: &Child, networks: &[IpNet]) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let networks: String = networks.iter().map(|network| format!("{network}\n")).collect();
        let record = format!("{}\n{networks}", child.id());
        replace_file(&Self::path(directory), record.as_bytes(), 0o644)
    }

    pub(crate) fn is_of(&self, networks: &[IpNet]) -> bool {
        self.networks
            .iter()
            .any(|ours| networks.iter().any(|it| it.contains(ours) || ours.contains(it)))
    }

    pub(crate) fn end(self) {
        let _ = kill_process(self.pid, Signal::TERM);
        let begin = Instant::now();
        while is_charon(self.pid) {
            if begin.elapsed() > END_TIMEOUT {
                let _ = kill_process(self.pid, Signal::KILL);
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = fs::remove_file(self.file);
    }
}

fn is_charon(pid: Pid) -> bool {
    let path = |name: &str| format!("/proc/{}/{name}", pid.as_raw_nonzero());
    // A zombie has no command line.
    let alive = fs::read(path("cmdline")).is_ok_and(|line| !line.is_empty());
    alive && fs::read_to_string(path("comm")).is_ok_and(|name| name.trim_end() == "charon")
}

/// Starts it, without waiting until it answers.
pub(crate) fn start() -> Result<Child, String> {
    remove_stale_pid_file();
    let program = program().ok_or(
        "there is no charon: install strongSwan with its VICI plugin (on Debian and Ubuntu: strongswan-charon \
         and strongswan-swanctl), or use another backend",
    )?;
    // Without them charon runs and reaches nobody.
    if let Some(taken) = IKE_PORTS.into_iter().find(|port| is_taken(*port)) {
        return Err(format!(
            "UDP port {taken} is taken by another program, and charon speaks with other nodes on it: stop that \
             program (ss -ulnp 'sport = :{taken}'), or use another backend"
        ));
    }
    let started = Command::new(&program)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .current_dir("/")
        // What ends flanneld at a terminal must not end it.
        .process_group(0)
        .spawn();
    started.map_err(|reason| format!("{} cannot be started: {reason}", program.display()))
}

fn is_taken(port: u16) -> bool {
    let bound = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

fn program() -> Option<PathBuf> {
    let usual = || PROGRAMS.iter().map(PathBuf::from).find(|path| path.is_file());
    SearchPath::of_path_alone().find("charon").or_else(usual)
}

/// Removes a stale pid file. charon does not start while a process of its predecessor's id lives, whatever that is by
/// now: after the container or the machine was restarted, it may be any.
fn remove_stale_pid_file() {
    let Ok(text) = fs::read_to_string(OTHER_PID_FILE) else { return };
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    if let Some(pid) = pid
        && test_kill_process(pid).is_ok()
        && !is_charon(pid)
    {
        tracing::warn!("{OTHER_PID_FILE} names a process that is not charon: removed");
        let _ = fs::remove_file(OTHER_PID_FILE);
    }
}

/// Unloads a secret, or a connection with its tunnels.
pub(crate) fn unload(vici: &mut Vici, key: &IpsecKey) -> Result<()> {
    match key {
        IpsecKey::Daemon => Ok(()),
        IpsecKey::Secret(owner) => {
            vici.try_command("unload-shared", &Message::default().text("id", secret_id(owner)))
        }
        IpsecKey::Connection(name) => {
            let name = name.to_string();
            vici.try_command("unload-conn", &Message::default().text("name", name.as_str()))?;
            let tunnel = Message::default().text("ike", name).text("force", "yes");
            vici.try_command("terminate", &tunnel.text("timeout", "-1"))
        }
    }
}

pub(crate) fn connections(vici: &mut Vici) -> Result<Vec<ConnectionName>> {
    let answer = vici.command("get-conns", &Message::default())?;
    Ok(answer.get_list("conns").iter().filter_map(|name| name.parse().ok()).collect())
}

/// Owners of flannel's secrets that charon has.
pub(crate) fn secrets(vici: &mut Vici) -> Result<Vec<std::net::IpAddr>> {
    let answer = vici.command("get-shared", &Message::default())?;
    Ok(answer.get_list("keys").iter().filter_map(|id| secret_owner(id)).collect())
}

/// Describes what is left of flannel in charon. `directory` is where flanneld keeps the record of it.
pub fn find_leftovers(directory: &Path) -> Vec<String> {
    if let Some(record) = Record::read(directory) {
        return vec![format!("charon (process {})", record.pid.as_raw_nonzero())];
    }
    // It belongs to somebody else and keeps running.
    let Ok(mut vici) = connect() else { return Vec::new() };
    let connections = connections(&mut vici).unwrap_or_default();
    connections.iter().map(|name| format!("connection {name} of charon")).collect()
}

/// Removes what is left. Returns what was removed and what could not be.
pub fn remove_leftovers(directory: &Path) -> (Vec<String>, Vec<String>) {
    let found = find_leftovers(directory);
    if found.is_empty() {
        let _ = fs::remove_file(Record::path(directory));
    } else if let Some(record) = Record::read(directory) {
        record.end();
    } else if let Err(error) =
        connect().map_err(Into::into).and_then(|vici| unload_all(vici, |_| true))
    {
        return (Vec::new(), vec![format!("take back what charon was told: {error}")]);
    }
    (found, Vec::new())
}

/// Unloads all of flannel's connections for which `ours` is true, and the secrets of their ends.
pub(crate) fn unload_all(mut vici: Vici, ours: impl Fn(&ConnectionName) -> bool) -> Result<()> {
    let (ours, others): (Vec<_>, Vec<_>) = connections(&mut vici)?.into_iter().partition(ours);
    for name in ours {
        unload(&mut vici, &IpsecKey::Connection(name))?;
    }
    for owner in secrets(&mut vici)? {
        let is_at = |name: &ConnectionName| [name.local, name.remote].contains(&owner);
        if !others.iter().any(is_at) {
            unload(&mut vici, &IpsecKey::Secret(owner))?;
        }
    }
    Ok(())
}
