//! Values and rows: what a server says about an object.

use super::size::size_text;
use super::timestamp::Timestamp;
use super::unit::Measure;
use crate::table::ObjectType;

/// The value of one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Empty or unassigned.
    Null,
    /// Text, a name or a status word.
    Text(String),
    /// A number without unit, printed without commas.
    Integer(i64),
    /// Bytes, printed with a suffix.
    SizeBytes(u64),
    /// A metric value.
    Measure(Measure),
    /// A point in time.
    Timestamp(Timestamp),
    /// Several names, printed with commas between.
    List(Vec<String>),
}

impl Value {
    /// The value as text in the STANDARD date format, the form comparisons of text use. Empty for null.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Text(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::SizeBytes(size_bytes) => size_text(*size_bytes),
            Self::Measure(measure) => measure.to_string(),
            Self::Timestamp(timestamp) => timestamp.to_string(),
            Self::List(names) => names.join(","),
        }
    }

    /// Null, or text or a list with nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Text(text) => text.is_empty(),
            Self::List(names) => names.is_empty(),
            Self::Integer(_) | Self::SizeBytes(_) | Self::Measure(_) | Self::Timestamp(_) => false,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// What a server says about one object: values of attributes of its type. An attribute that is not set was not supplied:
/// it is left out of ATTRIBUTES ALL and DETAIL unless another row has it, and is empty when asked for by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    object: ObjectType,
    /// One place for each attribute of the type, in the table's order.
    values: Vec<Option<Value>>,
}

impl Row {
    /// A row without values.
    #[must_use]
    pub fn new(object: ObjectType) -> Self {
        Self { object, values: vec![None; object.spec().attributes.len()] }
    }

    /// The row with `attribute` set, replacing an earlier value. An attribute that the table does not have is a programmer
    /// error and stops the process.
    #[must_use]
    pub fn with(mut self, attribute: &str, value: impl Into<Value>) -> Self {
        let place = self.place(attribute);
        assert!(place.is_some(), "{} has no attribute {attribute} in the table", self.object.spec().word);
        if let Some(place) = place {
            self.values[place] = Some(value.into());
        }
        self
    }

    /// The value of `attribute`, in the table's spelling; `None` when it was not supplied.
    #[must_use]
    pub fn get(&self, attribute: &str) -> Option<&Value> {
        self.values[self.place(attribute)?].as_ref()
    }

    /// About how much memory the row takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of_value = |value: &Option<Value>| match value {
            Some(Value::Text(text)) => text.capacity(),
            Some(Value::List(names)) => names.iter().map(|name| size_of::<String>() + name.capacity()).sum(),
            _ => 0,
        };
        size_of::<Row>()
            + self.values.capacity() * size_of::<Option<Value>>()
            + self.values.iter().map(of_value).sum::<usize>()
    }

    /// The type of the object.
    #[must_use]
    pub const fn object(&self) -> ObjectType {
        self.object
    }

    /// The object's name; empty when none was supplied.
    #[must_use]
    pub fn name(&self) -> String {
        self.get("name").map(Value::text).unwrap_or_default()
    }

    fn place(&self, attribute: &str) -> Option<usize> {
        self.object.spec().attributes.iter().position(|it| it.name == attribute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "GRIDDISK has no attribute colour")]
    fn a_row_holds_only_what_the_table_has() {
        let _ = Row::new(ObjectType::GridDisk).with("colour", "blue");
    }

    #[test]
    fn the_last_value_stays() {
        let row = Row::new(ObjectType::GridDisk).with("name", "a").with("name", "b");
        assert_eq!(row.name(), "b");
        assert_eq!(row.get("status"), None);
    }
}
