//! `man`: the manual page, all commands on one.

use clap_mangen::Man;

use crate::exit::{Code, End};
use crate::help;
use crate::output;

pub(crate) fn man() -> Result<End, End> {
    let page = page().map_err(|error| End::Fail(Code::Bug, format!("cannot write it: {error}")))?;
    let page = String::from_utf8(page)
        .map_err(|_| End::Fail(Code::Bug, "the manual page is not UTF-8".into()))?;
    output::data(&page)?;
    Ok(End::DONE)
}

fn page() -> std::io::Result<Vec<u8>> {
    let mut command = help::described().after_help("");
    command.build();
    let mut out = Vec::new();
    let man = Man::new(command.clone());
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    for command in command.get_subcommands() {
        subcommand(command, "leasehold", &mut out)?;
    }
    sections(&mut out);
    Ok(out)
}

/// A section of its own for each command, with its options.
fn subcommand(command: &clap::Command, path: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    let path = format!("{path} {}", command.get_name());
    if command.has_subcommands() {
        for inner in command.get_subcommands() {
            subcommand(inner, &path, out)?;
        }
        return Ok(());
    }
    let mut command = command.clone().bin_name(path.clone());
    // The common options are told once.
    let common: Vec<clap::Id> = command
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .map(|arg| arg.get_id().clone())
        .collect();
    for id in common {
        command = command.mut_arg(id, |arg| arg.hide(true));
    }
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string().replace("Usage: ", "");
    let section = format!(
        ".SH \"{}\"\n{}.\n.PP\n.nf\n{}\n.fi\n",
        roff(&path.to_uppercase()),
        roff(&about),
        roff(&usage)
    );
    out.extend_from_slice(section.as_bytes());
    let mut options = Vec::new();
    Man::new(command).render_options_section(&mut options)?;
    let options = String::from_utf8_lossy(&options).replace(".SH OPTIONS\n", ".SS Options\n");
    out.extend_from_slice(options.as_bytes());
    Ok(())
}

/// What is told once for all commands: exit codes, environment, files, units and jobs.
fn sections(out: &mut Vec<u8>) {
    let mut section = |title: &str, text: &str| {
        let text = format!(".SH \"{title}\"\n.nf\n{}\n.fi\n", roff(text));
        out.extend_from_slice(text.as_bytes());
    };
    section("EXIT CODES", &Code::table());
    section("STORES", &help::stores());
    section("NAMES", include_str!("man_names.txt").trim_end());
    section("ENVIRONMENT", include_str!("man_environment.txt").trim_end());
    section("FENCES", include_str!("man_fences.txt").trim_end());
    section("EXAMPLES", include_str!("man_examples.txt").trim_end());
}

/// A text with nothing left in it that roff would obey.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    let mut lines = Vec::new();
    for line in escaped.lines() {
        let obeyed = line.starts_with('.') || line.starts_with('\'');
        lines.push(if obeyed { format!("\\&{line}") } else { line.to_string() });
    }
    lines.join("\n")
}
