//! Columns for people.

/// Rows of cells, as wide as their widest.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|cell| (*cell).to_string()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table, without trailing blanks; its head alone if there are no rows.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width =
            |at: usize| self.rows.iter().filter_map(|row| row.get(at).map(|c| len(c))).max();
        let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width - len(cell) + 2));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

fn len(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["NAME", "STATE"]);
        table.row(vec!["é-long".into(), "held".into()]);
        assert_eq!(table.text(), "NAME    STATE\né-long  held\n");
    }
}
