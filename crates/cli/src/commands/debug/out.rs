//! Output of `extant debug`: records as lines or blocks of text, or as elements of a JSON array.

use crate::context::{Context, complain};
use crate::failure::{Failure, Result};
use crate::json::{self, Array};
use crate::text::{shown, time};
use extant_engine::Timestamp;
use serde_json::{Map, Value, json};
use std::io::{self, BufWriter, StdoutLock, Write};

/// Named values in the order in which text has them.
#[derive(Clone, Debug, Default)]
pub struct Record(Vec<(&'static str, Field)>);

#[derive(Clone, Debug)]
enum Field {
    Value(Value),
    /// A name or path.
    Bytes(Vec<u8>),
    Time(Timestamp),
    Record(Record),
    List(Vec<Record>),
}

impl Record {
    /// Makes a record without values.
    pub fn new() -> Record {
        Record::default()
    }

    fn and(mut self, key: &'static str, field: Field) -> Record {
        self.0.push((key, field));
        self
    }

    /// Adds a number, a text, a list of these, or none.
    #[must_use]
    pub fn with(self, key: &'static str, value: impl Into<Value>) -> Record {
        self.and(key, Field::Value(value.into()))
    }

    /// Adds a name or path.
    #[must_use]
    pub fn bytes(self, key: &'static str, bytes: &[u8]) -> Record {
        self.and(key, Field::Bytes(bytes.to_vec()))
    }

    /// Adds a time.
    #[must_use]
    pub fn time(self, key: &'static str, time: Timestamp) -> Record {
        self.and(key, Field::Time(time))
    }

    /// Adds a record.
    #[must_use]
    pub fn record(self, key: &'static str, record: Record) -> Record {
        self.and(key, Field::Record(record))
    }

    /// Adds a list of records.
    #[must_use]
    pub fn list(self, key: &'static str, list: Vec<Record>) -> Record {
        self.and(key, Field::List(list))
    }

    /// Returns the values that differ from those of another record of the same kind, but for some.
    pub fn differences(&self, other: &Record, without: &[&str]) -> Vec<Record> {
        let pairs = self.0.iter().zip(&other.0);
        let differ = pairs.filter(|((key, own), (_, other))| {
            plain(own) != plain(other) && !without.contains(key)
        });
        let record = |((key, own), (_, other)): (&(&'static str, Field), &(&str, Field))| {
            let record = Record::new().with("field", *key);
            record.and("copy", own.clone()).and("primary", other.clone())
        };
        differ.map(record).collect()
    }

    fn to_json(&self) -> Value {
        let mut object = Map::new();
        for (key, field) in &self.0 {
            let value = match field {
                Field::Value(value) => value.clone(),
                Field::Bytes(bytes) => {
                    json::put_bytes(&mut object, key, bytes);
                    continue;
                }
                Field::Time(time) => json::time(*time),
                Field::Record(record) => record.to_json(),
                Field::List(list) => list.iter().map(Record::to_json).collect(),
            };
            object.insert((*key).into(), value);
        }
        object.into()
    }

    /// Returns the values on a line, without records and lists of them.
    fn pairs(&self) -> String {
        let text = |(key, field): &(&str, Field)| Some(format!("{key}={}", plain(field)?));
        self.0.iter().filter_map(text).collect::<Vec<_>>().join(" ")
    }

    /// Writes each value on a line.
    fn write(&self, out: &mut impl Write, indent: usize) -> io::Result<()> {
        for (key, field) in &self.0 {
            match (plain(field), field) {
                (Some(text), _) => writeln!(out, "{:indent$}{key}: {text}", "")?,
                (None, Field::Record(record)) => {
                    writeln!(out, "{:indent$}{key}:", "")?;
                    record.write(out, indent + 2)?;
                }
                (None, Field::List(list)) => {
                    writeln!(out, "{:indent$}{key}:", "")?;
                    list.iter().try_for_each(|record| {
                        writeln!(out, "{:indent$}  {}", "", record.pairs())
                    })?;
                }
                (None, _) => {}
            }
        }
        Ok(())
    }
}

/// Returns a field as text, if it fits a line.
fn plain(field: &Field) -> Option<String> {
    Some(match field {
        Field::Value(value) => scalar(value),
        Field::Bytes(bytes) => shown(bytes),
        Field::Time(at) => time(*at),
        Field::Record(_) | Field::List(_) => return None,
    })
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::String(text) => shown(text.as_bytes()),
        Value::Array(list) => list.iter().map(scalar).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Receiver of records.
pub struct Out {
    form: Form,
    failed: bool,
}

enum Form {
    Text(BufWriter<StdoutLock<'static>>),
    Json(Array<BufWriter<StdoutLock<'static>>>),
}

impl Out {
    /// Begins the output of a command.
    pub fn new(context: &Context) -> Out {
        let out = BufWriter::new(io::stdout().lock());
        let form = if context.json { Form::Json(context.array(out)) } else { Form::Text(out) };
        Out { form, failed: false }
    }

    /// Prints a record with many values: one on a line.
    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        match &mut self.form {
            Form::Json(array) => array.push(&record.to_json()),
            Form::Text(out) => {
                record.write(out, 0)?;
                writeln!(out)
            }
        }
    }

    /// Prints a record with few values: all on a line, and those of its lists on lines below.
    pub fn line(&mut self, record: &Record) -> io::Result<()> {
        match &mut self.form {
            Form::Json(array) => array.push(&record.to_json()),
            Form::Text(out) => {
                writeln!(out, "{}", record.pairs())?;
                for (_, field) in &record.0 {
                    if let Field::List(list) = field {
                        list.iter().try_for_each(|below| writeln!(out, "  {}", below.pairs()))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns standard output, if it has no JSON document.
    pub fn text(&mut self) -> Option<&mut BufWriter<StdoutLock<'static>>> {
        match &mut self.form {
            Form::Text(out) => Some(out),
            Form::Json(_) => None,
        }
    }

    /// Tells that a part cannot be shown.
    pub fn problem(&mut self, message: &str) -> io::Result<()> {
        self.failed = true;
        match &mut self.form {
            Form::Json(array) => array.push(&json!({ "problem": shown(message.as_bytes()) })),
            Form::Text(out) => {
                out.flush()?;
                complain(shown(message.as_bytes()));
                Ok(())
            }
        }
    }

    /// Tells that parts cannot be shown.
    pub fn problems(&mut self, messages: &[String]) -> io::Result<()> {
        messages.iter().try_for_each(|message| self.problem(message))
    }

    /// Ends the output.
    pub fn finish(self) -> Result {
        match self.form {
            Form::Text(mut out) => out.flush()?,
            Form::Json(array) => array.finish()?,
        }
        if self.failed { Err(Failure::told()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_lines_and_objects() {
        let record = Record::new()
            .with("inode", 12)
            .time("at", Timestamp::new(0, 5))
            .with("none", Value::Null)
            .with("list", vec![1, 2])
            .list("below", vec![Record::new().with("a", "b")])
            .bytes("name", b"a\xff\n");
        let line =
            "inode=12 at=1970-01-01 00:00:00.000000005 UTC none=none list=1,2 name=a\\xff\\n";
        assert_eq!(record.pairs(), line);
        let object = record.to_json();
        assert_eq!(
            (&object["name_hex"], &object["below"][0]["a"]),
            (&"61ff0a".into(), &"b".into())
        );
    }
}
