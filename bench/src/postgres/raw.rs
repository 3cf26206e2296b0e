//! Statements as one would send them by hand.

use leasehold_testkit::server::postgres::Postgres;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use crate::Result;

/// A row that is taken and freed, by two prepared statements.
pub(crate) struct Raw {
    pub(crate) client: Client,
    take: Statement,
    free: Statement,
}

impl Raw {
    pub(crate) async fn open(server: &Postgres, name: &str) -> Result<Raw> {
        let (client, _) = connect(server).await?;
        client
            .batch_execute(&format!(
                "CREATE TABLE IF NOT EXISTS raw (
                   name text COLLATE \"C\" PRIMARY KEY, owner uuid, token bigint, until timestamptz
                 ) WITH (fillfactor = 30);
                 INSERT INTO raw VALUES ('{name}', NULL, 1, clock_timestamp()) ON CONFLICT DO NOTHING"
            ))
            .await?;
        let take = client
            .prepare(&format!(
                "UPDATE raw SET owner = gen_random_uuid(), until = clock_timestamp() + '30 s',
                   token = greatest(token + 1, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint)
                 WHERE name = '{name}' AND (owner IS NULL OR until <= clock_timestamp())
                 RETURNING token"
            ))
            .await?;
        let free = client
            .prepare(&format!(
                "UPDATE raw SET owner = NULL, until = clock_timestamp() WHERE name = '{name}'
                 AND owner IS NOT NULL"
            ))
            .await?;
        Ok(Raw { client, take, free })
    }

    /// Whether it was free.
    pub(crate) async fn take(&self) -> Result<bool> {
        Ok(self.client.query_opt(&self.take, &[]).await?.is_some())
    }

    pub(crate) async fn free(&self) -> Result<()> {
        self.client.execute(&self.free, &[]).await?;
        Ok(())
    }
}

/// The store's own two statements, prepared as it prepares them.
pub(crate) struct Same {
    client: Client,
    take: Statement,
    free: Statement,
    claims: u64,
}

impl Same {
    /// The tables must be there.
    pub(crate) async fn open(server: &Postgres) -> Result<Same> {
        let (client, _) = connect(server).await?;
        client
            .batch_execute(
                "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;
                 SET enable_hashjoin = off; SET enable_mergejoin = off;
                 INSERT INTO leasehold_resource
                        (name, token, ord, granted, waiting, used_at, past, end_how)
                 VALUES ('same', 1, 1, 0, 0, clock_timestamp(), '', 'released')
                 ON CONFLICT DO NOTHING",
            )
            .await?;
        let take =
            client.prepare(include_str!("../../../stores/postgres/src/sql/take.sql")).await?;
        let free =
            client.prepare(include_str!("../../../stores/postgres/src/sql/free.sql")).await?;
        Ok(Same { client, take, free, claims: 0 })
    }

    /// Takes the row and frees it.
    pub(crate) async fn pair(&mut self) -> Result<()> {
        self.claims += 1;
        let claim = format!("{:032x}", self.claims);
        let (names, claims, labels) = (["same"], [claim.as_str()], ["raw"]);
        let (names, claims, labels) = (&names[..], &claims[..], &labels[..]);
        let (terms, lives, losses) = (&[30_000_000_i64][..], &["term"][..], &[0_i64][..]);
        let took = self
            .client
            .query(&self.take, &[&names, &claims, &claims, &labels, &terms, &lives, &losses])
            .await?;
        let freed = self.client.query(&self.free, &[&names, &claims]).await?;
        if took.len() + freed.len() == 2 { Ok(()) } else { Err("a raw row is taken".into()) }
    }
}

/// A connection, and the payloads of its notifications.
pub(crate) async fn connect(
    server: &Postgres,
) -> Result<(Client, mpsc::UnboundedReceiver<String>)> {
    let mut config = tokio_postgres::Config::new();
    config.host("127.0.0.1").port(server.port()).user("postgres").dbname("postgres");
    let (client, mut connection) = config.connect(NoTls).await?;
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(word) = message {
                // Nobody may be interested.
                let _ = sender.send(word.payload().to_owned());
            }
        }
    });
    Ok((client, receiver))
}
