//! What every command starts from: how much to say, which store, which names, how long to try.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use crate::args::Common;
use crate::exit::End;
use crate::names::Names;
use crate::output::Voice;
use crate::store_choice::{self, Choice, Surroundings};

/// The choices that the common options, the environment and the configuration make.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) voice: Voice,
    pub(crate) choice: Choice,
    pub(crate) names: Names,
    pub(crate) timeout: Duration,
    /// What the user should be told about the choice, once the rest is seen to be right.
    warning: Option<&'static str>,
}

impl Context {
    pub(crate) fn new(common: &Common) -> Result<Context, End> {
        let voice = Voice::new(common.quiet, common.verbose);
        with_surroundings(|around| {
            let choice = store_choice::choose(common.store.as_deref(), around)?;
            let names = Names::choose(
                common.namespace.as_deref(),
                variable("LEASEHOLD_NAMESPACE"),
                choice.namespace.clone(),
            )?;
            let warning = choice.warning(around);
            Ok(Context { voice, choice, names, timeout: common.timeout, warning })
        })
    }

    /// Tells what there is to tell about the choice of the store, before it is used.
    pub(crate) fn warn(&self) {
        if let Some(warning) = self.warning {
            self.voice.warn(warning);
        }
    }

    /// The embedded store in which the marks of fences are kept.
    pub(crate) fn marks_store(&self) -> Result<Choice, End> {
        let url = with_surroundings(|around| store_choice::embedded(&self.choice, around))?;
        Ok(Choice { url, ..self.choice.clone() })
    }
}

/// A variable of the environment; an empty one counts as none.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn with_surroundings<T>(look: impl FnOnce(&Surroundings<'_>) -> T) -> T {
    look(&Surroundings {
        var: &variable,
        root: rustix::process::geteuid().is_root(),
        container: &store_choice::in_container,
        etc: Path::new("/etc"),
    })
}
