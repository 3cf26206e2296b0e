//! A defect ends the command's tree, then leasehold, with one line and 70.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

use crate::exit::{Code, End};
use crate::output;

/// Runs the program. A panic unwinds through the front, which kills the command's whole tree.
pub(crate) fn caught(run: impl FnOnce() -> Result<End, End>) -> End {
    set_hook(Box::new(|info| {
        let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line()));
        let what = info.payload_as_str().unwrap_or("no message").replace('\n', " ");
        output::error(format_args!(
            "a defect of leasehold{}: {what}; please report it",
            place.unwrap_or_default()
        ));
    }));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(end) | Err(end)) => end,
        Err(_) => End::code(Code::Bug),
    }
}

/// Panics once the file that `LEASEHOLD_TEST_PANIC` names is there, so that a test can see what a
/// defect does to a command. Not in release builds.
#[cfg(debug_assertions)]
pub(crate) fn if_asked() {
    let Some(path) = std::env::var_os("LEASEHOLD_TEST_PANIC") else { return };
    let path = std::path::Path::new(&path);
    while !std::fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n')) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::panic::panic_any("asked for by a test");
}
