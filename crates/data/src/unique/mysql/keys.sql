-- Schema or NULL, table. The columns of its unique keys; one over the beginning of a column is unique in less.
SELECT s.index_name AS index_name, s.column_name AS column_name
FROM information_schema.statistics AS s
WHERE s.table_schema = COALESCE(?, DATABASE()) AND s.table_name = ? AND s.non_unique = 0
    AND NOT EXISTS (
        SELECT 1 FROM information_schema.statistics AS p
        WHERE p.table_schema = s.table_schema AND p.table_name = s.table_name AND p.index_name = s.index_name
            AND p.sub_part IS NOT NULL
    )
