//! Names as the user writes them, and as the store knows them: the namespace, a slash, the name.

use std::ffi::{OsStr, OsString};

use leasehold_core::{BadName, ResourceName, shown};

use crate::exit::{End, usage};

/// How names are joined to a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Names {
    namespace: Option<String>,
}

/// A name, both ways.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    /// As the user wrote it.
    pub(crate) given: String,
    /// As the store knows it.
    pub(crate) full: ResourceName,
}

impl Named {
    /// The name fit for a message.
    pub(crate) fn shown(&self) -> String {
        format!("\"{}\"", shown(&self.given, 200))
    }
}

impl Names {
    /// The namespace of the option, else of the environment, else of the configuration file; an
    /// empty one is none.
    pub(crate) fn choose(
        option: Option<&OsStr>,
        variable: Option<OsString>,
        file: Option<String>,
    ) -> Result<Names, End> {
        let named = match (option, variable) {
            (Some(option), _) => Some((option.to_os_string(), "--namespace")),
            (None, Some(variable)) => Some((variable, "LEASEHOLD_NAMESPACE")),
            (None, None) => file.map(|file| (file.into(), "the configuration's namespace")),
        };
        let Some((text, place)) = named.filter(|(text, _)| !text.is_empty()) else {
            return Ok(Names::default());
        };
        let text = text.into_string().map_err(|_| usage(format!("{place} is not UTF-8")))?;
        match ResourceName::new(&text) {
            Ok(_) => Ok(Names { namespace: Some(text) }),
            Err(why) => Err(usage(format!("{place} cannot be a prefix of names: {why}"))),
        }
    }

    /// The name that the user wrote.
    pub(crate) fn full(&self, name: &OsStr) -> Result<Named, End> {
        let given = name.to_str().ok_or_else(|| usage(BadName::Utf8.to_string()))?;
        // Checked alone, so that an empty name in a namespace is not a name.
        let mut full = ResourceName::new(given).map_err(|why| usage(why.to_string()))?;
        if let Some(namespace) = &self.namespace {
            full = ResourceName::new(&format!("{namespace}/{given}"))
                .map_err(|why| usage(format!("with its namespace {why}")))?;
        }
        Ok(Named { given: given.to_string(), full })
    }

    /// The prefix under which names of this namespace that begin with `prefix` stand.
    pub(crate) fn prefix(&self, prefix: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{prefix}"),
            None => prefix.to_string(),
        }
    }

    /// A name of the store as the user would write it.
    pub(crate) fn given(&self, full: &ResourceName) -> Named {
        let given = match &self.namespace {
            Some(namespace) => {
                let rest = full.as_str().strip_prefix(namespace.as_str());
                rest.and_then(|rest| rest.strip_prefix('/')).unwrap_or(full.as_str())
            }
            None => full.as_str(),
        };
        Named { given: given.to_string(), full: full.clone() }
    }

    /// The namespace; empty for none.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    fn names(text: &str) -> Names {
        Names::choose(Some(text.as_ref()), None, None).unwrap()
    }

    #[test]
    fn a_namespace_is_put_before_a_slash_and_taken_away_again() {
        let team = names("team/a");
        let named = team.full("nightly".as_ref()).unwrap();
        assert_eq!(named.full.as_str(), "team/a/nightly");
        assert_eq!(team.given(&named.full).given, "nightly");
        assert_eq!(team.prefix("n"), "team/a/n");
        let none = names("");
        assert_eq!(none.full("x".as_ref()).unwrap().full.as_str(), "x");
        assert_eq!((none.prefix("p"), none.namespace()), ("p".into(), ""));
    }

    #[test]
    fn the_option_wins_over_the_variable_over_the_file() {
        let all = |option, variable: Option<&str>, file: Option<&str>| {
            let names = Names::choose(option, variable.map(Into::into), file.map(Into::into));
            names.unwrap().namespace().to_string()
        };
        assert_eq!(all(Some("o".as_ref()), Some("v"), Some("f")), "o");
        assert_eq!(all(None, Some("v"), Some("f")), "v");
        assert_eq!(all(None, None, Some("f")), "f");
        assert_eq!(all(Some("".as_ref()), Some("v"), None), "", "an empty option means none");
    }

    #[test]
    fn bad_names_are_usage_errors_with_the_reason() {
        let long = "x".repeat(510);
        for (namespace, name, why) in [
            ("", "", "empty"),
            ("ns", "", "empty"),
            ("", "a\nb", "control character"),
            ("ns", long.as_str(), "512"),
        ] {
            match names(namespace).full(name.as_ref()) {
                Err(End::Fail(Code::Usage, text)) => assert!(text.contains(why), "{text}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
