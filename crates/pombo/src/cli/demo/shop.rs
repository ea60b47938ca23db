//! The shop: an application with its own tables in the same file, which has never heard of HTTP.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::failure::{Failure, Outcome};

/// The shop.
pub(super) struct Shop {
    connection: Connection,
    orders: Vec<String>,
    rolled_back: u32,
}

impl Shop {
    /// Opens the file and makes the shop's own table.
    pub(super) fn open(database: &Path) -> Outcome<Self> {
        let connection = Connection::open(database)
            .context("the shop cannot open its database")
            .map_err(Failure::Failed)?;
        let prepare = || -> rusqlite::Result<()> {
            connection.busy_timeout(Duration::from_secs(5))?;
            connection
                .execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY, amount_cents INTEGER NOT NULL)")
        };
        prepare().context("the shop cannot make its table").map_err(Failure::Failed)?;
        Ok(Self { connection, orders: Vec::new(), rolled_back: 0 })
    }

    /// Takes orders, one transaction each: the order and its event, or neither.
    pub(super) fn take_orders(&mut self, count: u32) -> Outcome {
        for _ in 0..count {
            let id = format!("ord_{}", self.orders.len() + 1);
            let mut take = || -> rusqlite::Result<()> {
                let transaction =
                    self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                write_order(&transaction, &id)?;
                transaction.commit()
            };
            take().context("the shop cannot take an order").map_err(Failure::Failed)?;
            self.orders.push(id);
        }
        Ok(())
    }

    /// The customer changes his mind before the commit: no order, and so no event.
    pub(super) fn roll_back_an_order(&mut self) -> Outcome {
        let mut refuse = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            write_order(&transaction, "ord_rolled_back")?;
            transaction.rollback()
        };
        refuse().context("the shop cannot roll an order back").map_err(Failure::Failed)?;
        self.rolled_back += 1;
        Ok(())
    }

    /// Deliveries that Pombo has recorded as delivered, read from its table beside it.
    pub(super) fn recorded_deliveries(&self) -> Outcome<u32> {
        let count = "SELECT count(*) FROM pombo_attempt WHERE settles = 'delivered'";
        self.connection
            .query_row(count, [], |row| row.get(0))
            .context("cannot count what Pombo recorded")
            .map_err(Failure::Failed)
    }

    /// Ids of committed orders.
    pub(super) fn orders(&self) -> &[String] {
        &self.orders
    }

    /// How many orders were committed.
    pub(super) fn committed(&self) -> u32 {
        self.orders.len() as u32
    }

    /// How many were rolled back.
    pub(super) fn rolled_back(&self) -> u32 {
        self.rolled_back
    }
}

fn write_order(transaction: &Transaction<'_>, id: &str) -> rusqlite::Result<()> {
    transaction.execute("INSERT INTO orders (id, amount_cents) VALUES (?1, 12990)", [id])?;
    transaction.execute(
        "INSERT INTO pombo_outbox (tenant, type, data) VALUES ('shop', 'order.paid', ?1)",
        [format!(r#"{{"orderId":"{id}","amount":129.90,"currency":"BRL"}}"#)],
    )?;
    Ok(())
}
