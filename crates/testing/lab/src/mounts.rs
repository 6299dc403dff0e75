//! What a node sees of the file system: the host's, except for the places that belong to a node.
//!
//! All functions work on the mount namespace of the calling thread, which must be its own.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_bind, mount_change, move_mount, open_tree, unmount,
};

use crate::error::{Context, LabError, Result};

/// Directories of the host that every node has for itself, besides `/run` and `/sys`.
const PRIVATE: [&str; 3] = ["/var/lib/cni", "/var/lib/flannel", "/etc/cni"];
/// Every node is a machine of its own.
const MACHINE_ID: &str = "/etc/machine-id";
/// Where container runtimes keep the network namespaces of pods.
const NAMESPACES: &str = "/run/netns";

/// Makes the mount namespace that all others of the lab are copied from: nothing propagates to the
/// host, and every mount point that nodes need exists without having been made on the host.
pub(crate) fn prepare_base() -> Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context(|| "make the lab's mounts private".into())?;
    tmpfs("/run")?;
    let mut covered = Vec::new();
    for place in PRIVATE.into_iter().chain([MACHINE_ID]) {
        if Path::new(place).exists() {
            continue;
        }
        let Some(parent) = existing_ancestor(Path::new(place)) else { continue };
        if !covered.contains(&parent) {
            overlay(&parent).map_err(|error| LabError::Unsupported {
                what: format!("a private {place} ({error})"),
                needs: format!("overlayfs in the kernel, or an existing {place}"),
            })?;
            covered.push(parent);
        }
        let made = match place {
            MACHINE_ID => fs::write(place, ""),
            directory => fs::create_dir_all(directory),
        };
        made.context(|| format!("create {place} for the lab"))?;
    }
    Ok(())
}

/// What a node's restart does to its mounts: all below `/run` and of its pods are gone, and `/run` is empty.
pub(crate) fn renew_node() -> Result<()> {
    let mounted = fs::read_to_string("/proc/1/mounts").context(|| "list a node's mounts".into())?;
    let gone = |at: &str| at.starts_with("/run/") || at.starts_with("/var/lib/kubelet/");
    for at in mounted.lines().rev().filter_map(|line| line.split(' ').nth(1)).filter(|at| gone(at))
    {
        let _ = unmount(at, UnmountFlags::DETACH);
    }
    prepare_run()?;
    own_sys()
}

/// Makes the places private in which a node keeps its own files, and shows its own devices in /sys.
/// `label`: what the node is called, by which it has its machine id.
pub(crate) fn prepare_node(label: &str) -> Result<()> {
    prepare_run()?;
    own_machine_id(label)?;
    for dir in PRIVATE {
        tmpfs(dir)?;
    }
    own_sys()
}

fn prepare_run() -> Result<()> {
    tmpfs("/run")?;
    for dir in ["/run/flannel", "/run/lock", NAMESPACES] {
        fs::create_dir_all(dir).context(|| format!("create {dir} for a node"))?;
    }
    Ok(())
}

/// Shows a pod's network namespace in the calling thread's `/run/netns`, as container runtimes do: tools find it there
/// by the pod's address.
pub(crate) fn show_namespace(net: BorrowedFd<'_>, name: &str) -> Result<()> {
    let file = format!("{NAMESPACES}/{name}");
    // Pods are counted from one when their node has another subnet: one of the former subnet may have this name.
    hide_namespace(name);
    let show = || -> io::Result<()> {
        fs::write(&file, "")?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(net, "", flags)?;
        Ok(move_mount(&tree, "", CWD, &*file, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    };
    show().context(|| format!("show a pod's namespace at {file}"))
}

/// Undoes [`show_namespace`], so that the namespace goes with the pod.
pub(crate) fn hide_namespace(name: &str) {
    let file = format!("{NAMESPACES}/{name}");
    let _ = unmount(&*file, UnmountFlags::DETACH);
    let _ = fs::remove_file(&file);
}

/// A pod's file system is a copy of its node's: it must not keep the namespaces of other pods.
pub(crate) fn unmount_namespaces() {
    for entry in fs::read_dir(NAMESPACES).into_iter().flatten().flatten() {
        let _ = unmount(entry.path(), UnmountFlags::DETACH);
    }
}

/// The file stays when the node is restarted: it is not reached through /run then, but it is mounted.
fn own_machine_id(label: &str) -> Result<()> {
    let id = label.bytes().fold(0_u128, |id, byte| id << 8 | u128::from(byte));
    let file = "/run/machine-id";
    fs::write(file, format!("{id:032x}\n")).context(|| format!("write {file} for a node"))?;
    mount_bind(file, MACHINE_ID).context(|| format!("mount a private {MACHINE_ID}"))?;
    fs::remove_file(file).context(|| format!("remove {file} of a node"))
}

/// Shows in /sys the devices of the thread's network namespace. The cgroup tree stays visible.
pub(crate) fn own_sys() -> Result<()> {
    let cgroups = open_tree(
        CWD,
        "/sys/fs/cgroup",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE,
    );
    mount("sysfs", "/sys", "sysfs", secure(), None).context(|| "mount /sys for a node".into())?;
    // A host without cgroups has nothing to carry over.
    if let Ok(tree) = cgroups {
        let _ =
            move_mount(&tree, "", CWD, "/sys/fs/cgroup", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
    }
    Ok(())
}

/// Shows the processes of the calling process's PID namespace in /proc.
pub(crate) fn own_proc() -> io::Result<()> {
    mount("proc", "/proc", "proc", secure() | MountFlags::NOEXEC, None)?;
    Ok(())
}

fn tmpfs(at: &str) -> Result<()> {
    mount("tmpfs", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=0755"))
        .context(|| format!("mount a private {at}"))
}

/// Covers a directory of the host so that what is made in it stays in the lab.
fn overlay(dir: &Path) -> io::Result<()> {
    let name = dir.to_string_lossy().replace('/', "-");
    let [upper, work] = ["upper", "work"].map(|part| format!("/run/lab{name}/{part}"));
    fs::create_dir_all(&upper)?;
    fs::create_dir_all(&work)?;
    let options = format!("lowerdir={},upperdir={upper},workdir={work}", dir.display());
    let options = std::ffi::CString::new(options)?;
    mount("overlay", dir, "overlay", MountFlags::empty(), Some(options.as_c_str()))?;
    Ok(())
}

fn existing_ancestor(path: &Path) -> Option<std::path::PathBuf> {
    path.ancestors().find(|dir| dir.is_dir()).map(Path::to_path_buf)
}

fn secure() -> MountFlags {
    MountFlags::NOSUID | MountFlags::NODEV
}
