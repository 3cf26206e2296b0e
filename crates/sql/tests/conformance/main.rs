//! The same cases over every adapter, against real servers and SQLite files.
#![allow(clippy::unwrap_used)]

mod cases;
mod drivers;
mod trouble;

use drivers::Driver;

/// Every case over one adapter, each on a table of its own.
async fn all(driver: Driver) {
    cases::all(&driver).await;
    trouble::all(&driver).await;
}

macro_rules! conforms {
    ($($driver:ident)*) => {
        $(#[tokio::test]
        async fn $driver() {
            all(drivers::$driver().await).await;
        })*
    };
}

conforms!(tokio_postgres_0_7 sqlx_0_9_postgres mysql_async_0_37 sqlx_0_9_mysql rusqlite_0_40 sqlx_0_9_sqlite);
