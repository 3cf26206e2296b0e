//! A way to do something, and what came of it.

use std::process::ExitCode;

use tokio::task::JoinSet;

use crate::Result;
use crate::db::Db;

/// What came of one way.
#[derive(Debug)]
pub struct Way {
    /// Whether it is the one to take.
    pub is_right: bool,
    /// How it was done.
    pub how: &'static str,
    /// What was seen.
    pub saw: String,
    /// How much of it should not be.
    pub failures: u64,
}

impl Way {
    /// One that fails.
    pub fn wrong(how: &'static str, saw: impl Into<String>, failures: u64) -> Way {
        Way { is_right: false, how, saw: saw.into(), failures }
    }

    /// One that does not.
    pub fn right(how: &'static str, saw: impl Into<String>, failures: u64) -> Way {
        Way { is_right: true, how, saw: saw.into(), failures }
    }

    /// Whether it went as it should: a right way without a failure, a wrong one with some.
    pub fn is_as_told(&self) -> bool {
        self.is_right == (self.failures == 0)
    }
}

/// Runs a scenario at the database that the program was told, or at one of its own.
///
/// Exit code 0 if every wrong way failed and every right one did not.
pub fn tell(name: &str, scenario: impl AsyncFnOnce(&Db) -> Result<Vec<Way>>) -> ExitCode {
    let told = run(name, scenario);
    match told {
        Ok(ways) => {
            println!("{name}");
            for way in &ways {
                let verdict = if way.is_right { "right" } else { "wrong" };
                println!("  {verdict}  {}", way.how);
                println!("         {}: {} too many", way.saw, way.failures);
            }
            let all = ways.iter().all(Way::is_as_told);
            if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str, scenario: impl AsyncFnOnce(&Db) -> Result<Vec<Way>>) -> Result<Vec<Way>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let db = match std::env::args().nth(1) {
            Some(url) => Db::at(&url, name).await?,
            None => Db::own(name).await?,
        };
        scenario(&db).await
    })
}

/// Runs them all at once, and answers what they answered; the first failure is told.
pub async fn together<T: Send + 'static>(
    all: impl IntoIterator<Item = impl Future<Output = Result<T>> + Send + 'static>,
) -> Result<Vec<T>> {
    let mut tasks = JoinSet::new();
    for one in all {
        tasks.spawn(one);
    }
    let mut done = Vec::new();
    while let Some(one) = tasks.join_next().await {
        done.push(one??);
    }
    Ok(done)
}

/// As far as it is more than it should be.
pub fn beyond(is: i64, should_be: i64) -> u64 {
    is.abs_diff(should_be)
}
