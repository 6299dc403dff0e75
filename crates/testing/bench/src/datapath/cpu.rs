//! Processor time of those who take part: this process, the daemons of the path, and the kernel's own threads
//! that finish what is left over (`ksoftirqd`). Not the whole machine's: it may have other work.

use std::fs;

pub(super) struct Cpu {
    others: Vec<u32>,
}

impl Cpu {
    /// Of this process, the given ones, and ksoftirqd.
    pub(super) fn of(mut others: Vec<u32>) -> Self {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            if name.starts_with("ksoftirqd") {
                others.push(pid);
            }
        }
        others.push(std::process::id());
        Self { others }
    }

    /// In seconds, since they began.
    pub(super) fn spent(&self) -> f64 {
        self.others.iter().map(|pid| ticks(*pid)).sum::<f64>() / 100.0
    }
}

/// Ticks, of which Linux counts 100 in a second.
fn ticks(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    field(11) + field(12)
}
