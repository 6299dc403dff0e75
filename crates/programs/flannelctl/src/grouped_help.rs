//! The overview of `flannelctl --help`: commands by purpose, with examples; clap alone lists them in one column.

use std::fmt::Write as _;

use clap::Command;
use clap::builder::StyledStr;
use flannel_cli::table::line;

const GROUPS: [(&str, &[&str]); 5] = [
    ("Look at this node", &["status", "peers", "events", "diff", "check", "trace", "bundle"]),
    ("Look at the whole network", &["test", "page", "leases"]),
    ("Change something", &["repair", "config", "reserve", "unreserve", "release", "store"]),
    ("Install, move, remove", &["migrate", "pki", "key", "ipam", "cleanup"]),
    ("This program", &["completion", "man", "help"]),
];

const EXAMPLES: &str = "\
Examples:
  flannelctl status                        is the network of this node healthy, and if not, why
  flannelctl check                         what this host does to flannel's packets
  flannelctl trace default/web 10.244.3.7  the hop at which packets of a pod are lost
  flannelctl test connectivity             pods of every node to those of every other";

pub(crate) fn of(command: Command) -> Command {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "{heading}:");
        for name in names {
            let about = match command.find_subcommand(name).and_then(Command::get_about) {
                Some(about) => StyledStr::to_string(about),
                None => "Help of a command".to_owned(),
            };
            let _ = writeln!(text, "{}", line(&[("", 1), (name, 11), (&about, 0)]));
        }
        text.push('\n');
    }
    // Braces would be taken as parts of the template.
    let text = text.replace(['{', '}'], "");
    command
        .help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}Options:\n{{options}}{{after-help}}"
        ))
        .after_help(EXAMPLES)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let command = crate::Cli::command();
        let mut all: Vec<&str> = command
            .get_subcommands()
            .filter(|it| !it.is_hide_set())
            .map(Command::get_name)
            .collect();
        all.push("help");
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }
}
