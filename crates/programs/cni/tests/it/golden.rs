//! The Go plugin's own answers, recorded with a delegate that writes down what it is given. Ours,
//! when it starts its delegate as a program, must give the same.

use std::fs;
use std::path::Path;

use crate::support::{Request, fake_plugin, files};

const RECORDED: &str = include_str!("../data/go-flannel-plugin.txt");
const DELEGATE_RESULT: &str = r#"{"interfaces":[{"name":"cni0"}],"ips":[{"address":"10.244.57.2/24","gateway":"10.244.57.1"}]}"#;

struct Case<'a> {
    name: &'a str,
    sections: Vec<(&'a str, String)>,
}

struct Step {
    command: String,
    exit: i32,
    delegate: String,
    stdout: String,
    files: Option<String>,
}

#[test]
fn every_recorded_answer_of_the_go_plugin_is_ours_too() {
    let cases = cases();
    assert!(cases.len() >= 11, "the record has shrunk to {} cases", cases.len());
    for case in cases {
        replay(&case);
    }
}

fn cases() -> Vec<Case<'static>> {
    RECORDED
        .split("# case: ")
        .skip(1)
        .map(|text| {
            let (name, rest) = text.split_once('\n').unwrap();
            let sections = rest
                .split("## ")
                .skip(1)
                .map(|section| {
                    let (title, body) = section.split_once('\n').unwrap_or((section, ""));
                    (title, body.trim_end().to_owned())
                })
                .collect();
            Case { name, sections }
        })
        .collect()
}

impl Case<'_> {
    fn section(&self, start: &str) -> &str {
        let found = self.sections.iter().find(|(title, _)| title.starts_with(start));
        &found.unwrap_or_else(|| panic!("{}: no section {start}", self.name)).1
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for (title, body) in &self.sections {
            if let Some((command, exit)) = title.split_once(": exit ") {
                steps.push(Step {
                    command: command.to_owned(),
                    exit: exit.parse().unwrap(),
                    delegate: body.clone(),
                    stdout: String::new(),
                    files: None,
                });
            } else if *title == "stdout" {
                steps.last_mut().unwrap().stdout = body.clone();
            } else if title.starts_with("files in dataDir") {
                steps.last_mut().unwrap().files = Some(body.clone());
            }
        }
        steps
    }
}

fn replay(case: &Case<'_>) {
    let root = tempfile::tempdir().unwrap();
    let directory = |name: &str| {
        let path = root.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    let (plugins, data, log) =
        (directory("plugins"), root.path().join("data"), root.path().join("log"));
    let subnet_file = root.path().join("s.env");
    fs::write(&subnet_file, case.section("subnet.env")).unwrap();
    let conf = case
        .section("stdin of flannel")
        .replace("\"DATA\"", &format!("{data:?}"))
        .replace("\"SUBNET\"", &format!("{subnet_file:?}"));
    for kind in ["bridge", "ipvlan"] {
        fake_plugin(&plugins, kind, &log, DELEGATE_RESULT, true);
    }
    for step in case.steps() {
        let _ = fs::remove_file(&log);
        let mut request = Request::new(&step.command);
        request.path = plugins.display().to_string();
        request.args = "K8S_POD_NAME=p".into();
        request.by_exec = true;
        let answer = request.send(&conf);
        let context = format!("{}: {}", case.name, step.command);
        assert_eq!(answer.code, step.exit, "{context}: {}{}", answer.stdout, answer.stderr);
        let stdout = answer.stdout.replace(&root.path().display().to_string(), "DIR");
        assert_eq!(stdout.trim_end(), step.stdout, "{context}");
        if step.exit == 0 {
            assert_eq!(answer.stderr, "", "{context}: defect 77: no dumps on standard error");
        }
        let delegate = fs::read_to_string(&log).unwrap_or_default();
        match step.command.as_str() {
            "ADD" | "DEL" => assert_eq!(delegate.trim_end(), step.delegate, "{context}"),
            // Defect 75: the reference does nothing at these.
            "CHECK" | "STATUS" | "GC" if step.exit == 0 => {
                assert!(
                    delegate.contains(&format!("CNI_COMMAND={}", step.command)),
                    "{context}: {delegate}"
                );
            }
            _ => assert_eq!(delegate, "", "{context}"),
        }
        // Defect 75 again: after a GC that names no valid attachment, ours has kept none.
        let wanted = if step.command == "GC" { Some(String::new()) } else { step.files };
        if let Some(wanted) = wanted {
            assert_eq!(shown(&data), wanted, "{context}");
        }
    }
}

fn shown(directory: &Path) -> String {
    files(directory)
        .into_iter()
        .map(|(name, mode, text)| format!("{name} mode {mode:o}\n{text}"))
        .collect::<Vec<_>>()
        .join("\n")
}
