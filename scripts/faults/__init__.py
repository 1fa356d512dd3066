"""Programs of fault scenarios that run in processes of their own."""
