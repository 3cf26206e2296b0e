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
