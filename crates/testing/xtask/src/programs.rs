//! The test programs, from what cargo says of its build.

use std::path::PathBuf;

/// A test program that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// Name of its crate.
    pub(crate) package: String,
    /// Name of the library, program or file in `tests/` that it tests.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) executable: PathBuf,
    /// Where cargo would start it.
    pub(crate) directory: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Unit tests of a library or program.
    Unit,
    /// A file in `tests/`.
    Integration,
}

impl TestProgram {
    /// Reads one line of `cargo test --no-run --message-format=json`; most lines speak of something else.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (_, profile) = line.split_once(r#""profile":{"#)?;
        if !profile.split('}').next()?.contains(r#""test":true"#) {
            return None;
        }
        let executable = PathBuf::from(text_of(line, "executable")?);
        let manifest = PathBuf::from(text_of(line, "manifest_path")?);
        let (_, target) = line.split_once(r#""target":{"#)?;
        let (_, kind) = target.split_once(r#""kind":[""#)?;
        let kind = match kind.split('"').next()? {
            "test" => Kind::Integration,
            "lib" | "bin" | "proc-macro" => Kind::Unit,
            _ => return None,
        };
        let directory = manifest.parent()?.to_owned();
        let package = package_of(&text_of(line, "package_id")?);
        Some(Self { package, name: text_of(target, "name")?, kind, executable, directory })
    }

    /// How people call it: `flanneld e2e`, or `flannel-lease` for its unit tests.
    pub(crate) fn label(&self) -> String {
        match self.kind {
            Kind::Unit if self.name.replace('_', "-") == self.package => self.package.clone(),
            _ => format!("{} {}", self.package, self.name),
        }
    }
}

/// The name in `path+file:///…/lease#flannel-lease@0.1.0`, or in `path+file:///…/xtask#0.1.0`.
fn package_of(id: &str) -> String {
    let (path, name) = id.rsplit_once('#').unwrap_or(("", id));
    match name.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => path.rsplit('/').next().unwrap_or(name).to_owned(),
    }
}

/// The first member of that name whose value is text.
fn text_of(json: &str, name: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!(r#""{name}":""#))?;
    let mut text = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => match chars.next()? {
                char @ ('"' | '\\' | '/') => text.push(char),
                // No path of ours needs the others.
                _ => return None,
            },
            char => text.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///t/crates/programs/flanneld#0.1.0","manifest_path":"/t/crates/programs/flanneld/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"e2e","src_path":"/t/crates/programs/flanneld/tests/e2e/main.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"0","debuginfo":1,"debug_assertions":true,"overflow_checks":true,"test":true},"features":[],"filenames":["/x/debug/deps/e2e-1"],"executable":"/x/a \"b\"/e2e-1","fresh":true}"#;

    #[test]
    fn test_program_is_read() {
        let program = TestProgram {
            package: "flanneld".into(),
            name: "e2e".into(),
            kind: Kind::Integration,
            executable: "/x/a \"b\"/e2e-1".into(),
            directory: "/t/crates/programs/flanneld".into(),
        };
        assert_eq!(program.label(), "flanneld e2e");
        assert_eq!(TestProgram::parse(LINE), Some(program));
    }

    #[test]
    fn unit_tests_are_called_by_their_crate() {
        let line = LINE
            .replace("flanneld#0.1.0", "lease#flannel-lease@0.1.0")
            .replace(r#""kind":["test"]"#, r#""kind":["lib"]"#)
            .replace(r#""name":"e2e""#, r#""name":"flannel_lease""#);
        assert_eq!(
            TestProgram::parse(&line).map(|program| program.label()),
            Some("flannel-lease".into())
        );
    }

    #[test]
    fn what_is_no_test_program_is_left_out() {
        let library = LINE.replace(
            r#""overflow_checks":true,"test":true"#,
            r#""overflow_checks":true,"test":false"#,
        );
        let bench = LINE.replace(r#""kind":["test"]"#, r#""kind":["bench"]"#);
        let finished = r#"{"reason":"build-finished","success":true}"#;
        for line in [&*library, &*bench, finished, "", "warning: words"] {
            assert_eq!(TestProgram::parse(line), None, "{line}");
        }
    }
}
