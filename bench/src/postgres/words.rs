//! Releases with waiters: words sent after the commit, beside words sent within it.

use std::time::Instant;

use leasehold::postgres::PostgresStore;
use leasehold_testkit::server::postgres::Postgres;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::raw::connect;
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const SESSIONS: usize = 16;
const WAITERS: usize = 40;
const ROUNDS: usize = 3;

pub(crate) async fn run(server: &Postgres) -> Result<Vec<Figure>> {
    let ours = PostgresStore::schema_sql("words_after");
    server.sql(&ours);
    let after = "  COMMIT;\n  IF words IS NOT NULL THEN";
    let within =
        PostgresStore::schema_sql("words_within").replace(after, "  IF words IS NOT NULL THEN");
    if !within.contains("words IS NOT NULL THEN") || within.contains(after) {
        return Err("the procedure is not what the bench knows".into());
    }
    server.sql(&within);
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(connect(server).await?.0);
    }
    let (listener, _words) = connect(server).await?;
    listener.batch_execute("LISTEN leasehold_0000000000000001").await?;
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let within = releases(&sessions, "words_within", round).await?;
        let after = releases(&sessions, "words_after", round).await?;
        ratios.push(after / within);
    }
    Ok(vec![Figure::at_least(
        "releases with waiters a second / with words within the commit",
        median(&ratios),
        5.0,
    )])
}

/// Every session releases a name from hand to hand; releases a second of all together.
async fn releases(sessions: &[Client], schema: &str, round: usize) -> Result<f64> {
    let sql = format!("CALL {schema}.leasehold_serve($1, true, true, NULL)");
    for (n, session) in sessions.iter().enumerate() {
        let name = format!("round {round} of {n}");
        let all: Vec<String> = (0..=WAITERS).map(|w| enter(&name, n, w)).collect();
        call(session, &sql, &format!("[{}]", all.join(","))).await?;
    }
    let started = Instant::now();
    let each = sessions.iter().enumerate().map(|(n, session)| {
        let sql = sql.as_str();
        async move {
            for w in 0..WAITERS {
                let name = format!("round {round} of {n}");
                let leave = format!(
                    r#"[{{"verb":"leave","name":"{name}","claim":"{}","term":1000000}}]"#,
                    id(n, w)
                );
                call(session, sql, &leave).await?;
            }
            Ok::<(), Box<dyn std::error::Error>>(())
        }
    });
    for done in futures_util::future::join_all(each).await {
        done?;
    }
    #[allow(clippy::cast_precision_loss)]
    let count = (sessions.len() * WAITERS) as f64;
    Ok(count / started.elapsed().as_secs_f64())
}

fn id(session: usize, waiter: usize) -> String {
    format!("{session:016x}{waiter:016x}")
}

fn enter(name: &str, session: usize, waiter: usize) -> String {
    let id = id(session, waiter);
    format!(
        r#"{{"verb":"enter","name":"{name}","claim":"{id}","holder":"{id}","label":"bench","mode":"exclusive","term":600000000,"life":"term","place":600000000,"home":1}}"#
    )
}

async fn call(session: &Client, sql: &str, calls: &str) -> Result<()> {
    session.query_typed(sql, &[(&calls, Type::TEXT)]).await?;
    Ok(())
}
