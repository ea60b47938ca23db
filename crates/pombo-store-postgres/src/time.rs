//! Instants between this program (microseconds since 1970) and PostgreSQL (since 2000).

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

use pombo_domain::clock::Timestamp;

/// 2000-01-01T00:00:00Z, where PostgreSQL counts from.
const EPOCH_MICROS: i64 = 946_684_800_000_000;
/// The first microsecond of `timestamptz`, in the year 4713 BC.
const FIRST: i64 = -211_813_488_000_000_000;

/// A `timestamptz`. `infinity` is [`Timestamp::INFINITY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At(pub(crate) Timestamp);

impl At {
    /// Earlier than everything.
    pub(crate) const NEG_INFINITY: Self = Self(Timestamp::from_micros(i64::MIN));
}

impl Type<Postgres> for At {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl PgHasArrayType for At {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for At {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        // Counted from 1970, every i64 fits the range of `timestamptz`; only its two ends mean something else.
        let micros = match self.0.as_micros() {
            i64::MIN => i64::MIN,
            i64::MAX => i64::MAX,
            micros => micros.saturating_sub(EPOCH_MICROS).max(FIRST),
        };
        buffer.extend_from_slice(&micros.to_be_bytes());
        Ok(IsNull::No)
    }

    fn size_hint(&self) -> usize {
        8
    }
}

impl Decode<'_, Postgres> for At {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        if value.format() == PgValueFormat::Text {
            return Err("an instant came as text".into());
        }
        let micros = i64::from_be_bytes(value.as_bytes()?.try_into()?);
        let micros = if micros == i64::MIN { i64::MIN } else { micros.saturating_add(EPOCH_MICROS) };
        Ok(Self(Timestamp::from_micros(micros)))
    }
}

#[cfg(test)]
mod tests {
    use super::{At, Encode, PgArgumentBuffer, Timestamp};

    fn encoded(at: At) -> i64 {
        let mut buffer = PgArgumentBuffer::default();
        let _ = at.encode_by_ref(&mut buffer).expect("an instant is encoded");
        i64::from_be_bytes(buffer[..].try_into().expect("eight bytes"))
    }

    #[test]
    fn infinity_is_infinity_on_both_sides_and_2000_is_zero() {
        assert_eq!(encoded(At(Timestamp::INFINITY)), i64::MAX);
        assert_eq!(encoded(At::NEG_INFINITY), i64::MIN);
        let start = Timestamp::parse("2000-01-01T00:00:00Z").expect("a time");
        assert_eq!(encoded(At(start)), 0);
        assert_eq!(encoded(At(Timestamp::from_micros(i64::MIN + 1))), super::FIRST);
    }
}
