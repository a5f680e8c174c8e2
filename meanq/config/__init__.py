"""Configuration: `schema` declares every field of conf/ with type, meaning, bounds and role; the rest reads it.

`checks` raises ConfigError for what cannot work, `fields` answers by dotted name, `extensions` turns names into code,
`reference` prints --help and docs/fields.md. Imports nothing else of meanq.
"""
