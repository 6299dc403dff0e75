//! The table of flags as people read it: the usage text and `docs/flags.md`.

use super::flags::FLAGS;

const EXAMPLES: &str = "
Examples:
  flanneld --etcd-endpoints=http://10.0.0.1:2379 --ip-masq     leases in etcd
  flanneld --kube-subnet-mgr --ip-masq                         in a pod of Kubernetes
  flanneld --listen=:10253 --remote=self                       serve leases, and be a node
  flanneld --remote=10.0.0.1                                   a node of that lease server
";

/// Laid out as Go's `PrintDefaults` does, by subject.
pub(super) fn usage(program: &str) -> String {
    let mut text = format!("Usage: {program} [OPTION]...\n{EXAMPLES}");
    let mut subject = "";
    for flag in FLAGS {
        if flag.subject != subject {
            subject = flag.subject;
            text += &format!("\n{subject}:\n");
        }
        let value = flag.value_name();
        let gap = if value.is_empty() { "" } else { " " };
        let default = match flag.default_text().as_str() {
            "" => String::new(),
            default if value == "string" => format!(" (default {default:?})"),
            default => format!(" (default {default})"),
        };
        text += &format!("  -{}{gap}{value}\n    \t{}{default}\n", flag.name, flag.help);
    }
    text += "\nEach flag can also be given as an environment variable: -ip-masq as FLANNELD_IP_MASQ=true.\n";
    text
}

#[cfg(test)]
mod tests {
    use super::super::flags::{Kind, variable};
    use super::*;

    const HEAD: &str = "\
# Flags of flanneld

<!-- Made from the table in crates/programs/node/src/options/flags.rs:
     UPDATE_DOCS=1 cargo test -p flannel-node options -->

Every flag can be written `-flag` or `--flag`, with its value as `-flag=value` or `-flag value`. A
boolean takes a value only as `-flag=false`. Integers may be written `10`, `0x10` or `1_000`; what is a
time also with a unit, `90s` or `1h30m`, which the Go flannel does not read. A flag given twice takes the last value; `iface` and `iface-regex` collect all of them.
Reading stops at the first word that is not a flag, and at `--`.

A flag that is not on the command line takes the value of its environment variable, if that is not
empty. A variable whose value cannot be read is reported in the log and ignored.

`-help` prints the list and exits with status 0, `-version` the version. A command line that cannot be
read ends with status 2, a value that can be read but not used with status 1; both say how to fix
it.

| flag | variable | kind | default | meaning |
|---|---|---|---|---|
";

    const LOG: &str = "
## Log verbosity

Information, warnings and errors are always logged. Details come with `-v=2`, everything with `-v=4`.
The libraries flanneld is made of are quieter: information with `-v=2`, details with `-v=6`,
everything with `-v=8`.
`-vmodule=reconcile=4,etcd*=2` sets the level of single source files, by file or module name without
`.rs`; `*` and `?` stand for any text and any character.
";

    fn page() -> String {
        let mut page = HEAD.to_owned();
        for flag in FLAGS {
            let kind = match flag.kind {
                Kind::Text(..) => "text",
                Kind::List(_) => "text, repeatable",
                Kind::Integer(..) | Kind::Level(_) => "integer",
                Kind::Span(..) => "integer, or a time",
                Kind::Bool(..) => "boolean",
                Kind::Modules(_) => "`pattern=N,...`",
                Kind::SourceLine(_) => "`file:N`",
            };
            let default = match (flag.default_text(), kind) {
                (default, _) if !default.is_empty() => format!("`{default}`"),
                (_, "boolean") => "`false`".to_owned(),
                (_, "integer") => "`0`".to_owned(),
                _ => String::new(),
            };
            let (name, variable) = (flag.name, variable(flag.name));
            // The version is printed before the environment is looked at.
            let variable = if name == "version" { String::new() } else { format!("`{variable}`") };
            page += &format!("| `{name}` | {variable} | {kind} | {default} | {} |\n", flag.help);
        }
        page + LOG
    }

    /// Compares with a file of the repository, or rewrites it when `UPDATE_DOCS` is set.
    fn stays_equal_to(file: &str, text: &str) {
        // Cargo runs tests in the directory of their package.
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(file, text).expect("the file can be written");
        }
        let kept = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            kept == text,
            "{file} is behind the table of flags: run the test with UPDATE_DOCS=1"
        );
    }

    #[test]
    fn the_page_of_flags_is_the_table() {
        stays_equal_to("../../../docs/flags.md", &page());
    }

    #[test]
    fn the_usage_text_is_the_golden_one() {
        stays_equal_to("tests/usage.txt", &usage("flanneld"));
    }

    #[test]
    fn every_flag_is_defined_once_and_explained() {
        let mut names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "a flag is defined twice");
        for flag in FLAGS {
            assert!(!flag.help.is_empty() && !flag.help.contains(['\n', '|']), "{}", flag.name);
        }
    }
}
