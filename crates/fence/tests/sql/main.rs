//! The fence in a transaction: PostgreSQL, MariaDB and SQLite, each by two drivers.
#![allow(clippy::unwrap_used)]

mod drivers;
mod holders;
mod marks;
mod protection;
mod trouble;
mod update;

use drivers::Driver;

/// Every case over one driver.
async fn all(driver: Driver) {
    holders::all(&driver).await;
    marks::all(&driver).await;
    trouble::all(&driver).await;
    update::all(&driver).await;
}

macro_rules! holds {
    ($($driver:ident)*) => {
        $(#[tokio::test]
        async fn $driver() {
            all(drivers::$driver().await).await;
        })*
    };
}

holds!(tokio_postgres sqlx_postgres mysql_async sqlx_mysql rusqlite sqlx_sqlite);
