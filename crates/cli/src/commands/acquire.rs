//! `acquire`: a lock that lives by its term alone, for scripts that go on in other processes.

use leasehold::blocking;
use leasehold_core::Life;

use crate::acquiring::{self, Report, Watch};
use crate::args::{Acquire, Common, Print};
use crate::asked::Asked;
use crate::claims_env::{self, Ancestors};
use crate::context::Context;
use crate::exit::{Code, End};
use crate::output;
use crate::patience::{Alone, Ears};
use crate::records::{self, Granted};

pub(crate) fn acquire(common: &Common, args: &Acquire) -> Result<End, End> {
    let context = Context::new(common)?;
    let named = context.names.full(&args.name)?;
    let asked = Asked::new(&args.ask)?;
    let ancestors = Ancestors::from_env()?;
    output::ensure_open()?;
    let mut ears = Alone::new()?;
    let opened = context.open_within(&mut ears, asked.reach(context.timeout))?;
    let client = &opened.client;
    opened.ensure_outlives("acquire")?;
    let request = asked.request(&opened, &named, None, context.timeout)?;
    let request = request.life(Life::Term).fixed_term();
    let watch = Watch::new(ears.waker(), |_| {});
    let report = Report::new(context.voice, &named);
    let lease = acquiring::acquire(&mut ears, client, request, &watch, report)
        .map_err(|no_lease| no_lease.end(Code::Busy))?;
    let url = &client.profile().url;
    let text = match args.print {
        Print::Json => {
            let namespace = context.names.namespace();
            records::line(&Granted::new(&named, namespace, url, &lease, asked.mode, asked.ttl))
        }
        Print::Env => {
            let url = opened.command_url(&context.choice);
            let set = claims_env::variables(&context, &named, &lease, &url, &ancestors);
            let line = |(name, value): &(&str, std::ffi::OsString)| {
                format!("{name}={}\n", quoted(&value.to_string_lossy()))
            };
            Ok(set.iter().map(line).collect())
        }
    };
    if let Err(end) = text.and_then(|text| output::data(&text)) {
        // Nobody knows of the claim, so nobody will release it.
        let _ = blocking::release(lease);
        return Err(match end {
            End::Fail(..) => end,
            _ => End::Fail(Code::Output, "nobody reads stdout; the lock is released".into()),
        });
    }
    // It is the script's from here on.
    std::mem::forget(lease);
    Ok(End::DONE)
}

/// A value as a shell reads it back, whatever it holds.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_shell_reads_back_what_is_quoted() {
        assert_eq!(quoted("plain"), "'plain'");
        assert_eq!(quoted("it's $(x)"), r"'it'\''s $(x)'");
    }
}
