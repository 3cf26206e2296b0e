//! Row locks of MySQL and MariaDB. The insert that makes a row also locks one that is there: a read
//! for a row that is missing would lock the gap, and two who then insert into it would deadlock.

use std::fmt::Write as _;

use leasehold_core::ResourceName;
use leasehold_sql::{Class, Engine, Row, Transaction, Value};

use super::{Rows, first};
use crate::lock::statement::body;
use crate::lock::wait::{Left, millis, seconds};
use crate::lock::{Error, Result, Wait};

/// What was found of the server and the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    /// Seconds that a lock is waited for.
    timeout: i64,
    /// The end of such a wait rolls back the whole transaction.
    rolls_back: bool,
    /// A MariaDB, which bounds the wait of one statement by itself.
    maria: bool,
}

impl Look {
    /// Tells what the answer to `look.sql` says, and whether there is a transaction where it says.
    fn read(row: Option<&Row>) -> (Look, Option<bool>) {
        let int = |at| row.and_then(|row| row.int(at));
        let autocommits = int(2).unwrap_or(1) != 0;
        let inside = int(3).map(|inside| inside != 0 || !autocommits);
        let look = Look {
            timeout: int(0).unwrap_or(50),
            rolls_back: int(1).unwrap_or(0) != 0,
            maria: inside.is_some(),
        };
        (look, inside)
    }
}

pub(super) async fn lock<T>(
    tx: &mut T,
    rows: &Rows,
    names: &[ResourceName],
    wait: Wait,
) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    let look = look(tx).await?;
    take(tx, rows, names, wait, look).await
}

pub(super) async fn make<T>(tx: &mut T, rows: &Rows, names: &[ResourceName]) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    let (text, values) = several(rows, include_str!("../sql/mysql/row_make.sql"), "(?)", names);
    tx.execute(&text, &values).await.map_err(|error| rows.failed(error))?;
    Ok(())
}

pub(super) async fn first_free<T>(
    tx: &mut T,
    rows: &Rows,
    names: &[ResourceName],
) -> Result<Option<ResourceName>>
where
    T: Transaction + Send + ?Sized,
{
    let look = look(tx).await?;
    for name in names {
        match take(tx, rows, std::slice::from_ref(name), Wait::No, look).await {
            Ok(()) => return Ok(Some(name.clone())),
            Err(Error::Busy { rolled_back: false, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

async fn look<T>(tx: &mut T) -> Result<Look>
where
    T: Transaction + Send + ?Sized,
{
    let answer = tx.rows(body(include_str!("../sql/mysql/look.sql")), &[]).await?;
    let (look, inside) = Look::read(answer.first());
    match inside {
        Some(true) => Ok(look),
        Some(false) => Err(Error::OutsideTransaction),
        None => check_inside(tx).await.map(|()| look),
    }
}

/// A savepoint lives as long as its transaction: not at all, outside of one.
async fn check_inside<T>(tx: &mut T) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    tx.execute("SAVEPOINT leasehold_lock", &[]).await?;
    match tx.execute("RELEASE SAVEPOINT leasehold_lock", &[]).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some("1305") => Err(Error::OutsideTransaction),
        Err(error) => Err(error.into()),
    }
}

async fn take<T>(
    tx: &mut T,
    rows: &Rows,
    names: &[ResourceName],
    wait: Wait,
    look: Look,
) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    let left = wait.begin();
    let taken = if look.maria {
        insert_maria(tx, rows, names, left).await
    } else {
        take_mysql(tx, rows, names, left, look).await
    };
    match taken {
        Ok(()) => Ok(()),
        // The bound of a statement of MariaDB ends that statement alone.
        Err(error) if error.code() == Some("1969") => Err(wait.refused(first(names), false)),
        Err(error) if error.class() == Class::Busy => {
            // NOWAIT is not the end of a wait.
            let rolled_back = look.rolls_back && error.code() != Some("3572");
            Err(wait.refused(first(names), rolled_back))
        }
        Err(error) => Err(rows.failed(error)),
    }
}

/// One statement with bounds of its own: nothing is to be put back, also where it is given up.
async fn insert_maria<T>(
    tx: &mut T,
    rows: &Rows,
    names: &[ResourceName],
    left: Left,
) -> leasehold_sql::Result<()>
where
    T: Transaction + Send + ?Sized,
{
    let (insert, values) = several(rows, include_str!("../sql/mysql/row_make.sql"), "(?)", names);
    let text = match left.time() {
        None => format!("SET STATEMENT innodb_lock_wait_timeout = 0 FOR {insert}"),
        Some(time) => {
            let (millis, seconds) = (millis(time), seconds(time) + 1);
            format!(
                "SET STATEMENT max_statement_time = {}.{:03}, innodb_lock_wait_timeout = {seconds} \
                 FOR {insert}",
                millis / 1000,
                millis % 1000
            )
        }
    };
    tx.execute(&text, &values).await.map(drop)
}

/// Without a wait a read that fails at once; the insert, whose shortest wait is a second, only for
/// rows that are missing.
async fn take_mysql<T>(
    tx: &mut T,
    rows: &Rows,
    names: &[ResourceName],
    left: Left,
    look: Look,
) -> leasehold_sql::Result<()>
where
    T: Transaction + Send + ?Sized,
{
    if left.time().is_none() {
        let file = include_str!("../sql/mysql/row_nowait.sql");
        let (text, values) = several(rows, file, "?", names);
        if tx.rows(&text, &values).await?.len() == names.len() {
            return Ok(());
        }
    }
    let bound = seconds(left.time().unwrap_or_default());
    let set = |seconds: i64| format!("SET SESSION innodb_lock_wait_timeout = {seconds}");
    let (insert, values) = several(rows, include_str!("../sql/mysql/row_make.sql"), "(?)", names);
    tx.execute(&set(bound), &[]).await?;
    let taken = tx.execute(&insert, &values).await;
    match &taken {
        Err(error) if error.class() == Class::Connection => {}
        _ => drop(tx.execute(&set(look.timeout), &[]).await?),
    }
    taken.map(drop)
}

/// The statement of a file for several names: its one placeholder, as often as there are names.
fn several(
    rows: &Rows,
    file: &'static str,
    place: &str,
    names: &[ResourceName],
) -> (String, Vec<Value>) {
    let mut places = String::from(place);
    for _ in 1..names.len() {
        // Writing to a String cannot fail.
        let _ = write!(places, ", {place}");
    }
    let text = rows.text(file, Engine::Mysql);
    let text = text.replacen(place, &places, 1);
    // Bytes, as the column's: a text would be compared as the session's character set has it.
    let values = names.iter().map(|name| Value::Bytes(name.as_str().as_bytes().to_vec()));
    (text, values.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_takes_as_many_names_as_there_are() {
        let names = ["a", "b", "c"].map(|name| ResourceName::new(name).unwrap());
        let file = include_str!("../sql/mysql/row_make.sql");
        let (text, values) = several(&Rows::default(), file, "(?)", &names);
        assert_eq!(
            text,
            "INSERT INTO leasehold_lock (name) VALUES (?), (?), (?) ON DUPLICATE KEY UPDATE name = name"
        );
        assert_eq!(values.len(), 3);
        let (text, _) = several(
            &Rows::default(),
            include_str!("../sql/mysql/row_nowait.sql"),
            "?",
            &names[..1],
        );
        assert!(text.contains("WHERE name IN (?) ORDER"), "{text}");
    }

    #[test]
    fn a_mariadb_says_itself_whether_there_is_a_transaction() {
        let row = |cells: &[i64]| Row::new(cells.iter().copied().map(Value::Int).collect());
        let read = |cells: &[i64]| Look::read(Some(&row(cells)));
        assert_eq!(read(&[50, 0, 1, 0]).1, Some(false));
        assert_eq!(read(&[50, 0, 1, 1]).1, Some(true));
        assert_eq!(read(&[50, 0, 0, 0]).1, Some(true), "without autocommit there always is one");
        let (look, inside) = read(&[7, 1, 1]);
        assert_eq!(inside, None);
        assert_eq!(look, Look { timeout: 7, rolls_back: true, maria: false });
    }
}
