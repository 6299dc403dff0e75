//! How much is logged: `-v`, `-vmodule` and `-log_backtrace_at`, as klog has them.
//!
//! | event | of flannel | of a library |
//! |---|---|---|
//! | error, warning | always | always |
//! | info | always | 2 |
//! | debug | 2 | 6 |
//! | trace | 4 | 8 |

use std::path::Path;
use std::str::FromStr;

use regex::Regex;
use tracing::{Level, Metadata};

#[derive(Clone, Debug, Default)]
pub struct Verbosity {
    pub level: i32,
    pub modules: Modules,
    pub backtrace_at: Option<SourceLine>,
}

impl Verbosity {
    /// Depends on nothing but where the event is in the source, so that the answer can be kept.
    pub fn shows(&self, event: &Metadata<'_>) -> bool {
        self.shows_at(event.level(), event.target(), event.file())
    }

    fn shows_at(&self, level: &Level, target: &str, file: Option<&str>) -> bool {
        let ours = target.starts_with("flannel");
        let needed = match (*level, ours) {
            (Level::ERROR | Level::WARN, _) | (Level::INFO, true) => return true,
            (Level::INFO, false) | (Level::DEBUG, true) => 2,
            (Level::TRACE, true) => 4,
            (Level::DEBUG, false) => 6,
            (Level::TRACE, false) => 8,
        };
        self.modules.level(target, file).unwrap_or(self.level) >= needed
    }
}

/// Levels of single source files: `reconcile=4,etcd*=2`. The first pattern that matches counts.
#[derive(Clone, Debug, Default)]
pub struct Modules(Vec<(Regex, i32)>);

impl Modules {
    fn level(&self, target: &str, file: Option<&str>) -> Option<i32> {
        let module = target.rsplit("::").next().unwrap_or(target);
        let file = file.and_then(|file| Path::new(file).file_stem()?.to_str());
        let matches = |pattern: &Regex| {
            pattern.is_match(module) || file.is_some_and(|file| pattern.is_match(file))
        };
        self.0.iter().find(|(pattern, _)| matches(pattern)).map(|(_, level)| *level)
    }
}

impl FromStr for Modules {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || "use pattern=N, such as reconcile=4,etcd*=2".to_owned();
        let parts = text.split(',').filter(|part| !part.is_empty());
        let modules = parts.map(|part| {
            let (pattern, level) = part.split_once('=').ok_or_else(wrong)?;
            let level: i32 = level.parse().map_err(|_| wrong())?;
            if pattern.is_empty() || level < 0 {
                return Err(wrong());
            }
            Ok((glob(pattern).map_err(|_| wrong())?, level))
        });
        modules.collect::<Result<_, _>>().map(Self)
    }
}

/// A line of the source, as the head of a log line names it: `main.rs:120`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    file: String,
    line: u32,
}

impl SourceLine {
    pub fn is(&self, file: &str, line: u32) -> bool {
        self.file == file && self.line == line
    }
}

impl FromStr for SourceLine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || "use file:N, such as main.rs:120".to_owned();
        let (file, line) = text.rsplit_once(':').ok_or_else(wrong)?;
        let line: u32 = line.parse().map_err(|_| wrong())?;
        if file.is_empty() || line == 0 {
            return Err(wrong());
        }
        Ok(Self { file: file.to_owned(), line })
    }
}

/// A whole text, in which `*` stands for any text and `?` for any character.
fn glob(pattern: &str) -> Result<Regex, regex::Error> {
    let pattern = regex::escape(pattern).replace(r"\*", ".*").replace(r"\?", ".");
    Regex::new(&format!("(?s)^{pattern}$"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verbosity(level: i32, modules: &str) -> Verbosity {
        let modules = modules.parse().expect("modules of a test are valid");
        Verbosity { level, modules, backtrace_at: None }
    }

    #[test]
    fn details_come_at_2_and_everything_at_4() {
        let shown =
            |level, event: Level| verbosity(level, "").shows_at(&event, "flanneld::run", None);
        for always in [Level::ERROR, Level::WARN, Level::INFO] {
            assert!(shown(0, always) && shown(-1, always), "{always}");
        }
        assert!(!shown(1, Level::DEBUG) && shown(2, Level::DEBUG));
        assert!(!shown(3, Level::TRACE) && shown(4, Level::TRACE));
    }

    #[test]
    fn libraries_are_quieter_than_flannel_but_their_warnings_are_heard() {
        let shown = |level, event: Level| verbosity(level, "").shows_at(&event, "h2::codec", None);
        assert!(shown(0, Level::ERROR) && shown(0, Level::WARN));
        assert!(!shown(1, Level::INFO) && shown(2, Level::INFO));
        assert!(!shown(5, Level::DEBUG) && shown(6, Level::DEBUG));
        assert!(!shown(7, Level::TRACE) && shown(8, Level::TRACE));
    }

    #[test]
    fn a_module_level_overrides_the_general_one_both_ways() {
        let verbosity = verbosity(2, "reconcile=4,etcd*=0,re*=9");
        let shown =
            |event: Level, target: &str, file: &str| verbosity.shows_at(&event, target, Some(file));
        assert!(shown(
            Level::TRACE,
            "flannel_kernel::reconcile",
            "crates/appliers/kernel/src/reconcile/mod.rs"
        ));
        assert!(shown(Level::TRACE, "flannel_kernel", "src/reconcile.rs"));
        assert!(!shown(Level::DEBUG, "flannel_store::etcd", "src/etcd/mod.rs"));
        assert!(!shown(Level::DEBUG, "flannel_store::etcd_watch", "src/etcd_watch.rs"));
        assert!(shown(Level::DEBUG, "flannel_store::kube", "src/kube.rs"), "the general level");
        assert!(!shown(Level::TRACE, "flannel_store::kube", "src/kube.rs"), "the general level");
    }

    #[test]
    fn patterns_without_a_level_are_refused() {
        for wrong in
            ["reconcile", "reconcile=", "reconcile=x", "=2", "a=-1", "a=1,b", "a=99999999999"]
        {
            assert!(wrong.parse::<Modules>().is_err(), "{wrong}");
        }
        let level = |text: &str| text.parse::<Modules>().expect("it is one").level("a", None);
        assert_eq!(level(""), None);
        assert_eq!(level(",a=1,"), Some(1), "a stray comma is no harm");
    }

    #[test]
    fn a_source_line_is_a_file_and_a_line() {
        let line: SourceLine = "main.rs:120".parse().expect("it is one");
        assert!(line.is("main.rs", 120) && !line.is("main.rs", 12) && !line.is("lib.rs", 120));
        for wrong in ["", "main.rs", "main.rs:", ":1", "main.rs:0", "main.rs:-1", "main.rs:x"] {
            assert!(wrong.parse::<SourceLine>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn globs_match_as_in_a_shell() {
        let glob = |pattern: &str, text: &str| glob(pattern).expect("a pattern").is_match(text);
        for (pattern, text, matches) in [
            ("", "", true),
            ("*", "", true),
            ("*", "anything", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("abc", "abcd", false),
            ("abcd", "abc", false),
            ("[ab]", "a", false),
        ] {
            assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
        }
        let slow = "a*".repeat(200) + "b";
        assert!(!glob(&slow, &"a".repeat(500)), "and at once");
    }
}
