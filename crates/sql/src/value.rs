//! What goes into a statement and comes out of it.

/// A parameter or a column.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Value {
    /// NULL, of the type that the statement gives it.
    Null,
    /// BIGINT, or SQLite's INTEGER.
    Int(i64),
    /// A text in UTF-8.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Value {
        Value::Bytes(bytes)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

/// One row of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row(Vec<Value>);

impl Row {
    /// A row of these columns.
    pub fn new(columns: Vec<Value>) -> Row {
        Row(columns)
    }

    /// The column at this place, from 0.
    pub fn get(&self, at: usize) -> Option<&Value> {
        self.0.get(at)
    }

    /// The integer in this column, or `None` where there is no such column or something else in it.
    pub fn int(&self, at: usize) -> Option<i64> {
        match self.get(at) {
            Some(Value::Int(number)) => Some(*number),
            _ => None,
        }
    }

    /// The text in this column, or `None` where there is no such column or something else in it.
    pub fn text(&self, at: usize) -> Option<&str> {
        match self.get(at) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The bytes in this column, or `None` where there is no such column or something else in it.
    pub fn bytes(&self, at: usize) -> Option<&[u8]> {
        match self.get(at) {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// Whether this column is NULL.
    pub fn is_null(&self, at: usize) -> bool {
        matches!(self.get(at), Some(Value::Null))
    }
}
