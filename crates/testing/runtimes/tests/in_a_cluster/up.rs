//! What `scripts/up --kubernetes` starts, and what it tells people to do next.

use std::process::Command;

use flannel_runtimes::{flannel_lab, image, of_repository, one_cluster_at_a_time};

struct Up(String);

impl Up {
    fn run(&self, line: &str) -> String {
        let output = Command::new("sh").args(["-ec", line]).output().expect("run a shell");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}{complaint}");
        said
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = Command::new(flannel_lab()).args(["--name", &self.0, "down"]).output();
    }
}

#[test]
fn the_cluster_of_the_readme_comes_up_and_what_it_says_can_be_done_can_be_done() {
    let _alone = one_cluster_at_a_time();
    let up = Up(format!("readme-{}", std::process::id()));
    let said = up.run(&format!(
        "{} --name {} up --nodes 3 --image {} --kubernetes --manifest {}",
        flannel_lab(),
        up.0,
        image().display(),
        of_repository("dist/kubernetes/kube-flannel.yml")
    ));
    let (shown, next) = said.split_once("what next").unwrap_or_else(|| panic!("{said}"));
    assert_eq!(shown.matches(" Ready ").count(), 3, "{said}");
    let flannel = shown.lines().filter(|line| line.starts_with("kube-flannel "));
    assert_eq!(flannel.filter(|line| line.contains("Running")).count(), 3, "{said}");

    // Commands, each with what it does.
    let command = |with: &str| {
        let line = next.lines().find(|line| line.contains(with));
        let line = line.unwrap_or_else(|| panic!("no {with} in {next}")).trim();
        line.split("  ").next().unwrap_or(line).to_owned()
    };
    let pods = up.run(&format!("{}; {}", command("export KUBECONFIG"), command("get pods -A")));
    assert_eq!(pods.matches("kube-flannel-ds-").count(), 3, "{pods}");
    let routes = up.run(&command("exec 1 -- ip route"));
    assert_eq!(routes.matches("dev flannel.1").count(), 2, "{routes}");
    up.run(&command(" down"));
    let status = Command::new(flannel_lab()).args(["--name", &up.0, "status"]).output();
    assert!(!status.expect("run flannel-lab").status.success(), "it is still there");
}
