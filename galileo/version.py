"""The version of this package, for those below it."""

VERSION = "0.1.0"
