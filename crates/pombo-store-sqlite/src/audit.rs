//! The audit log, written in the transaction of the act it tells of.

use rusqlite::params;

use pombo_domain::id::{AuditId, TenantId};
use pombo_store::admin::Actor;

use crate::Tx;
use crate::error::Fault;
use crate::rows;

/// What was done to what.
pub(crate) struct Act {
    /// A word of [`pombo_store::admin::AuditEntry::action`].
    pub(crate) action: &'static str,
    /// The id of the thing, as shown.
    pub(crate) subject: String,
    /// Its tenant.
    pub(crate) tenant_id: Option<TenantId>,
}

pub(crate) fn record(tx: &Tx<'_>, actor: &Actor, act: &Act) -> Result<(), Fault> {
    let id = AuditId::new(tx.now, rand::random());
    rows::change(
        tx,
        "-- pombo:audit\n\
         INSERT INTO pombo_audit (id, at, actor, action, subject, tenant_id, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            id.0.as_bytes(),
            tx.now.as_micros(),
            actor.name,
            act.action,
            act.subject,
            act.tenant_id.as_ref().map(|id| id.0.as_bytes()),
            actor.reason,
        ],
    )?;
    Ok(())
}
