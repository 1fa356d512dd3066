"""The `galileo` command. Commands return values; `output` alone decides how they look."""
