-- What a database says of itself. `format` and `min_reader` are there from the first migration on.
CREATE TABLE meta (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
