//! On PostgreSQL, by tokio-postgres.

use leasehold_data::idempotency::Keys;
use leasehold_testkit::server::postgres::{Options, Postgres};

use super::{CONNECTIONS, Orders, measure};
use crate::Result;
use crate::figures::Figure;

const TABLES: &str = "
    CREATE TABLE stock (sku bigint PRIMARY KEY, price bigint, pieces bigint CHECK (pieces >= 0))
        WITH (fillfactor = 50);
    INSERT INTO stock SELECT sku, 100 + sku, 1000000000 FROM generate_series(0, 999) AS sku;
    CREATE TABLE orders (id bigserial PRIMARY KEY, sku bigint, price bigint, note text)";

pub(super) fn run() -> Result<Vec<Figure>> {
    let server = Postgres::with(Options {
        settings: vec![
            "checkpoint_timeout = '1h'".into(),
            "max_wal_size = '4GB'".into(),
            "shared_buffers = '128MB'".into(),
        ],
        ..Options::default()
    });
    server.sql(TABLES);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let keys = Keys::new();
        let mut conns = Vec::new();
        for _ in 0..CONNECTIONS {
            conns.push(connect(server.port()).await?);
        }
        let mut tx = conns.first_mut().ok_or("no connection")?.begin().await?;
        keys.create_table(&mut tx).await?;
        tx.commit().await?;
        measure("PostgreSQL", conns, &keys).await
    })
}

async fn connect(port: u16) -> Result<tokio_postgres::Client> {
    let config = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

impl Orders for tokio_postgres::Client {
    type Tx<'a> = tokio_postgres::Transaction<'a>;

    const STATEMENTS: [&'static str; 3] = [
        "SELECT price FROM stock WHERE sku = $1",
        "UPDATE stock SET pieces = pieces - 1 WHERE sku = $1 AND pieces >= 1",
        "INSERT INTO orders (sku, price, note) VALUES ($1, $2, $3)",
    ];

    async fn begin(&mut self) -> Result<Self::Tx<'_>> {
        Ok(self.transaction().await?)
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        Ok(tx.commit().await?)
    }
}
