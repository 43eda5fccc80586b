"""Studies: what the library takes and what it reaches, as commands with stored results."""
