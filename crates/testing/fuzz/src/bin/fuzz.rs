//! The target that `FLANNEL_FUZZ_TARGET` names, driven by libFuzzer. `scripts/fuzz` builds and runs it.
#![no_main]

use std::sync::LazyLock;

use flannel_fuzz::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FLANNEL_FUZZ_TARGET").expect("FLANNEL_FUZZ_TARGET names a target");
    Target::of_name(&name).unwrap_or_else(|| panic!("no target {name}"))
});

fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
