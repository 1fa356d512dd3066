"""What is told of stored values: prose, tables and plots, with no figure typed by hand."""
