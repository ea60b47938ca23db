//! Waiting for a condition over state that other tasks change.

use std::time::Duration;

use tokio::sync::watch;

/// A condition did not come true in time.
#[derive(Debug, thiserror::Error)]
#[error("waited {waited:?} in vain; at the end: {state}")]
pub struct TimedOut {
    /// How long the wait was.
    pub waited: Duration,
    /// What was there when it ended.
    pub state: String,
}

/// Wakes those who wait whenever something has changed.
#[derive(Debug)]
pub(crate) struct Changes(watch::Sender<()>);

impl Changes {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(()))
    }

    /// To be called after each change.
    pub(crate) fn announce(&self) {
        self.0.send_replace(());
    }

    /// Looks after each change, until `look` finds something or the time is over.
    pub(crate) async fn wait_for<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        // Subscribed before the first look: a change between the two is then seen as one.
        let mut changes = self.0.subscribe();
        let found = async {
            loop {
                if let Some(found) = look() {
                    return found;
                }
                // The sender lives as long as `self`.
                let _ = changes.changed().await;
            }
        };
        tokio::time::timeout(limit, found).await.ok()
    }
}
