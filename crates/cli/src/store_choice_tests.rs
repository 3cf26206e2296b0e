use super::*;

struct World {
    vars: Vec<(&'static str, String)>,
    root: bool,
    container: bool,
    etc: tempfile::TempDir,
}

impl World {
    fn new(vars: &[(&'static str, &str)]) -> World {
        let vars = vars.iter().map(|(name, value)| (*name, (*value).to_string())).collect();
        let etc = tempfile::tempdir().unwrap();
        World { vars, root: false, container: false, etc }
    }

    fn look<T>(&self, look: impl FnOnce(&Surroundings<'_>) -> T) -> T {
        let var = |name: &str| {
            let found = self.vars.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        look(&Surroundings {
            var: &var,
            root: self.root,
            container: &|| self.container,
            etc: self.etc.path(),
        })
    }

    fn choose(&self, option: Option<&str>) -> Result<Choice, End> {
        self.look(|around| choose(option, around))
    }

    fn url(&self) -> String {
        self.choose(None).unwrap().url
    }

    fn configure(folder: &Path, text: &str) {
        std::fs::create_dir_all(folder.join("leasehold")).unwrap();
        std::fs::write(folder.join("leasehold/config.toml"), text).unwrap();
    }
}

fn refused(result: Result<Choice, End>) -> String {
    match result {
        Err(End::Fail(Code::Config, text)) => text,
        other => panic!("not refused as configuration: {other:?}"),
    }
}

#[test]
fn the_first_that_names_a_store_wins() {
    let user = tempfile::tempdir().unwrap();
    let mut world = World::new(&[
        ("LEASEHOLD_STORE", "sqlite:/env.db"),
        ("XDG_CONFIG_HOME", user.path().to_str().unwrap()),
        ("STATE_DIRECTORY", "/state"),
    ]);
    World::configure(user.path(), "store = 'sqlite:/user.db'\nnamespace = 'team'");
    World::configure(world.etc.path(), "store = 'sqlite:/etc.db'");
    let option = world.choose(Some("sqlite:/option.db")).unwrap();
    assert_eq!((option.url.as_str(), option.source), ("sqlite:/option.db", Source::Option));
    assert_eq!(world.url(), "sqlite:/env.db");
    world.vars.remove(0);
    let file = world.choose(None).unwrap();
    assert_eq!(file.url, "sqlite:/user.db");
    assert_eq!(file.namespace.as_deref(), Some("team"));
    std::fs::remove_file(user.path().join("leasehold/config.toml")).unwrap();
    assert_eq!(world.url(), "sqlite:/etc.db");
    std::fs::remove_file(world.etc.path().join("leasehold/config.toml")).unwrap();
    assert_eq!(world.url(), "sqlite:/state/leasehold.db");
}

#[test]
fn the_embedded_store_goes_where_the_user_may_write() {
    let home = ("HOME", "/home/u");
    assert_eq!(World::new(&[home]).url(), "sqlite:/home/u/.local/state/leasehold/leasehold.db");
    let xdg = ("XDG_STATE_HOME", "/xdg");
    assert_eq!(World::new(&[home, xdg]).url(), "sqlite:/xdg/leasehold/leasehold.db");
    let unit = ("STATE_DIRECTORY", "/var/lib/a:/var/lib/b");
    assert_eq!(World::new(&[home, xdg, unit]).url(), "sqlite:/var/lib/a/leasehold.db");
    let root = World { root: true, ..World::new(&[home]) };
    assert_eq!(root.url(), "sqlite:/var/lib/leasehold/leasehold.db");
}

#[test]
fn without_a_place_it_says_what_would_be_one() {
    for vars in [&[][..], &[("HOME", "relative")], &[("XDG_STATE_HOME", "x")]] {
        let text = refused(World::new(vars).choose(None));
        assert!(text.contains("HOME") && text.contains("--store"), "{text}");
    }
    assert!(refused(World::new(&[("STATE_DIRECTORY", "x")]).choose(None)).contains("absolute"));
}

#[test]
fn under_an_orchestrator_the_default_is_refused_and_a_named_store_is_not() {
    for name in ORCHESTRATORS {
        let world = World::new(&[("HOME", "/h"), (name, "1")]);
        assert!(refused(world.choose(None)).contains(name));
        assert!(world.choose(Some("sqlite:/x")).is_ok());
    }
}

#[test]
fn in_a_container_only_the_default_draws_a_warning() {
    let world = World { container: true, ..World::new(&[("HOME", "/h")]) };
    let warning = |choice: Choice| world.look(|around| choice.warning(around));
    assert!(warning(world.choose(None).unwrap()).unwrap().contains("container"));
    assert_eq!(warning(world.choose(Some("sqlite:/x")).unwrap()), None);
}

#[test]
fn relative_paths_become_absolute_except_in_a_file() {
    let world = World::new(&[]);
    let url = world.choose(Some("sqlite:a b.db?mode=0660")).unwrap().url;
    let here = SqliteConfig::new(std::env::current_dir().unwrap().join("a b.db")).url();
    assert_eq!(url, format!("{here}?mode=0660"));
    World::configure(world.etc.path(), "store = 'sqlite:rel.db'");
    assert!(refused(world.choose(None)).contains("relative"));
}

#[test]
fn a_bad_file_is_refused_by_its_line() {
    let world = World::new(&[("HOME", "/nonexistent")]);
    for (text, says) in [
        ("\nstore = sqlite", "line 2"),
        ("stroe = 'sqlite:/x'", "stroe"),
        ("store = 7", "line 1"),
        ("store = ''", "empty"),
    ] {
        World::configure(world.etc.path(), text);
        let refusal = refused(world.choose(None));
        assert!(refusal.contains(says), "{text}: {refusal}");
        assert_eq!(refusal.lines().count(), 1, "{refusal}");
    }
}

#[test]
fn a_password_in_the_file_is_found_again_by_a_nested_run() {
    let file = "redis://u:s3cret@h:1/0?layout=plain";
    let url = |variable| {
        let world = World::new(&[("LEASEHOLD_STORE", variable)]);
        World::configure(world.etc.path(), &format!("store = '{file}'"));
        world.url()
    };
    assert_eq!(url("redis://u@h:1/0?layout=plain"), file);
    for other in ["redis://u@h:1/0", "redis://u@other:1/0?layout=plain", "redis://u:own@h:1/0"] {
        assert_eq!(url(other), other);
    }
}

#[test]
fn a_password_in_the_option_draws_a_warning() {
    let world = World::new(&[]);
    let choice = world.choose(Some("redis://u:s3cret@h/0")).unwrap();
    let warning = world.look(|around| choice.warning(around)).unwrap();
    assert!(warning.contains("--store") && !warning.contains("s3cret"));
}

#[test]
fn marks_are_kept_in_the_embedded_store_whatever_the_store() {
    let world = World::new(&[("HOME", "/h")]);
    let embedded = |url| {
        let choice = world.choose(Some(url)).unwrap();
        world.look(|around| embedded(&choice, around)).unwrap()
    };
    assert_eq!(embedded("sqlite:/x?mode=0660"), "sqlite:/x?mode=0660");
    assert_eq!(embedded("memory:"), "sqlite:/h/.local/state/leasehold/leasehold.db");
}
