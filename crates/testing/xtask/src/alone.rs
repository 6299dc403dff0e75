//! The tests that run when nothing else does.

/// Tests of one program that need a machine without other load.
pub(crate) struct Alone {
    /// Name of the test program, as in `cargo test --test NAME`.
    pub(crate) program: &'static str,
    /// Part of the names of the tests.
    pub(crate) filter: &'static str,
    /// Why they cannot share the machine.
    pub(crate) why: &'static str,
    /// What has to change before the line can go.
    pub(crate) until: &'static str,
}

/// Printed at the end of every run. A new line here needs a reason that no better test removes.
pub(crate) const ALONE: &[Alone] = &[Alone {
    program: "e2e",
    filter: "promised_faults::",
    why: "counts wall time: ten faults are named within ten seconds, as operators are promised",
    until: "the promise is counted in simulated time",
}];
