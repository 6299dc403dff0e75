//! Standard input of every plugin, with commands that change nothing; and results.
#![no_main]

use flannel_cni::builtin::BuiltIn;
use flannel_cni::flannel::Flannel;
use flannel_cni::protocol::{About, Environment, Outcome, Plugin, Version, serve};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|stdin: &[u8]| {
    let _ = Outcome::parse(stdin, Version::LATEST).map(|(outcome, version)| outcome.to_json(version));
    let plugins: Vec<&dyn Plugin> = BuiltIn::ALL.map(BuiltIn::plugin).into();
    for plugin in plugins.into_iter().chain([&Flannel { by_exec: false } as &dyn Plugin]) {
        let getenv = |name: &str| {
            Some(match name {
                "CNI_COMMAND" => "STATUS".to_owned(),
                "CNI_PATH" => "/does/not/exist".into(),
                _ => return None,
            })
        };
        let about = About { text: "" };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        serve(plugin, &about, &Environment(&getenv), stdin, &mut stdout, &mut stderr);
    }
});
