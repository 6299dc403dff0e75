//! `scripts/test`: every check of this clone.
//!
//! What fails soonest comes first, and ends the run. Then rows run beside each other: tests that mostly wait, tests that
//! compute, clusters and the virtual machine, and what cargo still has to check. The last has the processor when nobody
//! else wants it. What takes long to get is got meanwhile. At the end run the tests that need the machine alone.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::alone::ALONE;
use crate::process::{self, TEST_PROGRAM_TIMEOUT, prefixed};
use crate::programs::{Kind, TestProgram};
use crate::report::{Report, StepTime};
use crate::test_output::{Ended, Outcome};
use crate::tree::{self, BuildDir};

/// What `scripts/deps` gets for most tests.
const TEST_NEEDS: &[&str] = &[
    "cargo-deny",
    "iproute2",
    "nft",
    "iptables",
    "etcd",
    "go-flannel",
    "cni-plugins",
    "podman",
    "docker",
    "busybox",
    "prometheus",
    "schemathesis",
    "chromium",
    "axe",
];

/// What takes long to get, and only tests with Kubernetes and the virtual machine need.
const CLUSTER_NEEDS: &[&str] =
    &["kubernetes", "containerd", "pod-image", "go-manifests", "helm", "vm"];

/// What unit tests need of it.
const UNIT_TEST_NEEDS: &[&str] = &["iproute2", "nft", "iptables"];

/// Files in `tests/` whose tests mostly wait, for leases, servers and pauses: twice as many run at a time as there are
/// processors.
const WAITING: &[&str] = &["browser", "cli", "e2e", "etcd", "kube", "lease_server"];

/// Those that need some of [`CLUSTER_NEEDS`], as all of flannel-kube do: they come last.
const WITH_KUBERNETES: &[&str] =
    &["chart", "kube", "kubernetes", "manifests", "migrate_check", "plugin"];

/// Those that need the container image.
const WITH_IMAGE: &[&str] = &["kubernetes"];

/// Those with tests for another kernel than that at hand, which are marked `#[ignore]`.
const IN_VM: &[&str] = &["e2e", "planted_faults"];

/// What is shipped.
const SHIPPED: &[&str] = &["flanneld", "flannelctl", "flannel-cni"];

/// What is got over a slow network takes as long as it takes.
const NO_TIMEOUT: Duration = Duration::MAX;

/// Gets the processor when nobody else wants it. `nice` would leave it a tenth, and let others wait for its turn to end.
const IDLE: &[&str] = &["chrt", "--idle", "0"];

pub(crate) fn run(arguments: &[String]) -> io::Result<bool> {
    let started = Instant::now();
    let suite = Suite::prepare()?;
    let finished = if arguments.is_empty() { suite.run_all() } else { suite.run_some(arguments) };
    finished?;
    let alone = if arguments.is_empty() { ALONE } else { &[] };
    eprint!("{}", suite.report.summary(alone, started.elapsed()));
    Ok(suite.report.all_passed())
}

struct Suite {
    build: BuildDir,
    /// The target that everything is built for: tests, image and plugin.
    target: String,
    report: Report,
}

impl Suite {
    fn prepare() -> io::Result<Self> {
        let setting = |name: &str| {
            std::env::var(name)
                .map_err(|_| io::Error::other(format!("no {name}: call scripts/test instead")))
        };
        let build = BuildDir::claim(Path::new(&setting("FLANNEL_CACHE")?))?;
        let changed = tree::sync(&std::env::current_dir()?, &build.tree)?;
        eprintln!(
            "xtask: building in {}; {changed} files differ from the last run",
            build.tree.display()
        );
        Ok(Self { build, target: setting("FLANNEL_TEST_TARGET")?, report: Report::default() })
    }

    fn run_all(&self) -> io::Result<()> {
        let first = Row::on_terminal(self, "checks");
        let passed = first.step("get-shellcheck", self.command("scripts/deps", &["lint"]))?
            && first.step(
                "shellcheck",
                self.command("sh", &["-c", "shellcheck scripts/* dist/*.sh .ci/run"]),
            )?
            && first.step("format", self.command("cargo", &["fmt", "--all", "--check"]))?
            && first.step("lock-file-is-current", self.lock_file_check())?;
        if !passed {
            return Ok(());
        }
        let needs = Row::beside(self, "what-tests-need");
        let mut getting = needs.start(&mut self.command("scripts/deps", TEST_NEEDS))?;
        let began = Instant::now();
        let Some(programs) = self.build(&["--workspace", "--all-targets"])? else {
            process::kill_with_descendants(&mut getting);
            return Ok(());
        };
        let ended = process::wait(&mut getting, NO_TIMEOUT)?;
        needs.show();
        if !needs.finish("what-tests-need", began, ended) {
            return Ok(());
        }
        let rows: [(&'static str, Steps); 5] = [
            ("what-clusters-need", Self::get_what_clusters_need),
            ("waiting", Self::test_what_waits),
            ("computing", Self::test_what_computes),
            ("clusters", Self::test_in_clusters_and_vm),
            ("cargo", Self::check_with_cargo),
        ];
        thread::scope(|scope| {
            for (name, steps) in rows {
                let programs = &programs;
                scope.spawn(move || Row::beside(self, name).run_steps(steps, programs).show());
            }
        });
        Row::beside(self, "alone").run_steps(Self::test_alone, &programs).show();
        Ok(())
    }

    /// `scripts/test -p CRATE` and the like: what the chosen tests need, and `cargo test` itself.
    fn run_some(&self, arguments: &[String]) -> io::Result<()> {
        let row = Row::on_terminal(self, "chosen");
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let chosen_crates =
            words.iter().any(|word| matches!(*word, "-p" | "--package" | "--workspace" | "--all"));
        let all: &[&str] = if chosen_crates { &[] } else { &["--workspace"] };
        let before_dashes: Vec<&str> =
            words.iter().copied().take_while(|word| *word != "--").collect();
        let Some(chosen) = self.build(&[all, &before_dashes].concat())? else { return Ok(()) };
        let has_integration_tests = chosen.iter().any(|program| program.kind == Kind::Integration);
        let needs = match has_integration_tests {
            true => [TEST_NEEDS, CLUSTER_NEEDS].concat(),
            false => UNIT_TEST_NEEDS.to_vec(),
        };
        if !row.step("get-what-tests-need", self.command("scripts/deps", &needs))? {
            return Ok(());
        }
        // Integration tests start programs of other crates.
        let programs = self.cargo("build", &["--workspace", "--bins"]);
        if has_integration_tests && !row.step("build-programs", programs)? {
            return Ok(());
        }
        let needs_image = chosen.iter().any(|program| is_one_of(program, WITH_IMAGE));
        if needs_image && !row.step("image", self.image())? {
            return Ok(());
        }
        let mut test = self.cargo("test", &[]);
        if !process::is_root() {
            test.args(["--config", "target.\"cfg(unix)\".runner=\"sudo -E\""]);
        }
        test.args(all).args(words);
        row.step("test", test)?;
        Ok(())
    }

    /// Builds test programs, and with them all programs that tests start.
    fn build(&self, arguments: &[&str]) -> io::Result<Option<Vec<TestProgram>>> {
        let row = Row::on_terminal(self, "checks");
        let mut command =
            self.cargo("test", &["--no-run", "--message-format=json-render-diagnostics"]);
        command.args(arguments);
        let messages = self.build.logs.join("build.json");
        command.stdout(std::fs::File::create(&messages)?);
        if !row.step("build", command)? {
            return Ok(None);
        }
        let messages = std::fs::read_to_string(messages)?;
        let programs: Vec<TestProgram> = messages.lines().filter_map(TestProgram::parse).collect();
        if programs.is_empty() {
            return Err(io::Error::other("cargo names no test program"));
        }
        Ok(Some(programs))
    }

    fn test_what_waits(&self, row: &Row<'_>, programs: &[TestProgram]) -> io::Result<()> {
        let threads = format!("--test-threads={}", 2 * thread::available_parallelism()?.get());
        let programs = programs.iter().filter(|program| is_one_of(program, WAITING));
        self.test_kubernetes_last(row, programs, |program| {
            let alone = ALONE.iter().filter(|alone| alone.program == program.name);
            let skipped = alone.map(|alone| format!("--skip={}", alone.filter));
            std::iter::once(threads.clone()).chain(skipped).collect()
        })
    }

    fn test_what_computes(&self, row: &Row<'_>, programs: &[TestProgram]) -> io::Result<()> {
        row.step("cni-suites", self.command("scripts/cni-suites", &[]))?;
        let mut schemathesis =
            self.command("scripts/schemathesis", &["--generation-deterministic"]);
        schemathesis.env("SCHEMATHESIS_EXAMPLES", "10");
        row.step("schemathesis", schemathesis)?;
        let programs =
            programs.iter().filter(|it| !is_one_of(it, WAITING) && !is_one_of(it, WITH_IMAGE));
        self.test_kubernetes_last(row, programs, |_| Vec::new())
    }

    /// Tests that need Kubernetes wait until another row has got it.
    fn test_kubernetes_last<'a>(
        &self,
        row: &Row<'_>,
        programs: impl Iterator<Item = &'a TestProgram>,
        arguments: impl Fn(&TestProgram) -> Vec<String>,
    ) -> io::Result<()> {
        let (last, first): (Vec<_>, Vec<_>) = programs.partition(|it| needs_kubernetes(it));
        for program in first {
            row.test(program, &arguments(program))?;
        }
        self.get_what_clusters_need(row, &[])?;
        for program in last {
            row.test(program, &arguments(program))?;
        }
        Ok(())
    }

    /// `scripts/deps` waits for what another one of it is getting.
    fn get_what_clusters_need(&self, row: &Row<'_>, _: &[TestProgram]) -> io::Result<()> {
        row.step("get-what-clusters-need", self.command("scripts/deps", CLUSTER_NEEDS))?;
        Ok(())
    }

    fn test_in_clusters_and_vm(&self, row: &Row<'_>, programs: &[TestProgram]) -> io::Result<()> {
        let mut plugin = self.command("scripts/plugin", &["--programs"]);
        plugin.arg(self.programs_dir()).arg(self.build.target.join("plugin"));
        row.step("static-plugin", plugin)?;
        self.get_what_clusters_need(row, programs)?;
        if row.step("image", self.image())? {
            for program in programs.iter().filter(|program| is_one_of(program, WITH_IMAGE)) {
                row.test(program, &[])?;
            }
        }
        self.test_in_vm(row, programs)
    }

    /// Boots the machine once, for all.
    fn test_in_vm(&self, row: &Row<'_>, programs: &[TestProgram]) -> io::Result<()> {
        let programs: Vec<&TestProgram> =
            programs.iter().filter(|program| is_one_of(program, IN_VM)).collect();
        let lines = programs.iter().map(|program| {
            let (directory, executable) =
                (program.directory.display(), program.executable.display());
            format!("cd '{directory}' && '{executable}' --ignored || status=1\n")
        });
        let script = format!("status=0\n{}exit $status\n", lines.collect::<String>());
        let mut command = self.command("scripts/vm", &["sh", "-c", &script]);
        command.env("FLANNEL_VM_SECONDS", "2400");
        row.run("vm", prefixed(&["nice"], &command), programs.len())?;
        Ok(())
    }

    /// What needs cargo's lock stands in one row.
    fn check_with_cargo(&self, row: &Row<'_>, _: &[TestProgram]) -> io::Result<()> {
        let deny = self.cache().join("bin/cargo-deny");
        let deny = |words: &[&str]| {
            let mut command = self.command(&deny, &["--locked"]);
            command.args(words);
            command
        };
        row.step("deny", deny(&["check", "bans", "licenses", "sources"]))?;
        self.check_advisories(row, deny)?;
        row.step("doc-tests", prefixed(IDLE, &self.cargo("test", &["--doc", "--workspace"])))?;
        // Tests may turn on features of dependencies that a program lacks when it is built as it is shipped.
        let mut shipped = self.cargo("check", &["--bins"]);
        shipped.args(SHIPPED.iter().flat_map(|name| ["-p", name]));
        row.step("shipped-programs-compile-alone", prefixed(IDLE, &shipped))?;
        let mut clippy = self.cargo("clippy", &["--workspace", "--all-targets"]);
        clippy.args(["--", "-D", "warnings"]);
        row.step("clippy", prefixed(IDLE, &clippy))?;
        Ok(())
    }

    /// Without a network the database of an earlier run has to do; without one, the step is skipped and says so.
    fn check_advisories(&self, row: &Row<'_>, deny: impl Fn(&[&str]) -> Command) -> io::Result<()> {
        let mut fetching = row.start(&mut deny(&["fetch", "db"]))?;
        if fetching.wait()?.success() {
            row.step("advisories", deny(&["check", "advisories"]))?;
            return Ok(());
        }
        let database = cargo_home().join("advisory-dbs");
        let entries = std::fs::read_dir(&database).into_iter().flatten().flatten();
        if entries.filter(|entry| entry.path().is_dir()).count() > 0 {
            row.step("advisories-of-an-earlier-run", deny(&["--offline", "check", "advisories"]))?;
        } else {
            let why = "the RustSec database cannot be fetched, and there is none in";
            self.report.skip(row.name, "advisories", format!("{why} {}", database.display()));
        }
        Ok(())
    }

    fn test_alone(&self, row: &Row<'_>, programs: &[TestProgram]) -> io::Result<()> {
        for program in programs.iter().filter(|program| program.kind == Kind::Integration) {
            let filters = ALONE.iter().filter(|alone| alone.program == program.name);
            let filters: Vec<String> = filters.map(|alone| alone.filter.to_owned()).collect();
            if !filters.is_empty() {
                row.test(program, &[vec!["--test-threads=1".to_owned()], filters].concat())?;
            }
        }
        Ok(())
    }

    fn image(&self) -> Command {
        let mut command = self.command("scripts/image", &["--profile", "dev", "--programs"]);
        command.arg(self.programs_dir()).arg(self.image_archive());
        command
    }

    fn image_archive(&self) -> PathBuf {
        self.build.target.join("flannel-image.tar")
    }

    fn lock_file_check(&self) -> Command {
        self.command("sh", &["-c", "cargo metadata --locked --format-version 1 >/dev/null"])
    }

    fn cargo(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = self.command("cargo", &[verb, "--locked", "--target", &self.target]);
        command.args(arguments);
        command
    }

    /// A command that runs in the tree, with what tests and scripts are told by the environment.
    fn command(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Command {
        // A path with a slash is not looked up in the new directory by all systems.
        let program = program.as_ref();
        let program = if program.components().count() > 1 {
            self.build.tree.join(program)
        } else {
            program.to_owned()
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(&self.build.tree)
            .env("CARGO_TARGET_DIR", &self.build.target)
            .env("CARGO_INCREMENTAL", "0")
            .env("FLANNEL_BIN_DIR", self.programs_dir())
            .env("FLANNEL_TEST_IMAGE", self.image_archive());
        command
    }

    fn programs_dir(&self) -> PathBuf {
        self.build.target.join(&self.target).join("debug")
    }

    fn cache(&self) -> PathBuf {
        self.build.tree.ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
    }
}

fn cargo_home() -> PathBuf {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home).unwrap_or_default()
}

fn needs_kubernetes(program: &TestProgram) -> bool {
    let is_of_kube = program.kind == Kind::Integration && program.package == "flannel-kube";
    is_of_kube || is_one_of(program, WITH_KUBERNETES)
}

type Steps = fn(&Suite, &Row<'_>, &[TestProgram]) -> io::Result<()>;

fn is_one_of(program: &TestProgram, names: &[&str]) -> bool {
    program.kind == Kind::Integration && names.contains(&&*program.name)
}

/// Steps that run one after the other.
struct Row<'a> {
    suite: &'a Suite,
    name: &'static str,
    /// Where its steps print, unless that is the terminal.
    log: Option<PathBuf>,
}

impl<'a> Row<'a> {
    fn on_terminal(suite: &'a Suite, name: &'static str) -> Self {
        Self { suite, name, log: None }
    }

    /// A row that runs beside others: what it prints is shown when it ends.
    fn beside(suite: &'a Suite, name: &'static str) -> Self {
        eprintln!("==> {name}: begins");
        Self { suite, name, log: Some(suite.build.logs.join(format!("{name}.log"))) }
    }

    /// A row that cannot go on has failed; the others do go on.
    fn run_steps(self, steps: Steps, programs: &[TestProgram]) -> Self {
        let began = Instant::now();
        if let Err(error) = steps(self.suite, &self, programs) {
            let failures = vec![error.to_string()];
            let outcome = Outcome { failures, ..Outcome::default() };
            let took = StepTime { elapsed: began.elapsed(), ..StepTime::default() };
            self.suite.report.add(self.name, "row", took, outcome);
        }
        self
    }

    fn show(&self) {
        if let Some(log) = &self.log {
            self.suite.report.show_log(self.name, log);
        }
    }

    fn start(&self, command: &mut Command) -> io::Result<std::process::Child> {
        let started = match &self.log {
            Some(log) => process::spawn_to_log(command, log),
            None => command.spawn(),
        };
        let program = command.get_program().to_string_lossy().into_owned();
        started.map_err(|error| io::Error::other(format!("cannot start {program}: {error}")))
    }

    /// Runs a command that is one check.
    fn step(&self, name: &str, mut command: Command) -> io::Result<bool> {
        self.announce(name, &command);
        let began = Instant::now();
        let ended = process::wait(&mut self.start(&mut command)?, NO_TIMEOUT)?;
        Ok(self.finish(name, began, ended))
    }

    fn finish(&self, name: &str, began: Instant, (ended, processor): (Ended, Duration)) -> bool {
        let failures = if ended.is_success() { Vec::new() } else { vec![ended.to_string()] };
        let outcome = Outcome { passed: usize::from(ended.is_success()), ignored: 0, failures };
        self.suite.report.add(
            self.name,
            name,
            StepTime { elapsed: began.elapsed(), processor },
            outcome,
        )
    }

    /// Runs a test program as cargo would.
    fn test(&self, program: &TestProgram, arguments: &[String]) -> io::Result<bool> {
        let mut command = self.suite.command(&program.executable, &[]);
        command
            .args(arguments)
            .current_dir(&program.directory)
            .env("CARGO_MANIFEST_DIR", &program.directory);
        self.run(&program.label(), process::as_root(&command), 1)
    }

    /// Runs a command that starts so many test programs.
    fn run(&self, name: &str, mut command: Command, programs: usize) -> io::Result<bool> {
        self.announce(name, &command);
        let began = Instant::now();
        let log = self.suite.build.logs.join(format!(
            "{}-{}.log",
            self.name,
            name.replace([' ', '/'], "-")
        ));
        let mut child = process::spawn_to_log(&mut command, &log)?;
        let (ended, processor) = process::wait(&mut child, TEST_PROGRAM_TIMEOUT)?;
        let took = StepTime { elapsed: began.elapsed(), processor };
        let output = std::fs::read(&log)?;
        self.print(&output)?;
        let outcome = Outcome::of(&String::from_utf8_lossy(&output), programs, ended);
        Ok(self.suite.report.add(self.name, name, took, outcome))
    }

    fn announce(&self, name: &str, command: &Command) {
        let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> = [command.get_program().to_string_lossy().into_owned()]
            .into_iter()
            .chain(words)
            .collect();
        let _ = self.print(format!("\n==> {name}: {}\n", words.join(" ")).as_bytes());
    }

    fn print(&self, bytes: &[u8]) -> io::Result<()> {
        use std::io::Write as _;
        match &self.log {
            Some(log) => {
                std::fs::File::options().create(true).append(true).open(log)?.write_all(bytes)
            }
            None => io::stderr().write_all(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn script(directory: &Path, name: &str, text: &str) -> TestProgram {
        let executable = directory.join(name);
        fs::write(&executable, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
        TestProgram {
            package: "flanneld".into(),
            name: name.into(),
            kind: Kind::Integration,
            executable,
            directory: directory.to_owned(),
        }
    }

    #[test]
    fn row_goes_on_after_a_crash_and_the_run_is_red() {
        let home = std::env::temp_dir().join(format!("xtask-{}-row", std::process::id()));
        let suite = Suite {
            build: BuildDir::claim(&home).unwrap(),
            target: "some-target".into(),
            report: Report::default(),
        };
        let ok = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let programs = [
            script(&home, "crashes", "echo running 1 test; kill -SEGV $$"),
            script(&home, "passes", &format!("pwd; echo $FLANNEL_BIN_DIR; echo '{ok}'")),
            script(&home, "says-nothing", ""),
        ];
        let steps: Steps = |_, row, programs| {
            for program in programs {
                row.test(program, &[])?;
            }
            Ok(())
        };
        Row::beside(&suite, "waiting").run_steps(steps, &programs);
        let summary = suite.report.summary(&[], Duration::ZERO);
        let log = fs::read_to_string(suite.build.logs.join("waiting.log")).unwrap();
        fs::remove_dir_all(&home).unwrap();
        assert!(!suite.report.all_passed());
        assert!(summary.contains("failed: flanneld crashes: 1 of 1 programs"), "{summary}");
        assert!(summary.contains("failed: flanneld says-nothing: 1 of 1 programs"), "{summary}");
        assert!(summary.ends_with("3 passed, 2 failed\n"), "{summary}");
        assert!(log.contains("some-target/debug\n"), "{log}");
        assert!(log.contains(&format!("{}\n", home.display())), "{log}");
    }
}
